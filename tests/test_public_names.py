"""Every name of the contract is used by some test or parity case: found in their source, so that no list is kept."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

TESTS = Path(__file__).parent
CASES = TESTS.parent / "unikernels" / "operations"
CONTRACT = json.loads((TESTS / "contract" / "deepgemm_signatures.json").read_text())
PUBLIC = {name: entry for name, entry in CONTRACT.items() if entry.get("exported_top_level", True)}
#: Literal characters a name assembled with f"..." must start with to count.
LEAST_PREFIX = 8


def sources():
    for path in [*TESTS.rglob("test_*.py"), *TESTS.glob("*_calls.py"), *CASES.glob("*cases.py")]:
        if path.name not in ("test_public_names.py", "test_api_contract.py"):
            yield path.read_text()


def used_names(source):
    """Return identifiers and whole-word strings, and patterns of names put together from literals and variables."""
    words, patterns = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.alias):
            words.add(node.name.split(".")[-1])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            words.add(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            # A script that a test runs in a process of its own.
            words.update(re.findall(r"\w+", node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            if parts[0] is not None and len(parts[0]) >= LEAST_PREFIX and parts[0].isidentifier():
                patterns.add("".join(r"[a-z0-9]+(_fp4)?" if part is None else re.escape(part) for part in parts))
    return words, patterns


def test_every_public_name_is_used_in_a_test():
    words, patterns = set(), set()
    for source in sources():
        more_words, more_patterns = used_names(source)
        words |= more_words
        patterns |= more_patterns
    pattern = re.compile("|".join(sorted(patterns)))

    def is_used(name):
        short = name.split(".")[-1]
        entry = CONTRACT[name]
        return (
            short in words
            or bool(pattern.fullmatch(short))
            or (entry["kind"] == "alias" and is_used(entry["alias_of"]))
        )

    missing = [name for name in PUBLIC if not is_used(name)]
    assert not missing, f"names of the contract in no test: {missing}"


def test_an_unused_name_would_be_noticed():
    words, patterns = used_names('uk.bf16_gemm_nt(a, f"{x}_gemm_nn")\ngetattr(uk, f"aclnn_bf16_gemm_{layout}")')
    assert "bf16_gemm_nt" in words
    assert patterns == {r"aclnn_bf16_gemm_[a-z0-9]+(_fp4)?"}
