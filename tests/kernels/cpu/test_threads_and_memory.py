"""Threads and memory of the native kernels: fork, concurrent callers, repeatability, the bound on scratch memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from unikernels.backends.cpu import _native
from unikernels.backends.cpu.kernels.matmul import decode, matmul_nt, panel_bound_bytes
from unikernels.backends.cpu.kernels.relu_sum import weighted_relu_sum
from unikernels.scale_layouts import ScaleFormat
from unikernels.testing import assert_bitwise_equal

MX = (ScaleFormat.UE8M0X2_INT16, 1, 32)


@pytest.mark.parametrize("m", [1, 24])
def test_results_do_not_depend_on_threads(make_operand, m):
    a, b = make_operand("fp8", m, 512, *MX), make_operand("fp4", 600, 512, *MX)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for _ in range(3):
                results.append(torch.empty(m, 600))
                matmul_nt(a, b, results[-1])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert_bitwise_equal(result, results[0])


def test_several_python_threads_call_at_once(make_operand):
    problems = []
    for m in (1, 3, 17, 40):
        a, b = make_operand("fp8", m, 384, *MX), make_operand("fp8", 700, 384, *MX)
        expected = torch.empty(m, 700)
        matmul_nt(a, b, expected)
        problems.append((a, b, expected))
    failures: list[BaseException] = []

    def call(a, b, expected) -> None:
        try:
            for _ in range(10):
                out = torch.empty_like(expected)
                matmul_nt(a, b, out)
                assert_bitwise_equal(out, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=problem) for problem in problems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_gets_threads_of_its_own():
    # In a fresh process: forking pytest with its threads would be another test.
    code = """
        import os, torch
        from unikernels.backends.cpu.kernels.matmul import matmul_nt
        from unikernels.operations import Operand
        torch.set_num_threads(2)
        a = Operand(torch.ones(32, 512, dtype=torch.bfloat16), "bf16", 32, 512, True)
        b = Operand(torch.ones(512, 512, dtype=torch.bfloat16), "bf16", 512, 512, True)
        out = torch.empty(32, 512)
        matmul_nt(a, b, out)
        child = os.fork()
        out.zero_()
        for _ in range(3):
            matmul_nt(a, b, out)
        assert bool((out == 512).all())
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True, timeout=120)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no /proc on this system")
def test_kernels_run_on_the_threads_of_torch():
    """Threads of our own would wait for a core while those of torch spin after an operation."""
    if "libgomp.so.1" not in Path("/proc/self/maps").read_text():
        pytest.skip("torch does not run on GNU OpenMP here")
    code = """
        import os, torch
        from unikernels.backends.cpu.kernels.matmul import matmul_nt
        from unikernels.operations import Operand
        torch.set_num_threads(2)
        torch.ones(1 << 20).exp()
        before = set(os.listdir("/proc/self/task"))
        a = Operand(torch.ones(32, 512, dtype=torch.bfloat16), "bf16", 32, 512, True)
        b = Operand(torch.ones(512, 512, dtype=torch.bfloat16), "bf16", 512, 512, True)
        out = torch.empty(32, 512)
        matmul_nt(a, b, out)
        assert bool((out == 512).all())
        assert set(os.listdir("/proc/self/task")) == before
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True, timeout=120)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 4000, 2048), (700, 300, 2048), (1500, 64, 4096), (40, 100, 60000)])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("scales", [MX, (ScaleFormat.FP32, 1, 32)], ids=["int16", "float32"])
def test_scratch_memory_stays_within_its_bound(make_operand, m, n, k, scales, compute):
    a, b = make_operand("fp8", m, k, *scales), make_operand("fp4", n, k, *scales)
    out = torch.empty(m, n)
    _native.reset_peak_scratch_bytes()
    matmul_nt(a, b, out, compute=compute)
    peak = _native.peak_scratch_bytes()
    assert 0 < peak <= panel_bound_bytes(torch.get_num_threads())
    if m == 1500 and compute == "fp32":
        assert peak < 4 * m * k, "A as a whole was decoded; the bound was not tested"


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_resident_memory_stays_within_the_bound(compute):
    # An fp4 weight whose float32 values take 256 MiB; BLAS keeps a few MiB of its own.
    code = f"""
        import resource, torch
        from unikernels.backends.cpu.kernels.matmul import matmul_nt, panel_bound_bytes
        from unikernels.operations import Operand
        m, n, k = 49, 8192, 8192
        a = Operand(torch.ones(m, k, dtype=torch.float8_e4m3fn), "fp8", m, k, True)
        b = Operand(torch.full((n, k // 2), 0x22, dtype=torch.int8), "fp4", n, k, True)
        out = torch.empty(m, n, dtype=torch.bfloat16).zero_()
        small = Operand(b.data[:64], "fp4", 64, k, True)
        matmul_nt(a, small, out[:, :64], compute={compute!r})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        matmul_nt(a, b, out, compute={compute!r})
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert bool((out == k).all())
        assert grown <= panel_bound_bytes(torch.get_num_threads()) + (8 << 20), grown
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True, timeout=300)


def test_decode_splits_rows_among_threads_without_a_seam(make_operand):
    operand = make_operand("fp4", 1030, 130, *MX, k_major=False)
    assert_bitwise_equal(decode(operand), decode(operand, isa="portable"))


@pytest.mark.parametrize("columns", [1, 7, 64, 1500])
def test_weighted_relu_sum(isa, columns):
    generator = torch.Generator().manual_seed(3)
    dots = torch.randn(5, 6, columns + 3, generator=generator)[:, :, :columns]
    weights = torch.randn(6, 5, generator=generator).mT
    dots[2, 3, 0] = float("nan")
    out = torch.full((5, columns + 1), 7.0)
    weighted_relu_sum(dots, weights, out[:, :columns], isa=isa)
    expected = torch.einsum("sh,shn->sn", weights.double(), dots.double().relu())
    assert torch.equal(out[:, :columns].isnan(), expected.isnan())
    torch.testing.assert_close(out[:, :columns].double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert bool((out[:, columns] == 7.0).all())
