"""Import rules: who may import whom, what importing the package costs, and that it touches no device."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _imports(path):
    """Return absolute module names a file imports anywhere, relative ones resolved against our package names."""
    package = _package_of(path)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            stem = ".".join([*base, node.module] if node.module else base)
            yield stem
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def _package_of(path):
    parts = path.relative_to(ROOT).parts
    return ".".join(parts[:-1] if parts[0] == "unikernels" else ("unikernels", *parts[:-1]))


def _files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def _violations(folder, forbidden):
    return [
        (str(path.relative_to(ROOT)), name)
        for path in _files(folder)
        for name in _imports(path)
        if any(name == one or name.startswith(one + ".") for one in forbidden)
    ]


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("unikernels", ("unikernels.backends", "triton", "tilelang", "torch_npu")),
        ("unikernels/operations", ("unikernels.api", "unikernels._registry", "unikernels.backend")),
        (
            "scale_layouts",
            (
                "unikernels.api",
                "unikernels.operations",
                "unikernels.backend",
                "unikernels.backends",
                "unikernels._registry",
            ),
        ),
        (
            "backends/cpu",
            ("unikernels.backends.cuda", "unikernels.backends.ascend", "unikernels.api", "triton", "tilelang"),
        ),
        ("backends/ascend/kernels", ("tilelang",)),
        ("backends/ascend/programs", ("torch", "unikernels.operations", "unikernels.backends.ascend.kernels")),
        ("backends/ascend", ("unikernels.backends.cuda", "unikernels.backends.cpu", "unikernels.api", "triton")),
        (
            "backends/ascend/simulator",
            ("unikernels.operations", "unikernels.scale_layouts", "unikernels.backend", "unikernels._registry"),
        ),
    ],
)
def test_import_rules(folder, forbidden):
    assert _violations(folder, forbidden) == []


def test_only_executors_reach_ascend_programs():
    """Programs import TileLang, which takes a second: the host side names them and imports their variants only."""
    programs = "unikernels.backends.ascend.programs"
    assert [
        (path, name)
        for path, name in _violations("backends/ascend", (programs,))
        if not path.startswith("backends/ascend/programs/")
        and not name.startswith((f"{programs}.gemm_variant", f"{programs}.variants"))
    ] == []


def test_ascend_programs_are_made_of_steps_and_variants():
    """Their text is the key of the cache of lowered kernels; what else they imported could change unnoticed."""
    folder = "backends/ascend/programs"
    modules = {name.split(".")[4] for _, name in _violations(folder, ("unikernels.backends.ascend.programs",))}
    assert {name for name in modules if not name.endswith("_steps")} == {"gemm_variant", "variants"}
    assert _violations(folder, ("unikernels",)) == _violations(folder, ("unikernels.backends.ascend.programs",))


def test_nobody_imports_by_folder_path():
    folders = ("backends", "scale_layouts")
    assert [
        bad
        for folder in ("unikernels", *folders, "tests", "examples", "benchmarks")
        for bad in _violations(folder, folders)
    ] == []


def _python(code, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT / "tests", timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_no_compiler_and_no_plugin():
    heavy = ["triton", "tilelang", "torch_npu", "matplotlib", "rich", "safetensors", "unikernels.backends.cpu.plugin"]
    code = f"import sys, torch; before = set(sys.modules); import unikernels; print([m for m in {heavy} if m in set(sys.modules) - before])"
    assert _python(code) == "[]"


def test_import_needs_no_accelerator_and_fork_after_it_works():
    code = """
import os, torch, unikernels as uk
assert not torch.cuda.is_initialized()
# Before any parallel torch operation: torch's own OpenMP threads do not survive a fork.
child = os.fork()
a = torch.ones(64, 256).bfloat16(); d = torch.zeros(64, 64)
uk.bf16_gemm_nt(a, a, d)
assert d[0, 0] == 256
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert _python(code, CUDA_VISIBLE_DEVICES="", PATH="/nowhere") == "0"


def test_import_time_on_top_of_torch(tmp_path):
    code = "import time, torch; start = time.process_time(); import unikernels; print(time.process_time() - start)"
    # An installed package has its bytecode; a test run may have been told not to write any.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    _python(code, **bytecode)
    # Processor time, so that other load on the machine does not count.
    assert min(float(_python(code, **bytecode)) for _ in range(4)) <= 0.15
