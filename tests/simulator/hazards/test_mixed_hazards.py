"""Hazards between cube and vector cores and between blocks, in pairs of broken and repaired kernels."""

from __future__ import annotations

import pytest
import torch

from unikernels.backends.ascend.simulator import DeadlockError, FlagMisuseError, KernelFaultError, RaceError

# AIC: C = A * A^T (16x16) to the UB of both vector cores, 8 rows each; AIVs store their rows.
CUBE = """
  asc_set_gm2l1_nz_para(1, 1, 16, 0); asc_copy_gm2l1_nd2nz((half*)0, A, 32, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));
  asc_copy_l12l0a((half*)0, (half*)0, 0, 0, 1, 1, 1, 1); asc_copy_l12l0b((half*)0, (half*)0, 0, 0, 1, 1, 1, 1);
  asc_sync_notify(PIPE_MTE1, PIPE_M, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE1, PIPE_M, static_cast<event_t>(0));
  asc_mmad((float*)0, (half*)0, (half*)0, 16, 16, 16, 0, 1, 0, 1);
  asc_sync_notify(PIPE_M, PIPE_FIX, static_cast<event_t>(0)); asc_sync_wait(PIPE_M, PIPE_FIX, static_cast<event_t>(0));
  asc_set_l0c_copy_nz_para(1, 0, 0);
  asc_copy_l0c2ub((float*)ub, (float*)0, 16, 16, 16, 16, 0, static_cast<asc_dual_dst_mode>(1), static_cast<asc_unit_flag_mode>(0),
                  static_cast<asc_quant_mode>(0), static_cast<asc_relu_pre_mode>(0), 0, 1, 0, 0);
"""
VECTOR = """
  asc_copy_ub2gm_align((uint8_t*)(D + asc_get_sub_block_id() * 128), ub, 1, 512, static_cast<asc_store_l2_cache_mode>(0), 0, 0);
"""


def kernel(arrive="", wait="", before="", after=""):
    return (
        "uint8_t* ub = (uint8_t*)((__ubuf__ uint8_t *)0);\n"
        f"if ASC_IS_AIC {{ {before} {CUBE} {arrive} }}\nif ASC_IS_AIV {{ {wait} {VECTOR} {after} }}"
    )


def tensors():
    torch.manual_seed(8)
    return {"A": torch.randint(-4, 5, (16, 16)).to(torch.float16), "D": torch.zeros(16, 16)}


FORMS = {
    "intra": (
        "asc_sync_intra_arrive(PIPE_FIX, 3); asc_sync_intra_arrive(PIPE_FIX, 19);",
        "asc_sync_intra_wait(PIPE_MTE3, 3);",
    ),
    "block": ("asc_sync_block_arrive(PIPE_FIX, 5);", "asc_sync_block_wait(PIPE_MTE3, 5);"),
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_signal_orders_the_vector_cores_after_the_cube(run_ascend, form, seed):
    arrive, wait = FORMS[form]
    t = tensors()
    run_ascend(kernel(arrive, wait), t, kind="mixed", grid=1, seed=seed)
    assert torch.equal(t["D"], t["A"].float() @ t["A"].float().T)


def test_without_a_signal_the_cores_race(run_ascend):
    with pytest.raises(KernelFaultError) as caught:
        run_ascend(kernel(), tensors(), kind="mixed")
    assert caught.value.builtin in ("asc_copy_ub2gm_align", "asc_copy_l0c2ub")
    # With the cube first in program order, the missing edge itself is named.
    only_one = kernel(
        "asc_sync_intra_arrive(PIPE_FIX, 0); asc_sync_intra_arrive(PIPE_FIX, 16);", "asc_sync_intra_wait(PIPE_V, 0);"
    )
    with pytest.raises(
        RaceError,
        match=r"AIV0, pipe MTE3.*reads UB of AIV0\[0x0:0x200\].*by block 0 AIC pipe FIX.*signal from AIC pipe FIX to AIV0 pipe MTE3",
    ):
        run_ascend(only_one, tensors(), kind="mixed")


def test_a_signal_to_one_vector_core_only_deadlocks_the_other(run_ascend):
    with pytest.raises(
        DeadlockError,
        match=r"block 0 AIV1 pipe MTE3 waits in asc_sync_intra_wait \(line \d+\) for counter 3, signalled by AIC",
    ):
        run_ascend(kernel("asc_sync_intra_arrive(PIPE_FIX, 3);", FORMS["intra"][1]), tensors(), kind="mixed")


def test_an_arrival_nobody_takes_is_reported(run_ascend):
    arrive, wait = FORMS["intra"]
    with pytest.raises(
        FlagMisuseError, match=r"cross-core counter 3 still holds 1 arrival\(s\) at the end of the kernel"
    ):
        run_ascend(kernel(arrive + "asc_sync_intra_arrive(PIPE_FIX, 3);", wait), tensors(), kind="mixed")


def test_the_cube_waits_for_both_vector_cores(run_ascend):
    back = "asc_sync_intra_arrive(PIPE_MTE3, 1);"
    again = CUBE.split("asc_set_l0c_copy_nz_para")[1]
    arrive, wait = FORMS["intra"]
    both = (
        arrive + "asc_sync_intra_wait(PIPE_FIX, 1); asc_sync_intra_wait(PIPE_FIX, 17); asc_set_l0c_copy_nz_para" + again
    )
    run_ascend(kernel(both, wait, after=back), tensors(), kind="mixed")
    one = (
        arrive
        + "asc_sync_intra_wait(PIPE_FIX, 1); asc_set_l0c_copy_nz_para"
        + again
        + "asc_sync_intra_wait(PIPE_FIX, 17);"
    )
    with pytest.raises(RaceError, match=r"writes UB of AIV1.*after the earlier read of .*AIV1 pipe MTE3"):
        run_ascend(kernel(one, wait, after=back), tensors(), kind="mixed")


def test_both_vector_cores_meet_in_a_subblock_barrier(run_ascend):
    # AIV0 writes a workspace in GM, AIV1 reads it.
    body = """
      uint8_t* ub = (uint8_t*)((__ubuf__ uint8_t *)0);
      if ASC_IS_AIV {{
        if (asc_get_sub_block_id() == 0) {{
          asc_copy_gm2ub_align(ub, (uint8_t*)A, 1, 512, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
          asc_sync_notify(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0));
          asc_copy_ub2gm_align((uint8_t*)D, ub, 1, 512, static_cast<asc_store_l2_cache_mode>(0), 0, 0);
          {arrive0}
        }} else {{
          {wait1}
          asc_copy_gm2ub_align(ub, (uint8_t*)D, 1, 512, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
        }}
      }}
    """
    meet = {
        "arrive0": "asc_sync_subblock_arrive(PIPE_MTE3, 2); asc_sync_subblock_wait(PIPE_MTE3, 2);",
        "wait1": "asc_sync_subblock_arrive(PIPE_MTE2, 2); asc_sync_subblock_wait(PIPE_MTE2, 2);",
    }
    run_ascend(body.format(**meet), tensors(), kind="mixed")
    with pytest.raises(RaceError, match=r"GM tensor 'D'"):
        run_ascend(body.format(arrive0="", wait1=""), tensors(), kind="mixed")


EXCHANGE = """
  uint8_t* ub = (uint8_t*)((__ubuf__ uint8_t *)0);
  asc_copy_gm2ub_align(ub, (uint8_t*)(A + block_idx * 16), 1, 32, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0));
  asc_copy_ub2gm_align((uint8_t*)(W + block_idx * 16), ub, 1, 32, static_cast<asc_store_l2_cache_mode>(0), 0, 0);
  {meet}
  int other = (block_idx + 1) % gridDim.x;
  asc_copy_gm2ub_align(ub + 64, (uint8_t*)(W + other * 16), 1, 32, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(1)); asc_sync_wait(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(1));
  asc_copy_ub2gm_align((uint8_t*)(D + block_idx * 16), ub + 64, 1, 32, static_cast<asc_store_l2_cache_mode>(0), 0, 0);
"""


@pytest.mark.parametrize("seed", [None, 7])
def test_blocks_exchange_data_behind_a_barrier(run_ascend, seed):
    t = {
        "A": torch.arange(128).reshape(8, 16).to(torch.float16),
        "W": torch.zeros(8, 16, dtype=torch.float16),
        "D": torch.zeros(8, 16, dtype=torch.float16),
    }
    run_ascend(
        EXCHANGE.format(meet="asc_sync_inter_arrive(PIPE_MTE3, 0); asc_sync_inter_wait(PIPE_MTE2, 0);"),
        t,
        kind="vector",
        grid=8,
        seed=seed,
    )
    assert torch.equal(t["D"], t["A"].roll(-1, 0))
    with pytest.raises(RaceError, match=r"GM tensor 'W'.*two blocks touch the same bytes"):
        run_ascend(EXCHANGE.format(meet=""), t, kind="vector", grid=8, seed=seed)


def test_a_block_that_misses_the_barrier_deadlocks_the_others(run_ascend):
    t = {
        "A": torch.zeros(8, 16, dtype=torch.float16),
        "W": torch.zeros(8, 16, dtype=torch.float16),
        "D": torch.zeros(8, 16, dtype=torch.float16),
    }
    meet = "asc_sync_inter_arrive(PIPE_MTE3, 0); asc_sync_inter_wait(PIPE_MTE2, 0);"
    with pytest.raises(
        DeadlockError,
        match=r"block 0 AIV0 pipe MTE2 waits in asc_sync_inter_wait \(line \d+\) for counter 0, signalled by all blocks",
    ):
        run_ascend("if (block_idx == 3) return;" + EXCHANGE.format(meet=meet), t, kind="vector", grid=8)


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("asc_sync_intra_arrive(PIPE_FIX, 32);", r"cross-core id 32 is outside 0\.\.31"),
        ("asc_sync_block_arrive(PIPE_FIX, 16);", r"cross-core id 16 is outside 0\.\.15"),
        ("asc_sync_intra_arrive(PIPE_V, 0);", r"pipe V does not exist on block 0 AIC"),
        (
            "for (int i = 0; i < 16; ++i) asc_sync_intra_arrive(PIPE_FIX, 0);",
            r"counter 0 of block 0 AIV0 would exceed 15",
        ),
    ],
)
def test_cross_core_misuse_is_named(run_ascend, before, text):
    arrive, wait = FORMS["intra"]
    with pytest.raises(FlagMisuseError, match=text):
        run_ascend(kernel(arrive, wait, before=before), tensors(), kind="mixed")


def test_signals_need_the_other_kind_of_core(run_ascend):
    with pytest.raises(FlagMisuseError, match="signals a core that this kernel does not have"):
        run_ascend("asc_sync_intra_arrive(PIPE_FIX, 0);", {"A": torch.zeros(1)})
