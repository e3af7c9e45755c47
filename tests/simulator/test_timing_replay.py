"""The replay against times worked out by hand from the table of rates, on programs written as event records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unikernels.backends.ascend.simulator.rates import RATES, SOURCES, rate_values
from unikernels.backends.ascend.simulator.report import EVENT, OPERATIONS, Recording, Report
from unikernels.backends.ascend.simulator.timing import predict

R = rate_values()
PIPE = {"S": 0, "V": 1, "M": 2, "MTE1": 3, "MTE2": 4, "MTE3": 5, "FIX": 7}
BF16 = 3  # Type::bf16 in core_api.h


def event(op, pipe, *a, tensor=0xFFFFFFFF, address=0, scalar=0):
    record = np.zeros((), dtype=EVENT)
    record["op"], record["pipe"] = OPERATIONS.index(op), PIPE[pipe]
    record["tensor"], record["address"], record["scalar"] = tensor, address, scalar
    record["a"][: len(a)] = a
    return record


def mmad(m=128, k=64, n=128, unit_flag=0):
    return event("asc_mmad", "M", m, k, n, BF16, BF16, unit_flag, 0, 0)


def load(rows=128, row_bytes=256, *, address=0, pitch=256, tensor=0):
    return event(
        "asc_copy_gm2l1_nd2nz", "MTE2", rows, row_bytes, pitch, rows * row_bytes, tensor=tensor, address=address
    )


def store(m=128, n=128, esize=2, unit_flag=0):
    return event("asc_copy_l0c2gm", "FIX", m, n, esize, 0, unit_flag, 0, n * esize, tensor=1)


def sync(op, pipe, *a):
    return event(op, pipe, *a)


def notify(source, target, number=0):
    return sync("asc_sync_notify", source, PIPE[source], PIPE[target], number)


def wait(source, target, number=0):
    return sync("asc_sync_wait", target, PIPE[source], PIPE[target], number)


def recording(*cores, kind="cube", grid=1):
    """cores: (block, core, [events])"""
    raw = [(block, core, np.array(events, dtype=EVENT).view(np.uint8)) for block, core, events in cores]
    return Recording("hand", kind, grid, ("A", "D"), raw, Path("none"))


def cycles(*cores, l2="warm", kind="cube", **rates):
    return predict([recording(*cores, kind=kind)], l2=l2, rates=rates).cycles


def test_every_rate_has_a_source_and_few_are_fitted():
    assert all(rate.source in SOURCES and rate.unit and rate.value > 0 for rate in RATES.values())
    assert {name for name, rate in RATES.items() if rate.source == "fitted"} == {
        "launch_us",
        "hbm_bytes",
        "hbm_latency",
    }
    with pytest.raises(KeyError, match=r"no rate is named.*hbm_speed"):
        rate_values(hbm_speed=1)


def test_peak_of_all_cores_is_the_published_limit():
    for rate, limit in (("mac_16bit", 432), ("mac_8bit", 865), ("mac_4bit", 1730)):
        assert 2 * R[rate] * R["ai_cores"] * R["clock_mhz"] / 1e6 == pytest.approx(limit, rel=2e-3)


def test_multiplies_follow_each_other_without_a_gap():
    # Dispatch of the first takes one scalar cycle; the head overlaps with the next multiply.
    assert cycles((0, 0, [mmad()])) == pytest.approx(1 + 256 + R["mmad_head"])
    assert cycles((0, 0, [mmad()] * 5)) == pytest.approx(1 + 5 * 256 + R["mmad_head"])


def test_a_multiply_counts_whole_fractals():
    assert cycles((0, 0, [mmad(m=1, k=1, n=1)] * 9)) == cycles((0, 0, [mmad(m=16, k=16, n=16)] * 9))
    assert cycles((0, 0, [mmad(m=17)])) - cycles((0, 0, [mmad(m=16)])) == pytest.approx(64 / 2)


def test_copy_that_hits_in_l2():
    transfer = 128 * 256 / R["gm_l1_bytes"]
    assert cycles((0, 0, [load()])) == pytest.approx(1 + transfer + R["gm_l1_latency"])
    assert cycles((0, 0, [load(), load(address=1 << 20)])) == pytest.approx(1 + 2 * transfer + R["gm_l1_latency"])


def test_copy_that_misses_waits_for_hbm_once():
    transfer = 128 * 256 / R["gm_l1_bytes"]
    cold = 1 + transfer + R["hbm_latency"] + R["gm_l1_latency"]
    assert cycles((0, 0, [load()]), l2="cold") == pytest.approx(cold)
    # The second copy reads the same lines: it waits for their arrival, but HBM is asked once.
    timing = predict([recording((0, 0, [load(), load()]))], l2="cold")
    assert timing.hbm_bytes == 128 * 256
    assert timing.gm_bytes == 2 * 128 * 256


def test_narrow_rows_pay_for_whole_lines():
    assert cycles((0, 0, [load(1024, 32, pitch=256)])) - R["gm_l1_latency"] == pytest.approx(
        1 + 1024 * 128 / R["gm_l1_bytes"]
    )


def test_l2_forgets_what_was_used_long_ago():
    first = load()
    others = [load(address=(1 << 20) + k * 32768) for k in range(64)]
    again = predict([recording((0, 0, [first, *others, load()]))], rates={"l2_capacity": 16 * 32768}).hbm_bytes
    kept = predict([recording((0, 0, [first, *others, load()]))]).hbm_bytes
    assert again - kept == 32768


def test_flag_orders_two_pipes():
    transfer = 128 * 256 / R["gm_l1_bytes"]
    program = [load(), notify("MTE2", "M"), wait("MTE2", "M"), mmad()]
    timing = predict([recording((0, 0, program))], l2="warm")
    assert timing.cycles == pytest.approx(1 + transfer + R["gm_l1_latency"] + 256 + R["mmad_head"])
    assert timing.stalls["M"]["flag from MTE2"] == pytest.approx(1 + transfer + R["gm_l1_latency"])
    # Without the flag both pipes run at the same time.
    assert cycles((0, 0, [load(), mmad()])) == pytest.approx(1 + transfer + R["gm_l1_latency"])


def test_lock_waits_for_earlier_unlocks_only():
    lock = sync("asc_lock", "M", 0, PIPE["M"], 3, 0)
    guarded = [
        sync("asc_lock", "MTE2", 0, PIPE["MTE2"], 3, 0),
        load(),
        sync("asc_unlock", "MTE2", 0, PIPE["MTE2"], 3, 0),
    ]
    copied = 128 * 256 / R["gm_l1_bytes"] + R["gm_l1_latency"]
    after = cycles((0, 0, [*guarded, lock, mmad(), sync("asc_unlock", "M", 0, PIPE["M"], 3, 0)]))
    assert after == pytest.approx(2 + copied + 256 + R["mmad_head"])
    before = cycles((0, 0, [lock, mmad(), sync("asc_unlock", "M", 0, PIPE["M"], 3, 0), load()]))
    assert before < after


def test_barrier_drains_every_pipe():
    drained = predict([recording((0, 0, [load(), sync("asc_sync", "S"), mmad()]))], l2="warm")
    copied = 1 + 128 * 256 / R["gm_l1_bytes"] + R["gm_l1_latency"]
    assert drained.cycles == pytest.approx(copied + 1 + 256 + R["mmad_head"])


def test_cross_core_signal_reaches_the_other_core():
    cube = [mmad(), sync("asc_sync_intra_arrive", "M", PIPE["M"], PIPE["M"], 16)]
    vector = [
        sync("asc_sync_intra_wait", "V", PIPE["V"], PIPE["V"], 0),
        event("simd_vf", "V", 1, 2560, 0, 0, 0, 0, 0, 1),
    ]
    timing = predict([recording((0, 0, cube), (0, 1, []), (0, 2, vector), kind="mixed")])
    assert timing.cycles == pytest.approx(1 + 256 + R["mmad_head"] + R["simd_launch"] + 10)
    assert timing.stalls["V"]["cross-core signal"] == pytest.approx(1 + 256 + R["mmad_head"])


def test_all_blocks_meet_at_an_inter_core_barrier():
    meet = [sync(f"asc_sync_inter_{what}", "M", PIPE["M"], PIPE["M"], 1) for what in ("arrive", "wait")]
    timing = predict([recording((0, 0, [mmad()] * 4 + meet + [mmad()]), (1, 0, [*meet, mmad()]), grid=2)])
    assert [c.end for c in timing.kernels[0].cores] == pytest.approx([1 + 5 * 256 + 2 * R["mmad_head"]] * 2)


def test_blocks_beyond_the_cores_run_in_waves():
    def grid(n):
        return cycles(*((b, 0, [mmad()]) for b in range(n)))

    assert grid(32) == grid(1)
    assert grid(33) == pytest.approx(2 * grid(1))


def test_blocks_that_meet_must_fit_on_the_chip():
    meet = [sync(f"asc_sync_inter_{what}", "M", PIPE["M"], PIPE["M"], 1) for what in ("arrive", "wait")]
    with pytest.raises(RuntimeError, match="the grid has 33 blocks, the chip takes 32"):
        cycles(*((b, 0, meet) for b in range(33)))


def test_hbm_is_shared_by_the_cores():
    def cold(blocks):
        return cycles(
            *((b, 0, [load(address=(b * 64 + k) * 32768) for k in range(64)]) for b in range(blocks)), l2="cold"
        )

    port = 64 * 32768 / R["gm_l1_bytes"]
    assert cold(1) == pytest.approx(port, rel=0.1)  # one core cannot use up HBM
    assert cold(32) == pytest.approx(32 * 64 * 32768 / R["hbm_bytes"], rel=0.1)


def test_unit_flag_overlaps_the_store_with_the_last_multiply():
    flags = predict([recording((0, 0, [mmad(), mmad(), notify("M", "FIX"), wait("M", "FIX"), store()]))]).cycles
    unit = predict([recording((0, 0, [mmad(unit_flag=2), mmad(unit_flag=3), store(unit_flag=3)]))]).cycles
    assert 1 + 2 * 256 + R["mmad_head"] < unit < flags - 200


def test_pair_of_vector_cores_shares_its_path_to_gm():
    copy = [event("asc_copy_gm2ub_align", "MTE2", 64, 1024, 1024, tensor=0)] * 4
    one = cycles((0, 0, []), (0, 1, copy), (0, 2, []), kind="mixed")
    both = cycles((0, 0, []), (0, 1, copy), (0, 2, copy), kind="mixed")
    assert both == pytest.approx(2 * one, rel=0.1)


def test_launch_cost_counts_per_kernel():
    one = predict([recording((0, 0, [mmad()]))])
    assert one.time_us == pytest.approx(R["launch_us"] + one.cycles / R["clock_mhz"])
    assert predict([recording((0, 0, [mmad()]))] * 2).time_us == pytest.approx(2 * one.time_us)


def test_l2_keeps_what_an_earlier_kernel_read():
    timing = predict([recording((0, 0, [load()]))] * 2)
    assert [k.hbm_read_bytes for k in timing.kernels] == [32768, 0]


def test_report_says_what_is_predicted():
    report = Report((recording((0, 0, [load(), notify("MTE2", "M"), wait("MTE2", "M"), mmad()])),), ())
    text = str(report)
    assert "predicted" in text
    assert "flag from MTE2 100%" in text
    assert report.tflops() == pytest.approx(2 * 128 * 64 * 128 / report.time_us / 1e6)
    assert report.gbps() == pytest.approx(32768 / report.time_us / 1e3)
    assert set(report.utilisation) == {"M", "MTE2", "L2", "HBM"}
    with pytest.raises(ValueError, match="'cold' or 'warm'"):
        report.predict(l2="lukewarm")
