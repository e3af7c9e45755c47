"""Speed of the Ascend simulator: JSON lines with medians, all measured in this process with two threads.

Kernels run with checks off and on in turn, compiled beforehand; `cpu_ms` is the processor time of all threads, which
other load on the machine disturbs less than the wall time. Compiling is timed in an empty cache, and a launch of a kernel
that does nothing shows what every call costs.
Run: python benchmarks/simulator.py [name ...]
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilelang.ascend.language as T
import torch

from unikernels.backends.ascend.simulator import compiler, launch, plain_gemm, simulate
from unikernels.backends.ascend.simulator.cache import Cache

THREADS = 2


def simt_elementwise(rows: int, columns: int, dtype: str = "float32", block: int = 16) -> Any:
    """Y = relu(2 X + 1), computed in float32 by one thread per element."""

    @T.prim_func
    def k(X: T.Tensor((rows, columns), dtype), Y: T.Tensor((rows, columns), dtype)):
        with T.Kernel(rows // block) as bx:
            x = T.alloc_shared((block, columns), dtype)
            T.copy(X[bx * block : (bx + 1) * block, :], x)
            with T.SimtVF(threads=256):
                for i, j in T.Parallel(block, columns):
                    x[i, j] = T.cast(T.max(T.cast(x[i, j], "float32") * 2.0 + 1.0, 0.0), dtype)
            T.copy(x, Y[bx * block : (bx + 1) * block, :])

    return k


def simd_quantise(rows: int, columns: int, block: int = 16) -> Any:
    """Y = fp8 of X divided by 1/448 of the largest magnitude of its row, on 256-byte registers."""

    @T.prim_func
    def k(
        X: T.Tensor((rows, columns), "float32"),
        Y: T.Tensor((rows, columns), "float8_e4m3fn"),
        S: T.Tensor((rows, 64), "float32"),
    ):
        with T.Kernel(rows // block) as bx:
            x = T.alloc_shared((block, columns), "float32")
            y = T.alloc_shared((block, columns), "float8_e4m3fn")
            s = T.alloc_shared((block, 64), "float32")
            T.copy(X[bx * block : (bx + 1) * block, :], x)
            with T.SimdVF():
                for r in T.serial(block):
                    m = T.simd.alloc_var("float32")
                    m = T.simd.vdup(0.0, "float32")
                    for j in T.serial(columns // 64):
                        m = T.simd.vmax(m, T.simd.vabs(T.simd.vld(x[r, j * 64])))
                    scale = T.simd.vmuls(T.simd.vdupv(T.simd.vcmax(m)), 1.0 / 448.0)
                    T.simd.vsts(s[r, 0], scale)
                    for j in T.serial(columns // 64):
                        q = T.simd.vcvt(T.simd.vdiv(T.simd.vld(x[r, j * 64]), scale), "float8_e4m3fn")
                        T.simd.vsts(y[r, j * 64], q, dist="PK4_B32")
            T.copy(y, Y[bx * block : (bx + 1) * block, :])
            T.copy(s, S[bx * block : (bx + 1) * block, :])

    return k


def simd_scale(rows: int, columns: int, block: int = 16) -> Any:
    """Y = relu(2 X + 1) on 256-byte registers."""

    @T.prim_func
    def k(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows // block) as bx:
            x = T.alloc_shared((block, columns), "float32")
            T.copy(X[bx * block : (bx + 1) * block, :], x)
            with T.SimdVF():
                for r in T.serial(block):
                    for j in T.serial(columns // 64):
                        v = T.simd.vadds(T.simd.vmuls(T.simd.vld(x[r, j * 64]), 2.0), 1.0)
                        T.simd.vsts(x[r, j * 64], T.simd.vmaxs(v, 0.0))
            T.copy(x, Y[bx * block : (bx + 1) * block, :])

    return k


def copy_one_tile() -> Any:
    """A kernel of one block that copies one tile: the cost of a launch."""

    @T.prim_func
    def k(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1) as _bx:
            x = T.alloc_shared((16, 16), "float32")
            T.copy(X, x)
            T.copy(x, Y)

    return k


def example(name: str) -> Callable[..., Any]:
    """Return a kernel factory of examples/simulate_kernels.py."""
    folder = str(Path(__file__).parents[1] / "examples")
    if folder not in sys.path:
        sys.path.append(folder)
    factory: Callable[..., Any] = getattr(importlib.import_module("simulate_kernels"), name)
    return factory


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel with its tensors, the work of one run, and its target if it has one."""

    kernel: Any
    tensors: tuple[torch.Tensor, ...]
    work: float
    unit: str  # of work per second, divided by a thousand million or a million
    target: float | None = None
    pass_configs: dict[str, Any] | None = None
    repeats: int = 5


def fp8(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)


def scales(k: int, rows: int, seed: int) -> torch.Tensor:
    codes = torch.randint(120, 134, (k // 64, rows, 2), generator=torch.Generator().manual_seed(seed))
    return codes.to(torch.uint8).view(torch.int16)[..., 0].contiguous()


def cases() -> dict[str, Callable[[], Case]]:
    """Every kernel by name; tensors are made when a case is run."""

    def bf16() -> Case:
        m, n, k = 1024, 4096, 7168
        a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
        d = torch.empty(m, n, dtype=torch.bfloat16)
        kernel = plain_gemm.bf16_gemm(plain_gemm.Tiling(128, 256, 256, 64))
        return Case(kernel, (a, b, d), 2e-9 * m * n * k, "GFLOP/s", 150)

    def mx_fp8() -> Case:
        m, n, k = 256, 4096, 7168
        d = torch.empty(m, n, dtype=torch.bfloat16)
        kernel = plain_gemm.mx_gemm(plain_gemm.Tiling(128, 256, 256, 128), "fp8")
        tensors = (fp8(m, k, 0), fp8(n, k, 1), scales(k, m, 2), scales(k, n, 3), d)
        return Case(kernel, tensors, 2e-9 * m * n * k, "GFLOP/s", 120)

    def rows(
        make: Callable[[int, int], Any], target: float | None, *more: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> Case:
        x = torch.randn(8192, 1024).to(dtype)
        out = more or (torch.empty_like(x),)
        return Case(make(*x.shape), (x, *out), 1e-6 * x.numel(), "M elements/s", target)

    def quantised() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(8192, 1024, dtype=torch.float8_e4m3fn), torch.empty(8192, 64)

    return {
        "bf16_gemm": bf16,
        "mx_fp8_gemm": mx_fp8,
        "simt_elementwise": lambda: rows(simt_elementwise, 80),
        "simt_elementwise_bf16": lambda: rows(
            lambda m, n: simt_elementwise(m, n, "bfloat16"), 80, dtype=torch.bfloat16
        ),
        "simt_rms_norm": lambda: rows(example("rms_norm"), None, torch.randn(1024), torch.empty(8192, 1024)),
        "simd_scale": lambda: rows(simd_scale, None),
        "simd_quantise": lambda: rows(simd_quantise, None, *quantised()),
    }


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of one call, compilers it starts included."""

    def processor() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    wall, cpu = time.perf_counter(), processor()
    function()
    return time.perf_counter() - wall, processor() - cpu


def run_case(name: str, case: Case) -> None:
    prepared = launch.prepare(case.kernel, case.pass_configs)
    times: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
    for _ in range(case.repeats + 1):
        for check, measured in times.items():
            measured.append(timed(lambda c=check: simulate(prepared, *case.tensors, check=c, threads=THREADS)))
    wall = {check: statistics.median(t[0] for t in measured[1:]) for check, measured in times.items()}
    cpu = {check: statistics.median(t[1] for t in measured[1:]) for check, measured in times.items()}
    report(
        name,
        median_ms=1e3 * wall["off"],
        fastest_ms=1e3 * min(t[0] for t in times["off"][1:]),
        cpu_ms=1e3 * cpu["off"],
        rate=case.work / wall["off"],
        cpu_rate=THREADS * case.work / cpu["off"],
        unit=case.unit,
        target=case.target,
        checked_median_ms=1e3 * wall["on"],
        checked_cpu_ms=1e3 * cpu["on"],
        checked_ratio=wall["on"] / wall["off"],
        checked_cpu_ratio=cpu["on"] / cpu["off"],
    )


def run_compile(name: str, case: Case, repeats: int = 5) -> None:
    """Seconds to compile a kernel once its precompiled headers exist, and with making them."""
    prepared = launch.prepare(case.kernel, case.pass_configs)
    translation = prepared.translation
    for check in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            cache = Cache(Path(folder))

            def compiled(extra: str, check: bool = check, cache: Cache = cache) -> Path:
                return compiler.compile_kernel(
                    translation.text + extra, translation.signatures[0].symbol, check=check, simd=translation.uses_simd,
                    saturate=False, templates=launch.template_folder(), cache=cache,
                )  # fmt: skip

            first = timed(lambda: compiled(""))[0]
            again = [timed(lambda i=i: compiled(f"// {i}\n")) for i in range(repeats)]
        wall, cpu = statistics.median(t[0] for t in again), statistics.median(t[1] for t in again)
        report(
            f"compile_{name}", check=check, median_ms=1e3 * wall, fastest_ms=1e3 * min(t[0] for t in again),
            cpu_ms=1e3 * cpu, first_ms=1e3 * first, target_ms=500,
        )  # fmt: skip


def run_launch(repeats: int = 200) -> None:
    x, y = torch.randn(16, 16), torch.empty(16, 16)
    prepared = launch.prepare(copy_one_tile())
    for check in ("off", "on"):
        times = [timed(lambda c=check: simulate(prepared, x, y, check=c)) for _ in range(repeats)][1:]
        wall, cpu = statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)
        report(
            "launch", check=check == "on", median_ms=1e3 * wall, fastest_ms=1e3 * min(t[0] for t in times),
            cpu_ms=1e3 * cpu,
        )  # fmt: skip


def report(name: str, **values: Any) -> None:
    rounded = {k: round(v, 3 if v < 100 else 1) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"name": name, "threads": THREADS, **rounded}), flush=True)


def main() -> None:
    chosen = sys.argv[1:]
    torch.manual_seed(0)
    for name, make in cases().items():
        if chosen and not any(c in (name, f"compile_{name}") for c in chosen):
            continue
        case = make()
        if not chosen or name in chosen:
            run_case(name, case)
        if not chosen or f"compile_{name}" in chosen:
            run_compile(name, case)
    if not chosen or "launch" in chosen:
        run_launch()


if __name__ == "__main__":
    main()
