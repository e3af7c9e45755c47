"""simulated_device(): code written for an Ascend device runs unchanged and leaves nothing behind."""

from __future__ import annotations

import math
import sys
import threading

import pytest
import torch

tilelang = pytest.importorskip("tilelang")
import tilelang.ascend.language as T  # noqa: E402

from unikernels.backends.ascend.simulator import DeviceAssertError, simulated_device  # noqa: E402


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


def test_benchmarks_and_events_give_predicted_times():
    from tilelang.profiler import do_bench

    a, b = torch.ones(64, 64).bfloat16(), torch.ones(64, 64).bfloat16()
    with simulated_device() as device:
        kernel = matmul(64, 64, 64)
        kernel(a, b)
        expected = device.reports[0].time_us / 1e3
        start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
        start.record()
        kernel(a, b)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) == expected
        runs = len(device.reports)
        for backend in ("msprof", "event"):
            assert do_bench(lambda: kernel(a, b), backend=backend, _n_warmup=30, _n_repeat=100) == expected
        assert len(device.reports) == runs + 2  # the benchmarked function runs once
        assert device.reports[-1] is device.reports[1]  # and a known kernel is not simulated again for it
        profile = do_bench(lambda: kernel(a, b), backend="msprof_detail")
        assert profile.dur_us == pytest.approx(expected * 1e3)
        assert profile.tflops(1e9) == pytest.approx(1e9 / profile.dur_ns / 1e3)
        assert profile.gbps(1e6) == pytest.approx(1e6 / profile.dur_ns)
        assert 0 < profile.aic_mad < 1
        assert profile.aiv_total_cycles == 0
        assert do_bench(lambda: kernel(a, b), quantiles=[0.2, 0.8]) == [expected, expected]
        with pytest.warns(UserWarning, match="no simulated kernel"):
            assert math.isnan(do_bench(lambda: a + 1, backend="msprof"))


def test_the_profiler_of_a_kernel_compares_and_predicts():
    with simulated_device() as device:
        profiler = matmul(64, 64, 64).get_profiler()
        profiler.assert_allclose(lambda a, b: a.float() @ b.float().T, rtol=1e-2, atol=1e-2)
        assert profiler.do_bench() == device.reports[-1].time_us / 1e3


def test_sources_edited_by_a_callback_run_and_are_not_cached():
    import tvm_ffi
    from tilelang.ascend.callback import register_ascend_postproc

    a, b = torch.ones(64, 64).bfloat16(), torch.ones(64, 64).bfloat16()
    try:
        register_ascend_postproc(lambda code, target: "// edited\n" + code)
        with simulated_device():
            kernel = matmul(64, 64, 64)
            assert kernel.get_kernel_source().startswith("// edited")
            assert (kernel(a, b) == 64).all()
    finally:
        tvm_ffi.registry.remove_global_func("tilelang_callback_ascend_postproc")
    with simulated_device():
        assert "edited" not in matmul(64, 64, 64).get_kernel_source()


def test_the_device_answers_what_scripts_ask():
    with simulated_device():
        properties = torch.npu.get_device_properties(0)
        assert properties.vector_core_num == 2 * properties.cube_core_num
        assert torch.empty(3, device=torch.npu.current_device()).device.type == "cpu"
        assert torch.device(0).type == "cpu"
        from tilelang.carver.arch.driver import ascend_driver

        assert ascend_driver.get_num_cube_cores() == 32


def test_outputs_of_packed_types_are_allocated_as_torch_has_them():
    @T.prim_func
    def copy_fp4(src: T.Tensor((64,), T.float4_e2m1fn), dst: T.Tensor((64,), T.float4_e2m1fn)):
        with T.Kernel(1):
            staged = T.alloc_shared((64,), T.float4_e2m1fn)
            T.copy(src, staged)
            T.copy(staged, dst)

    codes = torch.arange(32, dtype=torch.uint8) * 7
    with simulated_device():
        out = tilelang.compile(copy_fp4, out_idx=-1, target="ascend")(codes.view(torch.float4_e2m1fn_x2))
    assert out.dtype == torch.float4_e2m1fn_x2
    assert torch.equal(out.view(torch.uint8), codes)


def test_an_error_inside_still_restores_everything():
    real = torch.device
    with pytest.raises(ZeroDivisionError), simulated_device():
        raise ZeroDivisionError
    assert torch.device is real
    assert torch.randn(2).device.type == "cpu"


def test_tuning_picks_by_predicted_time_and_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the tuner writes a log into the current folder

    @tilelang.autotune(configs=[{"block": 64}, {"block": 1024}], warmup=1, rep=2)
    @tilelang.jit(target="ascend", out_idx=[-1])
    def double(n, block=64):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(n // block) as core:
                a = T.alloc_shared((block,), "float32")
                T.copy(A[core * block : core * block + block], a)
                with T.SimtVF(threads=64):
                    for i in T.Parallel(block):
                        a[i] = a[i] * 2.0
                T.copy(a, B[core * block : core * block + block])

        return main

    with simulated_device():
        kernel = double(16384)
        x = torch.randn(16384, device="npu")
        assert torch.equal(kernel(x), x * 2)
        assert kernel.config == {"block": 1024}
        assert 0 < kernel.latency < 1
        assert double._tuner_cache
    assert not double._tuner_cache


def test_threads_started_inside_see_the_device():
    made = []
    with simulated_device():
        thread = threading.Thread(target=lambda: made.append(torch.zeros(2, device="npu")))
        thread.start()
        thread.join()
    assert made[0].device.type == "cpu"
