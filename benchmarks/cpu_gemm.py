"""MX GEMMs of the CPU backend against torch: JSON lines with medians and ratios, all measured in this process.

The functions run in turn, so that each finds its weight in memory rather than in the caches, as in a model.
Run: python benchmarks/cpu_gemm.py
"""

from __future__ import annotations

import json
import statistics
import time

import torch

import unikernels as uk
from unikernels.operations.case_inputs import ScaleForm, quantised, randn

N, K, THREADS = 4096, 7168, 2
PAIRS = (("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp4"))


def interleaved_medians(functions: dict, repeats: int) -> dict[str, float]:
    """Return the median seconds of each function, run in turn so that drift of the machine meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(one[1:]) for name, one in times.items()}


def main() -> None:
    torch.set_num_threads(THREADS)
    uk.set_backend("cpu")
    for m in (1, 16, 512):
        generator = torch.Generator().manual_seed(0)
        x, y = randn(generator, m, K).bfloat16(), randn(generator, N, K).bfloat16()
        x8, y8 = x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn)
        one = torch.tensor(1.0)
        xf, yf = x.float(), y.float()
        d = torch.empty(m, N, dtype=torch.bfloat16)
        functions = {
            "torch_bf16": lambda x=x, y=y: x @ y.T,
            "torch_fp32": lambda x=xf, y=yf: x @ y.T,
            "scaled_mm": lambda x=x8, y=y8, one=one: torch._scaled_mm(x, y.T, one, one, out_dtype=torch.bfloat16),
        }
        for a_kind, b_kind in PAIRS:
            a = quantised(generator, a_kind, m, K, ScaleForm.INT16_MX)
            b = quantised(generator, b_kind, N, K, ScaleForm.INT16_MX)
            functions[f"{a_kind}x{b_kind}"] = lambda a=a, b=b, d=d: uk.fp8_fp4_gemm_nt(a, b, d, recipe=(1, 1, 32))
        medians = interleaved_medians(functions, repeats=3 if m == 512 else 9)
        for a_kind, b_kind in PAIRS:
            ours = medians[f"{a_kind}x{b_kind}"]
            print(
                json.dumps(
                    {
                        "dtype": f"{a_kind}x{b_kind}",
                        "m": m,
                        "n": N,
                        "k": K,
                        "threads": THREADS,
                        "cpu": torch.backends.cpu.get_cpu_capability(),
                        "median_ms": round(1e3 * ours, 3),
                        "gflops": round(2e-9 * m * N * K / ours, 1),
                        "x_torch_bf16": round(medians["torch_bf16"] / ours, 2),
                        "x_torch_fp32": round(medians["torch_fp32"] / ours, 2),
                        "x_scaled_mm": round(medians["scaled_mm"] / ours, 2),
                    }
                )
            )


if __name__ == "__main__":
    main()
