"""What docs/ascend.md lists as computed is computed: parity tests skip what a backend refuses, so a new refusal would hide."""

from __future__ import annotations

import json
from pathlib import Path

from unikernels import support

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence.json"


def test_exactly_what_the_documentation_lists_is_refused(ascend):
    rows = json.loads(EVIDENCE.read_text())["ascend_kernels"]
    answers = {" | ".join(line): reason for line, reason in support.answers("ascend").items()}
    documented = {key: bool(row["refused"]) for key, row in rows.items() if key in answers}
    assert len(documented) > 60
    assert {key: answers[key] is not None for key in documented} == documented
    assert all("not implemented" in answers[key] for key in answers.keys() - documented.keys())
