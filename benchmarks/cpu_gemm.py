"""MX GEMMs of the CPU backend against torch: JSON lines with fastest times and ratios, all measured in this process.

The functions run in turn, so that each finds its weight in memory rather than in the caches, as in a model.
Run: python benchmarks/cpu_gemm.py [--threads 2] [--repeats 15] [--write]    (--write fills the table of docs/benchmarks.md)
With one thread processor time is measured, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

import unikernels as uk
from unikernels.backends.cpu import _native
from unikernels.operations.case_inputs import ScaleForm, quantised, randn

N, K = 4096, 7168
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 512, 1024)
PAIRS = (("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp4"))
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_COLUMNS = ("x torch bf16 matmul", "x torch fp32 matmul", "x `torch._scaled_mm` fp8")


def fastest(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least seconds of each function, run in turn so that drift of the machine meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = clock()
            function()
            times[name].append(clock() - start)
    return {name: min(one[1:]) for name, one in times.items()}


def contenders(m: int) -> dict[str, Callable[[], object]]:
    """Return torch's products and ours for one number of rows; the weights are shared by all sizes of a process."""
    generator = torch.Generator().manual_seed(0)
    x, y = randn(generator, m, K).bfloat16(), randn(generator, N, K).bfloat16()
    x8, y8 = x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn)
    xf, yf, one = x.float(), y.float(), torch.tensor(1.0)
    d = torch.empty(m, N, dtype=torch.bfloat16)
    functions: dict[str, Callable[[], object]] = {
        "torch_bf16": lambda: x @ y.T,
        "torch_fp32": lambda: xf @ yf.T,
        "scaled_mm": lambda: torch._scaled_mm(x8, y8.T, one, one, out_dtype=torch.bfloat16),
    }
    for a_kind, b_kind in PAIRS:
        a = quantised(generator, a_kind, m, K, ScaleForm.INT16_MX)
        b = quantised(generator, b_kind, N, K, ScaleForm.INT16_MX)
        functions[f"{a_kind}x{b_kind}"] = lambda a=a, b=b: uk.fp8_fp4_gemm_nt(a, b, d, recipe=(1, 1, 32))
    a = quantised(generator, "fp8", m, K, ScaleForm.FP32_BLOCK)
    b = quantised(generator, "fp8", N, K, ScaleForm.FP32_BLOCK, gran_mn=128)
    functions["fp8xfp8, float32 scales"] = lambda: uk.fp8_gemm_nt(a, b, d, recipe=(1, 128, 128))
    return functions


def measure(m: int, repeats: int) -> list[dict]:
    """Return one record per kind of operands."""
    seconds = fastest(contenders(m), max(3, repeats // 3) if m >= 128 else repeats)
    torch_names = ("torch_bf16", "torch_fp32", "scaled_mm")
    return [
        {
            "dtype": name,
            "m": m,
            "n": N,
            "k": K,
            "threads": torch.get_num_threads(),
            "isa": _native.isa_variants()[-1],
            "torch_cpu": torch.backends.cpu.get_cpu_capability(),
            "min_ms": round(1e3 * ours, 3),
            "gflops": round(2e-9 * m * N * K / ours, 1),
            **{f"x_{other}": round(seconds[other] / ours, 2) for other in torch_names},
        }
        for name, ours in seconds.items()
        if name not in torch_names
    ]


def table(records: list[dict]) -> str:
    """Return the records as a Markdown table under a line that says how they were measured."""
    threads = torch.get_num_threads()
    clock = "processor time of one thread" if threads == 1 else f"{threads} threads"
    lines = [f"Fastest runs, {clock}.", ""]
    lines += [f"| M | operands | ms | GFLOP/s | {' | '.join(_COLUMNS)} |", "|---|---|---|---|---|---|---|"]
    for one in records:
        ratios = f"{one['x_torch_bf16']:.2f} | {one['x_torch_fp32']:.2f} | {one['x_scaled_mm']:.1f}"
        lines.append(f"| {one['m']} | {one['dtype']} | {one['min_ms']:.1f} | {one['gflops']:.0f} | {ratios} |")
    return "\n".join(lines)


def write(records: list[dict]) -> None:
    """Replace the table of this instruction set in docs/benchmarks.md."""
    begin, end = f"<!-- cpu_gemm.py: {_native.isa_variants()[-1]} -->", "<!-- end of table -->"
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    if not found:
        raise SystemExit(f"{PAGE} has no place for this instruction set: add the lines {begin} and {end}")
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n\n{table(records)}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    uk.set_backend("cpu")
    records = []
    for m in SIZES:
        for record in measure(m, options.repeats):
            records.append(record)
            print(json.dumps(record), flush=True)
    if options.write:
        write(records)


if __name__ == "__main__":
    main()
