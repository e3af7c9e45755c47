"""One list of instructions: no name twice, every one cited, documented, and exercised by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from unikernels.backends.ascend.simulator import _simulator, coverage, report

ROOT = Path(__file__).parents[2]
TESTS = "\n".join(p.read_text() for p in sorted((ROOT / "tests" / "simulator").rglob("test_*.py")))
# The names under which tests reach what the core lists by its own name.
REACHED_AS = {"simd_vf": "__simd_vf__", "scalar_access": "scalar_access", "asc_vf_call": "asc_vf_call"}
FAMILIES = {"asc_copy_l12l0a": "asc_copy_l12l0", "asc_copy_l12l0b": "asc_copy_l12l0"}


def test_no_instruction_is_listed_twice_and_all_are_cited():
    names = [name for name, _, _, _ in _simulator.INSTRUCTIONS]
    assert len(names) == len(set(names))
    for name, pipe, group, section in _simulator.INSTRUCTIONS:
        assert pipe in {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "*"}, name
        assert group
        assert re.fullmatch(r"[a-f]\.\d+(\.\d+)?", section), name


@pytest.mark.parametrize("name", [name for name, _, _, _ in _simulator.INSTRUCTIONS])
def test_every_instruction_has_a_test(name):
    wanted = REACHED_AS.get(name, name)
    family = next((stem for prefix, stem in FAMILIES.items() if name.startswith(prefix)), wanted)
    assert wanted in TESTS or family in TESTS


def test_the_document_lists_the_current_instructions():
    text = (ROOT / "docs" / "simulator.md").read_text()
    start, end = text.index(coverage.BEGIN) + len(coverage.BEGIN), text.index(coverage.END)
    assert text[start:end].strip() == coverage.table().strip(), (
        "run: python -m unikernels.backends.ascend.simulator.coverage"
    )


def test_events_are_read_as_they_are_written(run_ascend):
    assert tuple(name for name, _, _, _ in _simulator.INSTRUCTIONS) == report.OPERATIONS
    result = run_ascend(
        "asc_sync_notify(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(5)); asc_sync_wait(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(5));",
        {"X": torch.zeros(1)},
    )
    events = result.recordings[0].events(0)
    assert [report.OPERATIONS[op] for op in events["op"]] == ["asc_sync_notify", "asc_sync_wait"]
    assert events["a"][:, :3].tolist() == [[4, 3, 5], [4, 3, 5]]
    assert events["pipe"].tolist() == [4, 3]


def test_scalar_accesses_past_the_cache_are_loads_and_stores(run_ascend):
    x, y = torch.arange(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    body = "for (int i = 0; i < 4; ++i) tl::write_gm_bypass_dcache(Y + i, tl::read_gm_bypass_dcache(X + i) * 10);"
    run_ascend(body, {"X": x, "Y": y}, kind="vector", includes=("tl_templates/ascend/dcache_bypass.h",))
    assert torch.equal(y, x * 10)
