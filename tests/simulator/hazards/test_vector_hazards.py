"""Hazards of vector functions: order against copies, threads of one function, uninitialised data, UB limits."""

from __future__ import annotations

import pytest
import torch

from unikernels.backends.ascend.simulator import (
    BarrierError,
    CapacityError,
    DeviceAssertError,
    MisalignedError,
    OutOfBoundsError,
    RaceError,
    UnimplementedBuiltinError,
    UninitialisedError,
)


def function(body, parameters="__ubuf__ float* u, __gm__ float* g"):
    return f"__simt_vf__ __launch_bounds__(64) inline void f({parameters}) {{\n{body}\n}}\n"


LOAD = "asc_copy_gm2ub_align((__ubuf__ uint8_t*)u, (uint8_t*)X, 1, {load}, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);"
STORE = "asc_copy_ub2gm_align((uint8_t*)Y, (__ubuf__ uint8_t*)u, 1, {store}, static_cast<asc_store_l2_cache_mode>(0), 0, 0);"


def event(src, dst, id_=0):
    return f"asc_sync_notify(PIPE_{src}, PIPE_{dst}, static_cast<event_t>({id_})); asc_sync_wait(PIPE_{src}, PIPE_{dst}, static_cast<event_t>({id_}));"


def body(load=256, store=256, before=None, after=None, call="asc_vf_call<f>(cce::dim3(64), u, Y);"):
    return "\n".join(
        [
            "__ubuf__ float *u = (__ubuf__ float *)0;",
            LOAD.format(load=load),
            event("MTE2", "V") if before is None else before,
            call,
            event("V", "MTE3") if after is None else after,
            STORE.format(store=store),
        ]
    )


DOUBLE = function("u[threadIdx.x] = u[threadIdx.x] * 2.0f;")


def tensors():
    return {"X": torch.arange(64, dtype=torch.float32), "Y": torch.zeros(64)}


def test_the_clean_kernel_is_exact(run_ascend):
    for seed in (None, 3):
        t = tensors()
        run_ascend(body(), t, kind="vector", functions=DOUBLE, seed=seed)
        assert torch.equal(t["Y"], t["X"] * 2)


def test_a_function_must_wait_for_its_data(run_ascend):
    with pytest.raises(
        RaceError,
        match=r"pipe V, asc_vf_call, line \d+: reads UB of AIV0\[0x0:0x100\].*pipe MTE2 \(asc_copy_gm2ub_align",
    ):
        run_ascend(body(before=""), tensors(), kind="vector", functions=DOUBLE)


def test_a_store_must_wait_for_the_function(run_ascend):
    with pytest.raises(
        RaceError,
        match=r"pipe MTE3, asc_copy_ub2gm_align.*earlier write of UB of AIV0\[0x0:0x100\].*pipe V \(asc_vf_call",
    ):
        run_ascend(body(after=""), tensors(), kind="vector", functions=DOUBLE)


def test_the_scalar_program_must_wait_too(run_ascend):
    peek = "if (u[3] == 6.0f) { Y[0] = 1.0f; }"
    clean = body(call="asc_vf_call<f>(cce::dim3(64), u, Y);" + event("V", "S", 1) + peek, after="", store=0)
    run_ascend(clean, tensors(), kind="vector", functions=DOUBLE)
    with pytest.raises(RaceError, match=r"pipe S, scalar_access, line \d+: reads UB of AIV0\[0xc:0x10\]"):
        run_ascend(
            body(call="asc_vf_call<f>(cce::dim3(64), u, Y);" + peek, after="", store=0),
            tensors(),
            kind="vector",
            functions=DOUBLE,
        )


REVERSE = """
  float v = u[threadIdx.x];
  {barrier}
  u[63 - threadIdx.x] = v;
"""


def test_threads_need_a_barrier_between_reading_and_writing(run_ascend):
    t = tensors()
    run_ascend(body(), t, kind="vector", functions=function(REVERSE.format(barrier="asc_syncthreads();")))
    assert torch.equal(t["Y"], t["X"].flip(0))
    with pytest.raises(
        RaceError,
        match=r"thread \d+ of f (reads|writes) UB byte \d+, which thread \d+ (reads|writes) with no asc_syncthreads between",
    ):
        run_ascend(body(), tensors(), kind="vector", functions=function(REVERSE.format(barrier="")))


def test_threads_may_store_the_same_value_twice(run_ascend):
    run_ascend(body(store=4), tensors(), kind="vector", functions=function("u[0] = 5.0f;"))
    with pytest.raises(RaceError, match=r"which thread 0 also writes with another value"):
        run_ascend(body(store=4), tensors(), kind="vector", functions=function("u[0] = (float)threadIdx.x;"))


def test_every_thread_must_reach_a_barrier(run_ascend):
    with pytest.raises(BarrierError, match=r"waits in asc_syncthreads, but thread \d+ has returned"):
        run_ascend(body(), tensors(), kind="vector", functions=function("if (threadIdx.x < 40) asc_syncthreads();"))
    run_ascend(body(), tensors(), kind="vector", functions=function("asc_syncthreads(); if (threadIdx.x < 40) return;"))


def test_a_tail_that_is_computed_and_dropped_is_no_error(run_ascend):
    # 40 of 64 elements are loaded; all are doubled; 40 are stored.
    t = tensors()
    run_ascend(body(load=160, store=160), t, kind="vector", functions=DOUBLE)
    assert torch.equal(t["Y"][:40], t["X"][:40] * 2)
    with pytest.raises(
        UninitialisedError,
        match=r"stores UB byte 160 to byte 160 of tensor 'Y', but its value depends on uninitialised data; first seen when .*asc_vf_call.*read UB of AIV0\[0xa0:0xa4\]",
    ):
        run_ascend(body(load=160, store=164), tensors(), kind="vector", functions=DOUBLE)


def test_a_reduction_over_unloaded_elements_is_reported(run_ascend):
    total = function(
        "asc_syncthreads(); if (threadIdx.x == 0) { float s = 0; for (int i = 0; i < 64; ++i) s += u[i]; u[0] = s; }"
    )
    t = tensors()
    run_ascend(body(store=4), t, kind="vector", functions=total)
    assert t["Y"][0] == t["X"].sum()
    with pytest.raises(UninitialisedError, match="stores UB byte 0"):
        run_ascend(body(load=128, store=4), tensors(), kind="vector", functions=total)


def test_uninitialised_data_may_not_reach_gm_directly(run_ascend):
    direct = function("g[threadIdx.x] = u[threadIdx.x];")
    with pytest.raises(UninitialisedError, match="f stores a value to GM that depends on uninitialised UB bytes"):
        run_ascend(body(load=128, store=0), tensors(), kind="vector", functions=direct)
    t = tensors()
    run_ascend(
        body(load=128, store=0),
        t,
        kind="vector",
        functions=function("g[threadIdx.x] = threadIdx.x < 32 ? u[threadIdx.x] : 1.0f;"),
    )
    assert torch.equal(t["Y"], torch.where(torch.arange(64) < 32, t["X"], torch.ones(64)))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("u[65536 + threadIdx.x] = 1.0f;", CapacityError, r"thread 0 of f accesses 4 bytes at UB offset 262144, outside the 262144 bytes of UB"),
        ("*(uint64_t*)(u + threadIdx.x) = 5;", MisalignedError, r"accesses 8 bytes at UB offset 4, which is not a multiple of the access size"),
        ("g[threadIdx.x + 1] = 1.0f;", OutOfBoundsError, r"writes 4 bytes of GM outside every tensor passed; nearest is 'Y' \(256 bytes\)"),
        ("g[0] = g[-1];", OutOfBoundsError, r"the access covers bytes -4 to 0"),
        ("assert(threadIdx.x < 63);", DeviceAssertError, r"threadIdx|usim_thread"),
    ],
)  # fmt: skip
def test_wild_accesses_and_assertions(run_ascend, text, error, message):
    with pytest.raises(error, match=message) as caught:
        run_ascend(body(store=0), tensors(), kind="vector", functions=function(text))
    assert caught.value.line == 4


def test_too_many_threads(run_ascend):
    with pytest.raises(CapacityError, match="launches 2049 threads; a vector core runs at most 2048"):
        run_ascend(body(call="asc_vf_call<f>(cce::dim3(2049), u, Y);"), tensors(), kind="vector", functions=DOUBLE)


def test_the_cube_core_has_no_ub(run_ascend):
    with pytest.raises(OutOfBoundsError, match="the cube core dereferences a UB pointer"):
        run_ascend("__ubuf__ float *u = (__ubuf__ float *)0; u[0] = X[0];", tensors())


def test_blocks_may_not_write_the_same_gm_bytes_from_threads(run_ascend):
    same = function("g[threadIdx.x] = 1.0f;")
    with pytest.raises(RaceError, match="two blocks touch the same bytes"):
        run_ascend(body(store=0), tensors(), kind="vector", grid=2, functions=same)


def test_an_unknown_builtin_is_named_with_its_line(run_ascend):
    with pytest.raises(
        UnimplementedBuiltinError,
        match=r"kernel 'k_kernel' uses the builtin asc_warp_frobnicate \(generated source, line 4: asc_warp_frobnicate\(1\);\)",
    ) as caught:
        run_ascend(body(), tensors(), kind="vector", functions=function("asc_warp_frobnicate(1);"))
    assert (caught.value.builtin, caught.value.line) == ("asc_warp_frobnicate", 4)
