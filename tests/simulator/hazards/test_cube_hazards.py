"""Hazards on the cube core, in pairs: the broken kernel is reported with class, place and remedy, its twin is clean."""

from __future__ import annotations

import pytest
import torch

from unikernels.backends.ascend.simulator import (
    CapacityError,
    DeadlockError,
    FlagMisuseError,
    MisalignedError,
    OutOfBoundsError,
    RaceError,
    ScaleSlotError,
    UninitialisedError,
)

# One 16x16x16 multiply, A and B 16x16 half in L1 at 0 and 512.
STEPS = {
    "load_a": "asc_set_gm2l1_nz_para(1, 1, 16, 0); asc_copy_gm2l1_nd2nz((half*)0, A, 32, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);",
    "load_b": "asc_copy_gm2l1_nd2nz((half*)512, B, 32, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, 0);",
    "loaded": "asc_sync_notify(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));",
    "wait_loaded": "asc_sync_wait(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));",
    "stage": "asc_copy_l12l0a((half*)0, (half*)0, 0, 0, 1, 1, 1, 1); asc_copy_l12l0b((half*)0, (half*)512, 0, 0, 1, 1, 1, 1);",
    "staged": "asc_sync_notify(PIPE_MTE1, PIPE_M, static_cast<event_t>(1));",
    "wait_staged": "asc_sync_wait(PIPE_MTE1, PIPE_M, static_cast<event_t>(1));",
    "multiply": "asc_mmad((float*)0, (half*)0, (half*)0, 16, 16, 16, 0, 1, 0, 1);",
    "multiplied": "asc_sync_notify(PIPE_M, PIPE_FIX, static_cast<event_t>(2));",
    "wait_multiplied": "asc_sync_wait(PIPE_M, PIPE_FIX, static_cast<event_t>(2));",
    "store": "asc_set_l0c_copy_nz_para(1, 0, 0); asc_copy_l0c2gm(D, (float*)0, 16, 16, 16, 16, static_cast<asc_store_l2_cache_mode>(0), "
    "static_cast<asc_unit_flag_mode>(0), static_cast<asc_quant_mode>(0), static_cast<asc_relu_pre_mode>(0), 0, 1, 0, 0);",
}


def kernel(**changes):
    """The steps, one per line, with some replaced (None: left out)."""
    return "\n".join(text for text in {**STEPS, **changes}.values() if text)


def tensors():
    torch.manual_seed(3)
    a = torch.randint(-4, 5, (16, 16)).to(torch.float16)
    b = torch.randint(-4, 5, (16, 16)).to(torch.float16)
    return {"A": a, "B": b, "D": torch.zeros(16, 16)}


def line_of(body, fragment):
    """Line in the generated source: two include lines, an empty one, the signature and asc_init come first."""
    lines = body.splitlines()
    return 6 + next(i for i, line in enumerate(lines) if fragment in line)


def test_the_clean_kernel_is_exact(run_ascend):
    for seed in (None, 1, 2, 3):
        t = tensors()
        run_ascend(kernel(), t, seed=seed)
        assert torch.equal(t["D"], t["A"].float() @ t["B"].float().T)


MISSING = {
    "load to stage": (
        ("loaded", "wait_loaded"),
        "MTE2",
        "MTE1",
        "L1[0x0:0x200]",
        "asc_copy_l12l0a",
        "asc_copy_gm2l1_nd2nz",
    ),
    "stage to multiply": (("staged", "wait_staged"), "MTE1", "M", "L0A[0x0:0x200]", "asc_mmad", "asc_copy_l12l0a"),
    "multiply to store": (
        ("multiplied", "wait_multiplied"),
        "M",
        "FIX",
        "L0C[0x0:0x400]",
        "asc_copy_l0c2gm",
        "asc_mmad",
    ),
}


@pytest.mark.parametrize("case", list(MISSING))
@pytest.mark.parametrize("seed", [None, 5])
def test_a_missing_event_is_a_race(run_ascend, case, seed):
    removed, src, dst, place, second, first = MISSING[case]
    body = kernel(**dict.fromkeys(removed))
    if seed is None:
        with pytest.raises(RaceError) as caught:
            run_ascend(body, tensors())
        error = caught.value
        assert (error.kernel, error.block, error.core, error.pipe) == ("k_kernel", 0, "AIC", dst)
        assert error.builtin == second
        assert error.line == line_of(body, second)
        assert f"reads {place} while nothing orders it after the earlier write of {place}" in str(error)
        assert f"pipe {src} ({first}, line {line_of(body, first)})" in str(error)
        assert f"add asc_sync_notify(PIPE_{src}, PIPE_{dst}, id)" in str(error)
    else:
        with pytest.raises((RaceError, UninitialisedError)):
            run_ascend(body, tensors(), seed=seed)


def test_overwriting_a_tile_that_is_still_read_is_a_race(run_ascend):
    again = kernel() + "\n" + STEPS["load_a"]
    with pytest.raises(RaceError, match=r"writes L1\[0x0:0x200\].*after the earlier read of .* pipe MTE1"):
        run_ascend(again, tensors())
    ordered = (
        kernel()
        + "\nasc_sync_notify(PIPE_MTE1, PIPE_MTE2, static_cast<event_t>(0));\nasc_sync_wait(PIPE_MTE1, PIPE_MTE2, static_cast<event_t>(0));\n"
        + STEPS["load_a"]
    )
    run_ascend(ordered, tensors())


def test_locks_order_as_events_do(run_ascend):
    lock = {
        "load_a": "asc_lock(PIPE_MTE2, 3, ASC_LOCK_BLOCK);" + STEPS["load_a"],
        "loaded": "asc_unlock(PIPE_MTE2, 3, ASC_LOCK_BLOCK);",
        "wait_loaded": "asc_lock(PIPE_MTE1, 3, ASC_LOCK_BLOCK);",
        "staged": "asc_unlock(PIPE_MTE1, 3, ASC_LOCK_BLOCK);" + STEPS["staged"],
    }
    t = tensors()
    run_ascend(kernel(**lock), t)
    assert torch.equal(t["D"], t["A"].float() @ t["B"].float().T)
    wrong = {
        **lock,
        "wait_loaded": "asc_lock(PIPE_MTE1, 4, ASC_LOCK_BLOCK);",
        "staged": "asc_unlock(PIPE_MTE1, 4, ASC_LOCK_BLOCK);" + STEPS["staged"],
    }
    with pytest.raises(RaceError, match="pipe MTE2"):
        run_ascend(kernel(**wrong), tensors())


def unit(mmad, *copies):
    """The kernel with unit flags instead of the event between multiply and store."""
    store = "asc_sync_pipe(PIPE_FIX);".join(
        STEPS["store"].replace("asc_unit_flag_mode>(0)", f"asc_unit_flag_mode>({c})") for c in copies
    )
    return {
        "multiply": STEPS["multiply"].replace("16, 16, 16, 0, 1", f"16, 16, 16, {mmad}, 1"),
        "multiplied": None,
        "wait_multiplied": None,
        "store": store,
    }


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_unit_flags_order_as_events_do(run_ascend, seed):
    for changes in (unit(3, 3), unit(3, 2, 3)):
        t = tensors()
        run_ascend(kernel(**changes), t, seed=seed)
        assert torch.equal(t["D"], t["A"].float() @ t["B"].float().T)
    # The next tile's multiply waits until the store has cleared the flags.
    twice = unit(3, 3)
    again = "\n" + twice["multiply"] + "asc_sync_pipe(PIPE_FIX);" + twice["store"]
    run_ascend(kernel(**twice) + again, tensors(), seed=seed)


def test_unit_flag_misuse(run_ascend):
    with pytest.raises(
        DeadlockError,
        match=r"pipe FIX waits in asc_copy_l0c2gm \(line \d+\) for the unit flags of its tile to be set by an mmad with unit flag 3",
    ):
        run_ascend(kernel(**unit(2, 3)), tensors())
    with pytest.raises(FlagMisuseError, match=r"unit flags of L0C are still set at the end"):
        run_ascend(kernel(**unit(3, 2)), tensors())
    with pytest.raises(RaceError, match="pipe M"):
        run_ascend(kernel(**unit(3, 0)), tensors())


def test_a_lock_left_held_is_reported(run_ascend):
    with pytest.raises(
        FlagMisuseError, match=r"lock 7 is still held at the end of the kernel; it was last taken at line \d+"
    ):
        run_ascend(kernel() + "\nasc_lock(PIPE_MTE2, 7, ASC_LOCK_BLOCK);", tensors())


def test_a_full_barrier_orders_everything(run_ascend):
    body = kernel(
        loaded="asc_sync();",
        wait_loaded=None,
        staged="asc_sync();",
        wait_staged=None,
        multiplied="asc_sync();",
        wait_multiplied=None,
    )
    for seed in (None, 4):
        t = tensors()
        run_ascend(body, t, seed=seed)
        assert torch.equal(t["D"], t["A"].float() @ t["B"].float().T)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"wait_multiplied": None, "store": None}, r"flag \(M, FIX, 2\) is still set at the end of the kernel; it was set at line \d+"),
        ({"loaded": STEPS["loaded"] * 2}, r"flag \(MTE2, MTE1, 0\) is set twice without a wait in between"),
        ({"loaded": STEPS["loaded"].replace("(0)", "(8)"), "wait_loaded": STEPS["wait_loaded"].replace("(0)", "(8)")}, r"event id 8 is outside 0\.\.7"),
        ({"load_a": "asc_sync_notify(PIPE_V, PIPE_MTE2, static_cast<event_t>(0));"}, r"pipe pair \(V, MTE2\) does not exist on block 0 AIC"),
        ({"load_a": "asc_sync_notify(PIPE_M, PIPE_M, static_cast<event_t>(0));"}, r"source and destination are both pipe M"),
        ({"load_a": "asc_lock(PIPE_M, 32, ASC_LOCK_BLOCK);"}, r"lock id 32 is outside 0\.\.31"),
    ],
)  # fmt: skip
def test_flag_misuse_is_named(run_ascend, changes, text):
    with pytest.raises(FlagMisuseError, match=text):
        run_ascend(kernel(**changes), tensors())


def test_a_flag_set_again_before_its_wait_can_have_happened(run_ascend):
    # In program order this runs; on hardware the second load may finish before MTE1 has consumed the first flag.
    round_ = STEPS["load_a"] + STEPS["loaded"] + STEPS["wait_loaded"]
    with pytest.raises(FlagMisuseError, match=r"flag \(MTE2, MTE1, 0\) may be set again before pipe MTE1 has consumed"):
        run_ascend(kernel(load_a=round_), tensors())
    back = "asc_sync_notify(PIPE_MTE1, PIPE_MTE2, static_cast<event_t>(5)); asc_sync_wait(PIPE_MTE1, PIPE_MTE2, static_cast<event_t>(5));"
    run_ascend(kernel(load_a=round_ + back + STEPS["load_a"]), tensors())


def test_a_wait_without_notify_is_a_deadlock(run_ascend):
    body = kernel(loaded=None)
    with pytest.raises(DeadlockError) as caught:
        run_ascend(body, tensors())
    text = str(caught.value)
    assert (
        f"block 0 AIC pipe MTE1 waits in asc_sync_wait (line {line_of(body, 'asc_sync_wait(PIPE_MTE2')}) for flag (MTE2, MTE1, 0) from pipe MTE2"
        in text
    )
    assert f"block 0 AIC pipe M waits in asc_sync_wait (line {line_of(body, 'asc_sync_wait(PIPE_MTE1')})" in text


def test_a_wait_may_stand_before_its_notify(run_ascend):
    # Pipes are asynchronous: M waits in its queue while the program goes on to dispatch the load it waits for.
    body = kernel(load_a=STEPS["wait_staged"] + STEPS["multiply"] + STEPS["load_a"], wait_staged=None, multiply=None)
    t = tensors()
    run_ascend(body, t)
    assert torch.equal(t["D"], t["A"].float() @ t["B"].float().T)


def test_data_that_was_never_loaded_is_reported(run_ascend):
    with pytest.raises(
        UninitialisedError, match=r"reads row 0, K group 0 of the operand at L0B byte 0, which no load has written"
    ):
        run_ascend(kernel(stage=STEPS["stage"].split("asc_copy_l12l0b")[0]), tensors())
    with pytest.raises(
        UninitialisedError,
        match=r"stores accumulator \(0, 0\).*asc_copy_l12l0b.*read L1\[0x200:0x220\], which nothing had written",
    ):
        run_ascend(kernel(load_b=None), tensors())
    with pytest.raises(UninitialisedError, match="the first mmad of a tile must start from zero"):
        run_ascend(kernel(multiply=STEPS["multiply"].replace("1);", "0);")), tensors())


def test_unloaded_rows_are_harmless_until_they_are_stored(run_ascend):
    part = STEPS["load_a"].replace("16, 16, 0, 0);", "9, 16, 0, 0);")
    t = tensors()
    run_ascend(kernel(load_a=part, store=STEPS["store"].replace("16, 16, 16, 16", "16, 9, 16, 16")), t)
    assert torch.equal(t["D"][:9], (t["A"].float() @ t["B"].float().T)[:9])
    with pytest.raises(UninitialisedError, match=r"stores accumulator \(9, 0\)"):
        run_ascend(kernel(load_a=part), tensors())


MX = """
  asc_set_gm2l1_nz_para(1, 1, 32, 0);
  asc_copy_gm2l1_nd2nz((int8_t*)0, (int8_t*)X, 64, static_cast<asc_load_l2_cache_mode>(0), 32, 64, 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));
  asc_copy_l12l0a((float8_e4m3_t*)0, (float8_e4m3_t*)0, 0, 0, 1, 2, 2, 1); asc_copy_l12l0b((float8_e4m3_t*)0, (float8_e4m3_t*)0, 0, 0, 1, 2, 2, 1);
  {scales}
  asc_sync_notify(PIPE_MTE1, PIPE_M, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE1, PIPE_M, static_cast<event_t>(0));
  asc_mmad_mx((float*)0, (float8_e4m3_t*)0, (float8_e4m3_t*)0, 16, 64, 16, 0, 1, 0, 1);
"""
SLOT_A = "asc_copy_l12l0a_mx(0, (fp8_e8m0_t*)0, 0, 0, 1, 1, 1, 1);"
SLOT_B = "asc_copy_l12l0b_mx(0, (fp8_e8m0_t*)0, 0, 0, 1, 1, 1, 1);"


def test_a_scale_slot_must_be_loaded(run_ascend):
    t = {"X": torch.full((32, 64), 0x38, dtype=torch.uint8)}
    run_ascend(MX.format(scales=SLOT_A + SLOT_B), t)
    with pytest.raises(
        ScaleSlotError,
        match=r"scale slot of rows 0\.\.15, K pair 0 \(L0B_MX byte 0\) before any asc_copy_l12l0b_mx has loaded it",
    ):
        run_ascend(MX.format(scales=SLOT_A), t)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"multiply": STEPS["multiply"].replace("(float*)0", "(float*)512")}, MisalignedError, r"accumulator address 0x200 in L0C is not a multiple of 1024"),
        ({"multiply": STEPS["multiply"].replace("(float*)0", "(float*)262144")}, CapacityError, r"exceeds the 262144 bytes of L0C"),
        ({"store": STEPS["store"].replace("D, ", "D + 1, ")}, OutOfBoundsError, r"nearest is 'D' \(1024 bytes\): the access covers bytes 964 to 1028"),
        ({"multiply": STEPS["multiply"].replace("16, 16, 16", "4096, 16, 16")}, OutOfBoundsError, "12-bit"),
    ],
)  # fmt: skip
def test_places_that_do_not_exist(run_ascend, changes, error, text):
    with pytest.raises(error, match=text):
        run_ascend(kernel(**changes), tensors())


def test_two_blocks_may_not_write_the_same_bytes(run_ascend):
    with pytest.raises(
        RaceError,
        match=r"writes GM tensor 'D' \[0x0:0x40\].*earlier write of .* by block \d AIC pipe FIX.*two blocks touch the same bytes",
    ):
        run_ascend(kernel(), tensors(), grid=2)
    apart = STEPS["store"].replace("(D,", "(D + block_idx * 256,")
    t = tensors()
    t["D"] = torch.zeros(32, 16)
    run_ascend(kernel(store=apart), t, grid=2)
    atomic = "asc_set_atomic_add_float();" + STEPS["store"] + "asc_set_atomic_none();"
    t = tensors()
    run_ascend(kernel(store=atomic), t, grid=3)
    assert torch.equal(t["D"], 3 * (t["A"].float() @ t["B"].float().T))


def test_checks_off_runs_the_broken_kernel(run_ascend):
    t = tensors()
    run_ascend(kernel(loaded=None, wait_loaded=None), t, check="off")
    assert torch.equal(t["D"], t["A"].float() @ t["B"].float().T)
