"""Order inside one pipe: movers may complete writes out of order, so overlapping ones need asc_sync_pipe between them."""

from __future__ import annotations

import pytest
import torch

from unikernels.backends.ascend.simulator import RaceError

FILL = "asc_fill_l1((__cbuf__ uint16_t*)0, {value}, {{.repeat = 1, .blk_num = {blocks}, .dst_gap = 0}});"
LOAD = (
    "asc_set_gm2l1_nz_para(1, 1, 16, 0);"
    "asc_copy_gm2l1_nd2nz((half*)0 + {at}, X, 32, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);"
)
IN = (
    "asc_copy_gm2ub_align((__ubuf__ uint8_t*)u, (uint8_t*)X, 1, 512, 0, 0, 0,"
    " static_cast<asc_load_l2_cache_mode>(0), 0, 0);"
)
OUT = (
    "asc_copy_ub2gm_align((uint8_t*)Y + {at}, (__ubuf__ uint8_t*)u, 1, 256,"
    " static_cast<asc_store_l2_cache_mode>(0), 0, 0);"
)
UB = "__ubuf__ half *u = (__ubuf__ half *)0;\n"
EVENT = (
    "asc_sync_notify(PIPE_{0}, PIPE_{1}, static_cast<event_t>({2}));"
    "asc_sync_wait(PIPE_{0}, PIPE_{1}, static_cast<event_t>({2}));"
)


def tensors():
    return {"X": torch.arange(256).reshape(16, 16).half(), "Y": torch.zeros(16, 16).half()}


PAIRS = {
    "a fill under a load": ("cube", FILL.format(value=0, blocks=20), LOAD.format(at=0), "MTE2", "L1"),
    "fills of different values": (
        "cube",
        FILL.format(value=0, blocks=4),
        FILL.format(value=1, blocks=4),
        "MTE2",
        "L1",
    ),
    "loads to the same bytes of UB": ("vector", UB + IN, IN, "MTE2", "UB of AIV0"),
    "stores to the same bytes of GM": (
        "vector",
        UB + IN + EVENT.format("MTE2", "MTE3", 0) + OUT.format(at=0),
        OUT.format(at=128),
        "MTE3",
        "GM tensor 'Y'",
    ),
}


@pytest.mark.parametrize("what", list(PAIRS))
@pytest.mark.parametrize("seed", [None, 5])
def test_overlapping_writes_of_one_pipe_need_a_barrier(run_ascend, what, seed):
    kind, first, second, pipe, memory = PAIRS[what]
    with pytest.raises(RaceError, match=rf"pipe {pipe}, .*writes {memory}.*add asc_sync_pipe\(PIPE_{pipe}\)"):
        run_ascend(first + second, tensors(), kind=kind, seed=seed)
    run_ascend(first + f"asc_sync_pipe(PIPE_{pipe});" + second, tensors(), kind=kind, seed=seed)
    run_ascend(first + "asc_sync();" + second, tensors(), kind=kind, seed=seed)


def test_a_barrier_of_another_pipe_does_not_help(run_ascend):
    kind, first, second, _, _ = PAIRS["a fill under a load"]
    with pytest.raises(RaceError, match="asc_sync_pipe"):
        run_ascend(first + "asc_sync_pipe(PIPE_MTE1);" + second, tensors(), kind=kind)


@pytest.mark.parametrize(
    "between",
    [
        EVENT.format("MTE2", "V", 0) + EVENT.format("V", "MTE2", 0),
        "asc_lock(PIPE_MTE2, 1, ASC_LOCK_BLOCK); asc_unlock(PIPE_MTE2, 1, ASC_LOCK_BLOCK);"
        "asc_lock(PIPE_V, 1, ASC_LOCK_BLOCK); asc_unlock(PIPE_V, 1, ASC_LOCK_BLOCK);"
        "asc_lock(PIPE_MTE2, 1, ASC_LOCK_BLOCK); asc_unlock(PIPE_MTE2, 1, ASC_LOCK_BLOCK);",
        EVENT.format("MTE2", "S", 0),  # the scalar program goes on when the first load is done
    ],
)
def test_a_way_through_another_pipe_orders_as_well(run_ascend, between):
    run_ascend(UB + IN + between + IN, tensors(), kind="vector")


def test_a_one_way_event_is_not_enough(run_ascend):
    with pytest.raises(RaceError, match="asc_sync_pipe"):
        run_ascend(UB + IN + EVENT.format("MTE2", "V", 0) + IN, tensors(), kind="vector")


def test_what_needs_no_barrier(run_ascend):
    t = tensors()
    equal = FILL.format(value=0, blocks=4) * 2  # the same value twice is the same in either order
    run_ascend(equal, t)
    run_ascend(LOAD.format(at=0) + LOAD.format(at=256), t)  # side by side
    run_ascend(UB + IN + EVENT.format("MTE2", "MTE3", 0) + OUT.format(at=0) + OUT.format(at=256), t, kind="vector")
    assert torch.equal(t["Y"].flatten()[:128], t["X"].flatten()[:128])
    armed = "asc_set_atomic_add_float16();" + UB + IN + EVENT.format("MTE2", "MTE3", 0) + OUT.format(at=0) * 2
    run_ascend(armed, t, kind="vector")  # atomic stores commute
