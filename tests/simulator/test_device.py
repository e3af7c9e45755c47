"""simulated_device(): code written for an Ascend device runs unchanged and leaves nothing behind."""

from __future__ import annotations

import sys

import pytest
import torch

tilelang = pytest.importorskip("tilelang")
import tilelang.ascend.language as T  # noqa: E402

from unikernels.backends.ascend.simulator import DeviceAssertError, LaunchError, simulated_device  # noqa: E402


@tilelang.jit(target="ascend", out_idx=[-1])
def matmul(m_size, n_size, k_size):
    @T.prim_func
    def main(
        A: T.Tensor((m_size, k_size), "bfloat16"),
        B: T.Tensor((n_size, k_size), "bfloat16"),
        C: T.Tensor((m_size, n_size), "float32"),
    ):
        with T.Kernel(m_size // 64) as core:
            a1 = T.alloc_l1((64, k_size), "bfloat16")
            b1 = T.alloc_l1((n_size, k_size), "bfloat16")
            c0 = T.alloc_l0c((64, n_size), "float32")
            T.copy(A[core * 64 : core * 64 + 64, :], a1)
            T.copy(B, b1)
            T.gemm(a1, b1, c0, transpose_B=True, clear_accum=True)
            T.copy(c0, C[core * 64 : core * 64 + 64, :])

    return main


@tilelang.jit(target="ascend")
def add(A, B):
    n = T.const("n")
    A: T.Tensor((n,), "float32")
    B: T.Tensor((n,), "float32")
    C = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, 512)) as core:
        a = T.alloc_shared((512,), "float32")
        b = T.alloc_shared((512,), "float32")
        T.copy(A[core * 512 : core * 512 + 512], a)
        T.copy(B[core * 512 : core * 512 + 512], b)
        with T.SimtVF(threads=128):
            for i in T.Parallel(512):
                a[i] = a[i] + b[i]
        T.copy(a, C[core * 512 : core * 512 + 512])
    return C


@tilelang.jit(target="ascend")
def guarded(A):
    n = T.const("n")
    A: T.Tensor((n,), "float32")
    with T.Kernel(1):
        a = T.alloc_shared((64,), "float32")
        T.copy(A[0:64], a)
        with T.SimtVF(threads=64):
            for i in T.Parallel(64):
                T.device_assert(a[i] < 5.0, "values stay below five")
                a[i] = a[i] * 2.0
        T.copy(a, A[0:64])


def client():
    """What somebody else's script does."""
    import torch_npu  # noqa: F401

    assert torch.npu.is_available()
    torch.npu.set_device(0)
    device = torch.device("npu")
    assert isinstance(device, torch.device)
    a = torch.randint(-4, 5, (128, 64), device=device).to(torch.bfloat16)
    b = torch.randint(-4, 5, (64, 64), device="npu:0").to("npu").bfloat16().npu()
    kernel = matmul(128, 64, 64)
    c = kernel(a, b)
    torch.npu.synchronize()
    assert torch.equal(c, a.float() @ b.float().T)
    assert "asc_mmad" in kernel.get_kernel_source() or "ascend_gemm_l1" in kernel.get_kernel_source()
    x, y = torch.randn(700, device="npu"), torch.randn(700).npu()
    assert torch.equal(add(x, y), x + y)
    return kernel


def test_a_client_runs_unchanged_and_leaves_no_trace():
    before = (torch.device, hasattr(torch, "npu"), "torch_npu" in sys.modules, hasattr(torch.Tensor, "npu"))
    with simulated_device(check="on") as device:
        client()
        assert len(device.reports) == 2
        assert device.reports[0].instruction_counts()["asc_mmad"] == 2
    assert before == (torch.device, hasattr(torch, "npu"), "torch_npu" in sys.modules, hasattr(torch.Tensor, "npu"))
    assert not matmul._kernel_cache
    assert not add._kernel_cache


def test_an_explicit_output_is_written_in_place():
    with simulated_device():
        a, b, c = torch.ones(64, 64).bfloat16(), torch.ones(64, 64).bfloat16(), torch.zeros(64, 64)
        assert matmul(64, 64, 64)(a, b, c) is None
        assert (c == 64).all()


def test_device_assertions_are_kept():
    values = torch.ones(64)
    with simulated_device():
        guarded(values)
        assert (values == 2).all()
        values[7] = 9.0
        with pytest.raises(DeviceAssertError):
            guarded(values)


def test_outside_nothing_is_simulated():
    with pytest.raises(Exception, match="bisheng"):
        matmul(64, 64, 64)


def test_wall_time_is_not_sold_as_device_time():
    with simulated_device(), pytest.raises(LaunchError, match="predicted time"):
        matmul(64, 64, 64).get_profiler()


def test_an_error_inside_still_restores_everything():
    real = torch.device
    with pytest.raises(ZeroDivisionError), simulated_device():
        raise ZeroDivisionError
    assert torch.device is real
    assert torch.randn(2).device.type == "cpu"
