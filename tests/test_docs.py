"""Documents tell the truth: generated parts are current, links lead somewhere, Python blocks of the README run."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import json
import re
from pathlib import Path

import pytest

import unikernels

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


@pytest.fixture
def generate(monkeypatch):
    """docs/generate.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    specification = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_generated_documents_are_current(generate):
    assert (ROOT / "docs" / "environment.md").read_text() == generate.environment_page(), "run: make docs"
    found = json.loads(generate.EVIDENCE.read_text())
    covered = generate.covered()
    assert found["cases"] == covered["cases"], "cases have changed; run: make docs"
    assert found["sources"] == covered["sources"], (
        "what these files compute or predict may have changed; run: make docs"
    )
    for page, tables in generate.pages(found).items():
        text = page.read_text()
        for name, table in tables.items():
            assert generate.with_table(text, name, table) == text, f"{page.name}: {name}; run: make docs"


def test_evidence_claims_no_failure(generate):
    rows = generate.rows_of(json.loads(generate.EVIDENCE.read_text()))
    assert len(rows) > 100
    assert all(row["failed"] == 0 for row in rows)


def test_every_ascend_kernel_that_ran_has_a_prediction(generate):
    found = json.loads(generate.EVIDENCE.read_text())
    for key, row in (found["ascend_kernels"] | found["ascend_helpers"]).items():
        ran = row["kernels"] > 0
        assert [ran] * 3 == [bool(row["predicted"]), bool(row["size"]), row["exact"] + row["close"] > 0], key


def test_layout_and_comments_do_not_put_evidence_out_of_date(generate):
    code_in = generate.fingerprint.code_in
    text = 'def f(a, b):\n    """Adds."""\n    return a + b  # twice\n'
    assert code_in("x.py", text) == code_in("x.py", "def f(\n    a,\n    b):\n\n    return a  +  b")
    assert code_in("x.py", text) != code_in("x.py", text.replace("+", "-"))
    assert code_in("x.cpp", "int a; // one\n/* two\n*/ int b;") == code_in("x.cpp", "int a;int b;")
    assert code_in("x.cpp", "int a = 1;") != code_in("x.cpp", "int a = 2;")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:unikernels|backends|scale_layouts|tests|docs|benchmarks|examples)/[\w./]*\w)`", text):
        assert (ROOT / name).exists(), name


def _tests_in(path):
    """Return the tests of a file as they are named on the command line, without their parameters."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.update(f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))
    return names


def test_every_field_case_names_tests_that_exist():
    rows = re.findall(
        r"^\| FC-(\d+) \| (.+?) \| (.+) \|$", (ROOT / "docs" / "field_cases.md").read_text(), re.MULTILINE
    )
    assert [int(number) for number, _, _ in rows] == list(range(1, 56))
    for number, _, cell in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", cell)
        assert len(named) == len(cell.split("<br>")), f"FC-{number} names something that is no test"
        for path, test in named:
            assert test.split("::")[-1].startswith("test_"), f"FC-{number}"
            assert test in _tests_in(ROOT / path), f"FC-{number}: {path}::{test} does not exist"


def test_field_cases_mentioned_in_tests_are_listed():
    mentioned = {
        int(number) for path in (ROOT / "tests").rglob("*.py") for number in re.findall(r"FC-(\d+)", path.read_text())
    }
    assert mentioned <= set(range(1, 56))


@pytest.mark.parametrize("backend", ["cpu", "ascend"])
def test_readme_python_runs(backend):
    reason = unikernels.available_backends().get(backend, "it is not installed")
    if reason is not None:
        pytest.skip(f"backend '{backend}' cannot run here: {reason}")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    with unikernels.use_backend(backend):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), {})


def test_docstring_examples_run():
    import unikernels._registry
    import unikernels.api.gemm

    for module in (unikernels, unikernels._registry, unikernels.api.gemm):
        outcome = doctest.testmod(module)
        assert outcome.failed == 0, module.__name__
    assert doctest.testmod(unikernels.api.gemm).attempted > 0
