"""Predicted against published times: plain dense GEMMs on the rows of data/ascend950_published.csv.

`python -m unikernels.backends.ascend.simulator.published` prints the table of docs/simulator_timing.md. The model is in
timing.py, the kernels are in plain_gemm.py.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .launch import simulate
from .plain_gemm import Tiling, bf16_gemm, mx_gemm
from .report import Report

DATA = Path(__file__).parent / "data" / "ascend950_published.csv"
KINDS = {"bf16xbf16": "bf16", "fp8xfp8": "fp8", "fp4xfp4": "fp4"}

# (kind, M, N, K) whose latency the fitted constants launch_us and hbm_latency may follow: the shortest row, the one with
# the most tiles, the one that reads most, and a short one. hbm_bytes follows the row hc_prenorm M=8192 (see docs).
FITTED_ROWS = (
    ("fp8", 128, 576, 7168),
    ("fp8", 128, 24576, 1536),
    ("fp8", 128, 7168, 16384),
    ("fp8", 128, 7168, 2048),
)

# Tilings tried per row; the fastest predicted one counts, as a tuned library would choose the fastest measured one.
TILINGS = {
    "bf16": (Tiling(256, 256, 128, 64, unit_flag=True), Tiling(128, 256, 256, 64, unit_flag=True)),
    "fp8": (
        Tiling(256, 256, 256, 128, unit_flag=True),
        Tiling(128, 256, 512, 128, unit_flag=True),
        Tiling(128, 256, 256, 128, unit_flag=True),
        Tiling(128, 128, 512, 128, unit_flag=True),
        Tiling(64, 128, 512, 256, unit_flag=True),
        Tiling(64, 64, 512, 256, unit_flag=True),
    ),
    "fp4": (Tiling(256, 256, 512, 256, unit_flag=True), Tiling(128, 256, 1024, 256, unit_flag=True)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One published dense result."""

    kind: str
    m: int
    n: int
    k: int
    latency_us: float

    @property
    def fitted(self) -> bool:
        return (self.kind, self.m, self.n, self.k) in FITTED_ROWS


def dense_rows() -> list[Row]:
    """The dense rows with equal operand types; fp8 x fp4 needs an unpacking step that is no plain GEMM."""
    lines = (line for line in DATA.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [
        Row(KINDS[r["dtype"]], int(r["m"]), int(r["n"]), int(r["k"]), float(r["latency_us"]))
        for r in csv.DictReader(lines)
        if r["op"] == "dense" and r["dtype"] in KINDS
    ]


def time_gemm(kind: str, m: int, n: int, k: int, tiling: Tiling) -> Report:
    """Run a plain GEMM without moving data; the tensors' contents do not matter."""
    d = torch.empty(m, n, dtype=torch.bfloat16)
    if kind == "bf16":
        operands = [torch.empty(rows, k, dtype=torch.bfloat16) for rows in (m, n)]
        return simulate(bf16_gemm(tiling), *operands, d, check="off", functional=False)
    dtype, pack = (torch.float8_e4m3fn, 1) if kind == "fp8" else (torch.uint8, 2)
    operands = [torch.empty(rows, k // pack, dtype=dtype) for rows in (m, n)]
    operands += [torch.empty(k // 64, rows, dtype=torch.int16) for rows in (m, n)]
    return simulate(mx_gemm(tiling, kind, k if kind == "fp4" else None), *operands, d, check="off", functional=False)


def compare(rows: list[Row], rates: dict[str, float] | None = None) -> Iterator[tuple[Row, Tiling, float]]:
    """Each row with its best tiling and the predicted microseconds of that."""
    for row in rows:
        times = {}
        for tiling in TILINGS[row.kind]:
            if tiling.bm <= row.m:
                # Cut tiles would leave unit flags set: the store clears those of the columns it copies.
                divides = row.m % tiling.bm == 0 and row.n % tiling.bn == 0
                used = tiling if divides else replace(tiling, unit_flag=False)
                report = time_gemm(row.kind, row.m, row.n, row.k, used)
                times[tiling] = report.predict(rates=rates).time_us
        best = min(times, key=lambda t: times[t])
        yield row, best, times[best]


def mean_error(pairs: list[tuple[float, float]]) -> float:
    """exp(mean |ln(predicted / published)|) - 1: the typical factor, symmetric for too fast and too slow."""
    return math.exp(sum(abs(math.log(p / q)) for p, q in pairs) / len(pairs)) - 1


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison as a Markdown table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kind", choices=sorted(TILINGS), help="only rows of this operand type")
    kind = parser.parse_args(arguments).kind
    used: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    print("| operands | M | N | K | tile | predicted us | published us | error | fitted on |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row, t, predicted in compare([r for r in dense_rows() if kind in (None, r.kind)]):
        used[row.fitted].append((predicted, row.latency_us))
        print(
            f"| {row.kind} | {row.m} | {row.n} | {row.k} | {t.bm} x {t.bn} x {t.bk} | {predicted:.1f} | {row.latency_us} "
            f"| {predicted / row.latency_us - 1:+.1%} | {'yes' if row.fitted else ''} |",
            flush=True,
        )
    for fitted, pairs in used.items():
        if pairs:
            print(
                f"\nmean error of the {len(pairs)} rows {'fitted on' if fitted else 'not used'}: {mean_error(pairs):.1%}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
