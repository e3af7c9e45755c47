"""Traces and timelines show the spans of the replay."""

from __future__ import annotations

import importlib.util
import itertools
import json

import numpy as np
import pytest

from unikernels.backends.ascend.simulator.plain_gemm import Tiling
from unikernels.backends.ascend.simulator.published import time_gemm
from unikernels.backends.ascend.simulator.trace import traced_spans


@pytest.fixture(scope="module")
def report():
    return time_gemm("bf16", 512, 512, 1024, Tiling(128, 256, 256, 64))


def test_trace_holds_the_instructions_of_the_chosen_blocks(report, tmp_path):
    events = json.loads(report.trace(tmp_path / "t.json", blocks=2).read_text())["traceEvents"]
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {"AIC MTE2", "AIC MTE1", "AIC M", "AIC FIX"}
    work = [e for e in events if e["ph"] == "X" and e["name"] != "wait"]
    assert {e["pid"] for e in work} == {0, 1}
    counts = report.instruction_counts()
    assert sum(e["name"] == "asc_mmad" for e in work) == counts["asc_mmad"] // 4  # two of eight blocks have a tile
    assert all(e["args"]["line"] > 0 for e in work)
    assert max(e["args"]["result_us"] for e in work) <= report.time_us


def test_spans_of_one_pipe_do_not_overlap(report, tmp_path):
    events = json.loads(report.trace(tmp_path / "t.json").read_text())["traceEvents"]
    threads = {e["tid"] for e in events if e["ph"] == "X"}
    assert len(threads) == 4
    for thread in threads:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == thread)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(spans))


def test_busy_time_in_spans_is_the_reported_utilisation(report):
    multiplies = [s for _, s in traced_spans(report, blocks=8, l2="cold") if s.pipe == "M"]
    share = sum(s.end - s.start for s in multiplies) / 8 / report.predict().cycles
    assert share == pytest.approx(report.utilisation["M"], rel=0.05)


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="pictures need matplotlib: pip install matplotlib"
)
def test_timeline_is_a_picture(report, tmp_path):
    from unikernels.backends.ascend.simulator.timeline import busy_shares

    path = report.timeline(tmp_path / "t.png", block=1)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    work = [s for _, s in traced_spans(report, blocks=1, l2="cold") if s.end > s.start]
    edges = np.linspace(0, max(s.end for s in work), 50)
    shares = busy_shares(work, (0, "M"), edges)
    assert shares.min() >= 0
    assert shares.max() <= 1 + 1e-9
    assert (shares * np.diff(edges)).sum() == pytest.approx(sum(s.end - s.start for s in work if s.pipe == "M"))
    with pytest.raises(ValueError, match="block 99 executed no instruction"):
        report.timeline(tmp_path / "u.png", block=99)
