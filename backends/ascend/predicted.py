"""Predicted times of this backend's kernels on the shapes DeepGEMM-Ascend published, beside the published figures.

The published rows are data of the simulator, and so is the timing model; here the library's own functions are called.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import unikernels
from unikernels.bench import Prediction

from .runtime.simulated import recorded_reports, timing_only
from .simulator.published import DATA

_ALIGNMENT = 256


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
    """Call the library on tensors of a row's sizes; their contents do not matter."""
    left, right = row.operands.split("x")
    d = torch.empty(row.groups * row.m, row.n, dtype=torch.bfloat16)
    if row.operation == "m_grouped_gemm":
        ends = torch.arange(1, row.groups + 1, dtype=torch.int32) * row.m
        assert row.m % _ALIGNMENT == 0, "groups that are not aligned would need gaps"
        a, b = _operand(left, (row.groups * row.m, row.k)), _operand(right, (row.groups, row.n, row.k))
        unikernels.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ends, use_psum_layout=True, recipe=(1, 1, 32))
    elif left == "bf16":
        x, y = (torch.empty(rows, row.k, dtype=torch.bfloat16) for rows in (row.m, row.n))
        unikernels.bf16_gemm_nt(x, y, d)
    else:
        a, b = _operand(left, (row.m, row.k)), _operand(right, (row.n, row.k))
        unikernels.fp8_fp4_gemm_nt(a, b, d, recipe=(1, 1, 32))


def _operand(kind: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return data and int16 scales of a K-major operand [.., rows, k]."""
    *leading, rows, k = shape
    columns, dtype = (k // 2, torch.int8) if kind == "fp4" else (k, torch.float8_e4m3fn)
    words = torch.empty(*leading, k // 64, rows, dtype=torch.int16)
    return torch.empty(*leading, rows, columns, dtype=dtype), words.mT
