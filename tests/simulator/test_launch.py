"""simulate(): binding of arguments, errors of the host side, threads, seeds, launches without data."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from unikernels.backends.ascend.simulator import LaunchError, RaceError, launch
from unikernels.backends.ascend.simulator.lowering import Argument, DeviceFunction, Lowered
from unikernels.backends.ascend.simulator.rewrite import read_signatures, translate

SOURCE = """#include <tl_templates/ascend/common.h>
#include <tl_templates/ascend/debug.h>
extern "C" __global__ __vector__ void s_kernel(__gm__ float* X, __gm__ float* Y, float a, int32_t n, int8_t flag) {
  asc_init();
  for (int32_t i = block_idx; i < n; i += gridDim.x) { Y[i] = flag ? X[i] * a : X[i]; }
}
"""
KERNEL = Lowered(
    SOURCE,
    (
        Argument("X", "float32", True, ("n",)),
        Argument("Y", "float32", True, ("n",)),
        Argument("a", "float32", False),
        Argument("flag", "bool", False),
    ),
    (DeviceFunction("s_kernel", "min(n, 4)", (0,), {}),),
)


def run(*args, kernel=KERNEL, **kwargs):
    return launch.simulate(kernel, *args, **kwargs)


def test_positional_and_named_arguments_meet():
    x = torch.arange(10, dtype=torch.float32)
    for call in (
        lambda y: run(x, y, 3.0, True),
        lambda y: run(x, y, a=3.0, flag=1),
        lambda y: run(x, y, True, a=3.0),
        lambda y: run(a=3.0, flag=True, Y=y, X=x),
    ):
        y = torch.zeros(10)
        call(y)
        assert torch.equal(y, x * 3)


def test_empty_tensors_launch_nothing():
    report = run(torch.zeros(0), torch.zeros(0), 1.0, False)
    assert report.instruction_counts() == {}


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((torch.zeros(4),), {"a": 1.0, "flag": 0}, r"argument 'Y' is missing; the kernel takes \(X, Y, a, flag\)"),
        ((torch.zeros(4), torch.zeros(4), 1.0, 0, 5), {}, r"5 positional arguments given, but the kernel takes 4"),
        ((torch.zeros(4), torch.zeros(4), 1.0, 0), {"b": 2}, r"no argument named \['b'\]"),
        ((torch.zeros(4), torch.zeros(5), 1.0, 0), {}, r"'Y' has shape \(5,\), expected \(4,\) \(n\)"),
        ((torch.zeros(4), torch.zeros(4, dtype=torch.float64), 1.0, 0), {}, r"'Y' has dtype float64, expected float32"),
        ((torch.zeros(4, 1), torch.zeros(4), 1.0, 0), {}, r"'X' has shape \(4, 1\), expected 1 dimensions"),
        ((torch.zeros(8)[::2], torch.zeros(4), 1.0, 0), {}, r"'X' is not contiguous \(strides \(2,\)\); pass X\.contiguous\(\)"),
        (([1.0], torch.zeros(4), 1.0, 0), {}, r"'X' must be a torch tensor, got list"),
        ((torch.zeros(4, device="meta"), torch.zeros(4), 1.0, 0), {}, r"'X' is on meta; the simulator reads CPU tensors"),
        ((torch.zeros(4), torch.zeros(4), 1.0, 300), {}, r"scalar 'flag' = 300 does not fit int8_t"),
        ((torch.zeros(4), torch.zeros(4), 1.0, 0), {"check": "maybe"}, r"check must be 'on' or 'off', got 'maybe'"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(args, kwargs, text):
    with pytest.raises(LaunchError, match=text):
        run(*args, **kwargs)


def test_something_that_is_no_kernel_is_refused():
    with pytest.raises(LaunchError, match=r"takes a TileLang prim_func, a jit kernel or a prepared kernel, got int"):
        launch.simulate(3)


def test_declared_strides_are_honoured():
    strided = dataclasses.replace(
        KERNEL, arguments=(Argument("X", "float32", True, ("n",), ("sx",)), *KERNEL.arguments[1:])
    )
    run(torch.arange(8.0)[::2], y := torch.zeros(4), 1.0, False, kernel=strided)
    assert y[0] == 0.0


def test_packed_4_bit_tensors_give_their_logical_size():
    source = SOURCE.replace(
        "__gm__ float* X, __gm__ float* Y, float a, int32_t n, int8_t flag",
        "__gm__ float* Y, __gm__ uint8_t* X, int32_t n",
    )
    source = source.replace(
        "for (int32_t i = block_idx; i < n; i += gridDim.x) { Y[i] = flag ? X[i] * a : X[i]; }", "Y[0] = n;"
    )
    kernel = Lowered(
        source,
        (Argument("X", "float4_e2m1fn", True, ("4", "n")), Argument("Y", "float32", True, ("1",))),
        (DeviceFunction("s_kernel", "1", (), {}),),
    )
    run(torch.zeros(4, 32, dtype=torch.uint8), y := torch.zeros(1), kernel=kernel)
    assert y.item() == 64
    with pytest.raises(
        LaunchError, match=r"'X' has shape \(3, 32\), expected \(4, 64\) \(4, n, two values per byte along the last\)"
    ):
        run(torch.zeros(3, 32, dtype=torch.uint8), y, kernel=kernel)


def test_the_same_fault_is_reported_whatever_the_threads_do():
    broken = dataclasses.replace(
        KERNEL, source=SOURCE.replace("i += gridDim.x) {", "i += gridDim.x) { if (block_idx >= 1) X[n] = 0;")
    )
    for threads in (1, 2, 4):
        for _ in range(3):
            with pytest.raises(Exception, match="writes 4 bytes of GM outside every tensor") as caught:
                run(torch.zeros(64), torch.zeros(64), 1.0, True, kernel=broken, threads=threads)
            assert caught.value.block == 1


def test_scalar_programs_of_two_blocks_race_too():
    same = dataclasses.replace(KERNEL, source=SOURCE.replace("Y[i] = ", "Y[0] = "))
    with pytest.raises(RaceError, match=r"pipe S, scalar_access, line 5: writes GM tensor 'Y' \[0x0:0x4\].*two blocks"):
        run(torch.zeros(8), torch.zeros(8), 1.0, True, kernel=same)


def test_without_data_the_programs_still_run(run_ascend):
    body = """
      asc_set_gm2l1_nz_para(1, 1, 16, 0);
      for (int i = 0; i < 3; ++i)
        asc_copy_gm2l1_nd2nz((half*)0 + 256 * i, X, 32, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);
    """
    x = torch.ones(16, 16, dtype=torch.float16)
    report = run_ascend(body, {"X": x}, check="off", functional=False, memories=True)
    assert report.instruction_counts() == {"asc_copy_gm2l1_nd2nz": 3}
    assert not any(report.memories["L1"])
    with pytest.raises(LaunchError, match="pass check='off'"):
        run_ascend(body, {"X": x}, functional=False)


def test_memories_are_poisoned_again_for_every_launch(run_ascend):
    """Memories are reused from launch to launch; what a clean or a broken kernel left there must not be seen."""
    load = """
      asc_set_gm2l1_nz_para(1, 1, 16, 0);
      asc_copy_gm2l1_nd2nz((half*)0, X, 32, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);
    """
    x = torch.ones(16, 16, dtype=torch.float16)
    used = run_ascend(load, {"X": x}, memories=True).memories["L1"]
    assert used[:512] == x.numpy().tobytes()
    assert set(used[512:]) == {0xFF}
    with pytest.raises(RaceError, match="nothing orders it after"):
        run_ascend(load + "asc_copy_l12l0a((half*)0, (half*)0, 0, 0, 1, 1, 1, 1);", {"X": x})
    for memory in run_ascend("", {"X": x}, memories=True).memories.values():
        assert set(memory) == {0xFF}


def test_signatures_are_read_from_the_source():
    (signature,) = read_signatures(SOURCE)
    assert (signature.symbol, signature.kind) == ("s_kernel", "vector")
    assert [(p.name, p.ctype, p.pointer) for p in signature.parameters] == [
        ("X", "float", True), ("Y", "float", True), ("a", "float", False), ("n", "int32_t", False), ("flag", "int8_t", False),
    ]  # fmt: skip


def test_the_translation_keeps_line_numbers():
    source = (
        "#include <tl_templates/ascend/common.h>\n"
        "__simt_vf__ __launch_bounds__(32) inline void k_simt_vf_0(__ubuf__ float* u) {\n"
        "  u[((int32_t)threadIdx.x)] = 1.0f;\n}\n"
        'extern "C" __global__ __vector__ void k(__gm__ float* X) {\n'
        "  __ubuf__ float *u = (__ubuf__ float *)4096;\n"
        "  asc_vf_call<k_simt_vf_0>(cce::dim3(32), u);\n}\n"
    )
    lines = translate(source).text.splitlines()
    assert lines[2] == "  u[((int32_t)usim_thread.x)] = 1.0f;"
    assert lines[5] == "  __ubuf__ float *u = ((float*)(::usim::ub_base() + 4096));"
    assert lines[6] == '  ::usim::vf_call<k_simt_vf_0, 0>("k_simt_vf_0", cce::dim3(32), u);'
