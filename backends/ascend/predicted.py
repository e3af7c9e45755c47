"""Predicted times of this backend's kernels on the shapes DeepGEMM-Ascend published, beside the published figures.

The published rows are data of the simulator, and so is the timing model; here the library's own functions are called.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import unikernels
from unikernels.bench import Prediction

from .runtime.simulated import recorded_reports, timing_only
from .sample_calls import OperandType, gemm, m_grouped_gemm
from .simulator.published import DATA


@dataclass(frozen=True, slots=True)
class _Row:
    """One published result; `m` counts the rows of each group."""

    operation: str
    operands: str
    groups: int
    m: int
    n: int
    k: int
    tflops: float

    @property
    def name(self) -> str:
        groups = f" groups={self.groups}" if self.operation == "m_grouped_gemm" else ""
        return f"{self.operands}{groups} m={self.m} n={self.n} k={self.k}"


def _rows() -> list[_Row]:
    """Return the published rows of operations this backend predicts."""
    names = {"dense": "gemm", "m_grouped": "m_grouped_gemm"}
    lines = (line for line in DATA.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [
        _Row(names[r["op"]], r["dtype"], int(r["groups"]), int(r["m"]), int(r["n"]), int(r["k"]), float(r["tflops"]))
        for r in csv.DictReader(lines)
        if r["op"] in names
    ]


def predictions(pattern: str = "") -> Iterator[Prediction]:
    """Yield a prediction for every published row whose operation or name contains `pattern`; L2 is cold for each kernel.

    Groups of the published grouped rows have random sizes; here all have the mean size. Rates are compared, so that the
    number of rows does not matter.
    """
    for row in _rows():
        if pattern not in f"{row.operation} {row.name}":
            continue
        with unikernels.use_backend("ascend"), timing_only(), recorded_reports() as reports:
            _call(row)
        time_us = sum(report.time_us for report in reports)
        longest = max(reports, key=lambda report: report.time_us)
        flops = 2 * row.groups * row.m * row.n * row.k
        yield Prediction(row.operation, row.name, time_us, flops / time_us / 1e6, row.tflops, longest.critical_pipe)


def _call(row: _Row) -> None:
    """Call the library on tensors of a row's sizes."""
    left, right = cast("list[OperandType]", row.operands.split("x"))
    if row.operation == "m_grouped_gemm":
        assert row.m % unikernels.get_mk_alignment_for_contiguous_layout() == 0, "gaps would need rows too"
        m_grouped_gemm(left, right, "psum", row.groups, row.m, row.n, row.k)
    else:
        gemm(left, right, row.m, row.n, row.k)
