"""Three Ascend kernels written in TileLang, run on this machine's CPU by the simulator.

Each kernel is simulated with all checks on, compared exactly with torch, drawn as a timeline, and then broken on
purpose to show that the fault is caught. Nothing but TileLang and a C++ compiler is needed::

    pip install 'unikernels[ascend,report]'
    python examples/simulate_kernels.py --out timelines
"""

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

import tilelang.ascend.language as T
import torch

from unikernels.backends.ascend.simulator import KernelFaultError, prepare, simulate


def gemm_relu(m_size: int, n_size: int, k_size: int, cores: int = 8) -> Any:
    """D = relu(A @ B.T): a persistent, double-buffered bf16 GEMM on the cube cores, ReLU on the vector cores."""
    bm, bn, bk = 128, 128, 128
    tiles_n, tiles = n_size // bn, (m_size // bm) * (n_size // bn)

    @T.prim_func
    def gemm_relu_kernel(
        A: T.Tensor((m_size, k_size), "bfloat16"),
        B: T.Tensor((n_size, k_size), "bfloat16"),
        D: T.Tensor((m_size, n_size), "float32"),
    ):
        with T.Kernel(cores) as core:
            a1 = T.alloc_l1((bm, bk), "bfloat16")
            b1 = T.alloc_l1((bn, bk), "bfloat16")
            c0 = T.alloc_l0c((bm, bn), "float32")
            tile = T.alloc_shared((bm // 2, bn), "float32")
            T.annotate_buffer_versions({a1: 2, b1: 2, c0: 1, tile: 1})
            for step in range(T.ceildiv(tiles - core, cores)):
                m = T.alloc_var("int32")
                n = T.alloc_var("int32")
                m = (step * cores + core) // tiles_n * bm
                n = (step * cores + core) % tiles_n * bn
                for k in T.Pipelined(k_size // bk, num_stages=2):
                    with T.Task():
                        T.copy(A[m : m + bm, k * bk : k * bk + bk], a1)
                        T.copy(B[n : n + bn, k * bk : k * bk + bk], b1)
                    T.gemm(a1, b1, c0, transpose_B=True, clear_accum=(k == 0))
                T.dual_copy(c0, tile)
                with T.SimtVF(threads=256):
                    for i, j in T.Parallel(bm // 2, bn):
                        tile[i, j] = T.max(tile[i, j], 0)
                T.dual_copy(tile, D[m : m + bm, n : n + bn])

    return gemm_relu_kernel


def mx_gemm(m_size: int, n_size: int, k_size: int, cores: int = 8) -> Any:
    """D = (A * SA) @ (B * SB).T with one power-of-two scale per 32 elements of K, fp8 operands."""
    bm, bn, bk = 128, 128, 256
    pairs = bk // 64
    tiles_n, tiles = n_size // bn, (m_size // bm) * (n_size // bn)

    @T.prim_func
    def mx_gemm_kernel(
        A: T.Tensor((m_size, k_size), "float8_e4m3fn"),
        B: T.Tensor((n_size, k_size), "float8_e4m3fn"),
        SA: T.Tensor((k_size // 64, m_size), "int16"),
        SB: T.Tensor((k_size // 64, n_size), "int16"),
        D: T.Tensor((m_size, n_size), "bfloat16"),
    ):
        with T.Kernel(cores) as core:
            a1 = T.alloc_l1((bm, bk), "float8_e4m3fn")
            b1 = T.alloc_l1((bn, bk), "float8_e4m3fn")
            sa1 = T.alloc_l1((bm, pairs), "int16")
            sb1 = T.alloc_l1((bn, pairs), "int16")
            c0 = T.alloc_l0c((bm, bn), "float32")
            T.annotate_buffer_versions({a1: 2, b1: 2, sa1: 2, sb1: 2, c0: 1})
            for step in range(T.ceildiv(tiles - core, cores)):
                m = T.alloc_var("int32")
                n = T.alloc_var("int32")
                m = (step * cores + core) // tiles_n * bm
                n = (step * cores + core) % tiles_n * bn
                for k in T.Pipelined(k_size // bk, num_stages=2):
                    with T.Task():
                        T.copy(A[m : m + bm, k * bk : k * bk + bk], a1)
                        T.copy(B[n : n + bn, k * bk : k * bk + bk], b1)
                        T.copy(SA[k * pairs : (k + 1) * pairs, m : m + bm], sa1, transpose=True)
                        T.copy(SB[k * pairs : (k + 1) * pairs, n : n + bn], sb1, transpose=True)
                    T.gemm_blockscaled(a1, b1, c0, sa1, sb1, transpose_B=True, clear_accum=(k == 0))
                T.copy(c0, D[m : m + bm, n : n + bn])

    return mx_gemm_kernel


def rms_norm(rows: int, columns: int, block: int = 8) -> Any:
    """Y = X * rsqrt(mean(X^2, -1) + 1e-6) * W, one group of threads per block of rows."""

    @T.prim_func
    def rms_norm_kernel(
        X: T.Tensor((rows, columns), "float32"),
        W: T.Tensor((columns,), "float32"),
        Y: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(rows // block) as core:
            x = T.alloc_shared((block, columns), "float32")
            squares = T.alloc_shared((block, columns), "float32")
            total = T.alloc_shared((block,), "float32")
            w = T.alloc_shared((columns,), "float32")
            T.copy(X[core * block : (core + 1) * block, :], x)
            T.copy(W, w)
            with T.SimtVF(threads=256):
                for i, j in T.Parallel(block, columns):
                    squares[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(squares, total, dim=1)
                for i, j in T.Parallel(block, columns):
                    x[i, j] = x[i, j] * T.rsqrt(total[i] / columns + 1e-6) * w[j]
            T.copy(x, Y[core * block : (core + 1) * block, :])

    return rms_norm_kernel


@dataclasses.dataclass
class Demo:
    """A kernel, its tensors (outputs last), the expected output, and text edits that break it."""

    name: str
    kernel: Any
    tensors: list[torch.Tensor]
    expected: torch.Tensor
    faults: dict[str, tuple[str, str]]  # what is broken -> (pattern in the generated source, replacement)


def scale_factors(packed: torch.Tensor) -> torch.Tensor:
    """[K/64, MN] pairs of exponents as one factor per element of K: [MN, K]."""
    codes = packed.view(torch.uint8).reshape(*packed.shape, 2).permute(1, 0, 2).reshape(packed.shape[1], -1)
    return torch.exp2(codes.float() - 127).repeat_interleave(32, 1)


def demos() -> list[Demo]:
    """The three kernels on small integers, for which every float32 sum is exact in any order: results equal torch's."""
    torch.manual_seed(0)
    m, n, k = 256, 512, 512
    a, b = (torch.randint(-4, 5, (r, k)).float() for r in (m, n))
    sa, sb = (torch.randint(126, 129, (k // 64, r, 2), dtype=torch.uint8).view(torch.int16).squeeze(-1) for r in (m, n))
    x, w = torch.randint(-4, 5, (64, 1024)).float(), torch.randn(1024)
    normalised = x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6) * w
    fp8 = torch.float8_e4m3fn
    return [
        Demo(
            "bf16 GEMM with ReLU",
            gemm_relu(m, n, k),
            [a.bfloat16(), b.bfloat16(), torch.empty(m, n)],
            (a @ b.T).relu(),
            {
                "the vector cores do not wait for the cube": (r"asc_sync_intra_wait\(PIPE_V, 0\);", ""),
                "loads are not waited for": (r"asc_sync_wait\(PIPE_MTE2, PIPE_MTE1,[^;]*;", ""),
                "a load runs past the end of A": (r"&\(A\[", "&(A[100000 + "),
            },
        ),
        Demo(
            "MX fp8 GEMM",
            mx_gemm(m, n, k),
            [a.to(fp8), b.to(fp8), sa, sb, torch.empty(m, n, dtype=torch.bfloat16)],
            ((a * scale_factors(sa)) @ (b * scale_factors(sb)).T).bfloat16(),
            {
                "a scale slot is never loaded": (
                    r"ascend_blockscaled_gemm_l1<128, 256, 128, (\d+)",
                    r"usim_without_scales<128, 256, 128, \1",
                ),
                "the result is stored before it is complete": (r"asc_sync_wait\(PIPE_M, PIPE_FIX,[^;]*;", ""),
            },
        ),
        Demo(
            "SIMT RMSNorm",
            rms_norm(64, 1024),
            [x, w, torch.empty(64, 1024)],
            normalised,
            {
                "the store does not wait for the threads": (r"asc_sync_wait\(PIPE_V, PIPE_MTE3,[^;]*;", ""),
                "W is only half loaded": (r"(asc_copy_gm2ub_align\([^;]*W\[0\][^;]*, 1, )4096", r"\g<1>2048"),
            },
        ),
    ]


def broken(kernel: Any, pattern: str, replacement: str) -> Any:
    """The kernel with one thing in its generated source changed."""
    prepared = prepare(kernel)
    source, count = re.subn(pattern, replacement, prepared.lowered.source)
    if count == 0:
        raise ValueError(f"the generated source has no {pattern!r}")
    if "usim_without_scales" in source:  # TileLang's template, with the load of B's scales left out
        template = re.search(r"template <int M, int K[^>]*SF_NZ_STRIDE.*", _gemm_template(), re.S)
        assert template is not None
        copy = template.group(0).replace("ascend_blockscaled_gemm_l1", "usim_without_scales")
        copy = re.sub(r"asc_copy_l12l0b_mx\([^;]*;", "", copy)
        source = source.replace(
            "#include <tl_templates/ascend/gemm.h>\n", "#include <tl_templates/ascend/gemm.h>\n" + copy
        )
    return dataclasses.replace(prepared.lowered, source=source)


def _gemm_template() -> str:
    from unikernels.backends.ascend.simulator.lowering import template_folder

    return (template_folder() / "tl_templates/ascend/gemm.h").read_text()


def run(demo: Demo, out: Path | None) -> None:
    """Simulate one kernel, compare, draw, and break it."""
    print(f"\n== {demo.name}")
    report = simulate(demo.kernel, *demo.tensors, check="on")
    result = demo.tensors[-1]
    assert torch.equal(result, demo.expected), "the result differs from torch"
    print("   equal to torch, bit for bit; no hazards")
    print(report)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        stem = out / demo.name.replace(" ", "_")
        report.timeline(stem.with_suffix(".png"))
        report.trace(stem.with_suffix(".json"))
        print(f"   timeline: {stem}.png, trace for ui.perfetto.dev: {stem}.json")
    for what, (pattern, replacement) in demo.faults.items():
        try:
            simulate(broken(demo.kernel, pattern, replacement), *(t.clone() for t in demo.tensors), check="on")
        except KernelFaultError as fault:
            print(f"   caught ({what}): {type(fault).__name__}: {str(fault)[:220]}")
        else:
            raise AssertionError(f"{demo.name}: not caught: {what}")


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("timelines"), help="folder for pictures and traces")
    out = parser.parse_args().out
    for demo in demos():
        run(demo, out)


if __name__ == "__main__":
    main()
