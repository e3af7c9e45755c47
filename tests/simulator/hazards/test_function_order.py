"""Order inside vector functions and of the scalar data cache, in pairs of broken and repaired kernels."""

from __future__ import annotations

import pytest
import torch

from unikernels.backends.ascend.simulator import RaceError

SIMD = ("tl_templates/ascend/simd_inst.h",)


def simd(body):
    return f"__simd_vf__ inline void f(__ubuf__ float* u) {{\n{body}\n}}\n"


def run_simd(run_ascend, body, **options):
    kernel = "__ubuf__ float *u = (__ubuf__ float *)0;\nf(u);"
    return run_ascend(kernel, {"X": torch.zeros(8)}, kind="vector", functions=simd(body), includes=SIMD, **options)


MASK = "auto m = asc_create_mask_b32(PAT_ALL); auto one = asc_create_mask_b32(PAT_VL1);"
ZERO = MASK + "auto z = simd_inst::vdup<float>(0.0f, m, MODE_ZEROING);"
STORES = {
    "single elements": "for (int i = 0; i < 64; ++i) simd_inst::vsts_1st(z, u + i, 0, one);",
    "two registers around the load": "simd_inst::vsts_norm(z, u, 0, m); simd_inst::vsts_norm(z, u + 32, 0, m);",
    "half a register": "simd_inst::vsts_norm(z, u, 0, asc_create_mask_b32(PAT_VL32)); simd_inst::vsts_norm(z, u + 32, 0, asc_create_mask_b32(PAT_VL32));",
}
LOAD = "auto r = simd_inst::vlds_norm(u, 0); simd_inst::vsts_norm(r, u + 1024, 0, m);"


@pytest.mark.parametrize("what", list(STORES))
@pytest.mark.parametrize("barrier", ["VST_VLD", "VV_ALL"])
def test_a_load_may_overtake_a_store_of_the_function(run_ascend, what, barrier):
    with pytest.raises(RaceError, match=r"f loads UB bytes 0 to 256, which it has stored to with no asc_mem_bar"):
        run_simd(run_ascend, ZERO + STORES[what] + LOAD)
    report = run_simd(run_ascend, ZERO + STORES[what] + f"asc_mem_bar({barrier});" + LOAD)
    assert not report.warnings


def test_a_barrier_for_other_accesses_does_not_help(run_ascend):
    with pytest.raises(RaceError, match="asc_mem_bar"):
        run_simd(run_ascend, ZERO + STORES["single elements"] + "asc_mem_bar(VLD_VST);" + LOAD)


def test_a_broadcast_of_one_stored_element_needs_the_barrier(run_ascend):
    store, load = (
        "simd_inst::vsts_norm(z, u, 0, m);",
        "auto r = simd_inst::vlds_brc_elem(u + 3, 0); simd_inst::vsts_norm(r, u + 1024, 0, m);",
    )
    with pytest.raises(RaceError, match="UB bytes 12 to 16"):
        run_simd(run_ascend, ZERO + store + load)
    run_simd(run_ascend, ZERO + store + "asc_mem_bar(VST_VLD);" + load)


def test_a_load_of_exactly_one_store_is_let_pass_with_a_warning(run_ascend):
    report = run_simd(run_ascend, ZERO + "simd_inst::vsts_norm(z, u, 0, m);" + LOAD)
    assert report.warnings == ("f loads again what it has stored, with no asc_mem_bar(VST_VLD) in between",)


def test_stores_after_loads_and_other_bytes_need_no_barrier(run_ascend):
    body = ZERO + "simd_inst::vsts_norm(z, u, 0, m); simd_inst::vsts_norm(z, u + 64, 0, m); asc_mem_bar(VST_VLD);"
    body += "for (int i = 0; i < 2; ++i) { auto r = simd_inst::vlds_norm(u + 64 * i, 0); simd_inst::vsts_norm(r, u + 64 * i, 0, m); }"
    assert not run_simd(run_ascend, body).warnings


def simt(run_ascend, body, threads=64):
    functions = f"__simt_vf__ __launch_bounds__({threads}) inline void f(__ubuf__ int32_t* u, __gm__ int32_t* g) {{\n{body}\n}}\n"
    y = torch.zeros(64, dtype=torch.int32)
    call = f"__ubuf__ int32_t *u = (__ubuf__ int32_t *)0;\nasc_vf_call<f>(cce::dim3({threads}), u, Y);"
    run_ascend(call, {"Y": y}, kind="vector", functions=functions)
    return y


ZEROS = "if (threadIdx.x < 4) u[threadIdx.x] = 0;"
COUNT = "asc_atomic_add(u + threadIdx.x % 4, 1);"
READ = "g[threadIdx.x] = u[threadIdx.x % 4];"
SYNC = "asc_syncthreads();"


def test_atomic_and_plain_accesses_of_different_threads_conflict(run_ascend):
    with pytest.raises(RaceError, match="atomically updates UB byte 0, which thread 0 uses in a plain access"):
        simt(run_ascend, ZEROS + COUNT + SYNC + READ)
    with pytest.raises(RaceError, match=r"UB byte 0(, which thread 0 uses)? in a plain access"):
        simt(run_ascend, ZEROS + SYNC + COUNT + READ)
    with pytest.raises(
        RaceError, match="writes UB byte 0 in a plain access, while several threads update it atomically"
    ):
        simt(run_ascend, ZEROS + SYNC + COUNT + "if (threadIdx.x == 63) u[0] = 7;")
    assert (simt(run_ascend, ZEROS + SYNC + COUNT + SYNC + READ) == 16).all()


def test_what_one_thread_does_alone_is_in_order(run_ascend):
    own = "u[threadIdx.x] = 1; asc_atomic_add(u + threadIdx.x, 2); g[threadIdx.x] = u[threadIdx.x]; u[threadIdx.x] = 5;"
    assert (simt(run_ascend, own) == 3).all()


# The scalar program reads GM, a copy changes it, the scalar program reads again.
COPY = """
  __ubuf__ int32_t *u = (__ubuf__ int32_t *)0;
  asc_copy_gm2ub_align((__ubuf__ uint8_t*)u, (uint8_t*)X, 1, 64, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0));
  asc_sync_notify(PIPE_S, PIPE_MTE3, static_cast<event_t>(0)); asc_sync_wait(PIPE_S, PIPE_MTE3, static_cast<event_t>(0));
  asc_copy_ub2gm_align((uint8_t*)Y, (__ubuf__ uint8_t*)u, 1, 64, static_cast<asc_store_l2_cache_mode>(0), 0, 0);
  asc_sync_notify(PIPE_MTE3, PIPE_S, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE3, PIPE_S, static_cast<event_t>(0));
"""
PLAIN, PAST = "{0} = Y[1];", "{0} = asc_load_dev(Y + 1);"


def scalar(run_ascend, first, second):
    t = {
        "X": torch.arange(16, dtype=torch.int32),
        "Y": torch.zeros(16, dtype=torch.int32),
        "Z": torch.zeros(2, dtype=torch.int32),
    }
    run_ascend(first.format("int32_t a") + COPY + second.format("int32_t b") + "Z[0] = a; Z[1] = b;", t, kind="vector")
    return t["Z"].tolist()


def test_the_scalar_cache_does_not_see_what_a_copy_writes(run_ascend):
    with pytest.raises(
        RaceError,
        match=r"loads bytes 4 to 8 of tensor 'Y' through the scalar data cache.*before pipe MTE3 \(asc_copy_ub2gm_align, line \d+\).*asc_load_dev",
    ):
        scalar(run_ascend, PLAIN, PLAIN)
    assert scalar(run_ascend, PLAIN, PAST) == [0, 1]
    assert scalar(run_ascend, PAST, PLAIN) == [0, 1]  # the line enters the cache after the copy
