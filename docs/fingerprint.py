"""What the evidence in docs/evidence.json depends on, as digests that comments, docstrings and line breaks do not change.

Per file, so that tests/test_docs.py names what has changed since `make docs` last ran. Used by generate.py.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Programs and what chooses their variants, the model that predicts their times, and what the table is made by.
_SOURCES = (
    "backends/ascend/programs/*.py",
    "backends/ascend/kernels/*.py",
    "backends/ascend/kernels/data/*.json",
    "backends/ascend/predicted.py",
    "backends/ascend/sample_calls.py",
    "backends/ascend/simulator/rates.py",
    "backends/ascend/simulator/timing.py",
    "backends/ascend/simulator/src/timing*",
    "docs/ascend_*.py",
)


def of_names(names: Iterable[str]) -> str:
    """Return a digest of names, in order."""
    return _digest("\n".join(names))


def of_sources() -> dict[str, str]:
    """Return the digest of every file whose change puts the evidence out of date, by its path in the repository."""
    paths = sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern))
    return {path.relative_to(ROOT).as_posix(): _digest(code_in(path.name, path.read_text("utf-8"))) for path in paths}


def code_in(name: str, text: str) -> str:
    """Return the text of a file without comments, docstrings and white space."""
    if name.endswith(".py"):
        text = _python_code(text)
    elif not name.endswith(".json"):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return "".join(text.split())


def _python_code(text: str) -> str:
    """Works by places in the text: what the compiler makes of it differs between versions of Python."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            for row in range(docstring.lineno, docstring.end_lineno + 1):
                lines[row - 1] = ""
    return "\n".join(lines)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
