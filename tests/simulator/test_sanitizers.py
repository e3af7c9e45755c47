"""The core under address and undefined-behaviour sanitizers: built apart, then driven by the instruction tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/simulator/instructions/test_gm_to_l1.py",
    "tests/simulator/instructions/test_l1_to_l0.py",
    "tests/simulator/instructions/test_mmad.py",
    "tests/simulator/instructions/test_fixpipe.py",
    "tests/simulator/instructions/test_ub_copies.py",
    "tests/simulator/instructions/test_simt_functions.py",
    "tests/simulator/hazards",
    "tests/simulator/test_launch.py",
    "tests/simulator/test_timing_replay.py",
]
PROJECT = """
    cmake_minimum_required(VERSION 3.20)
    project(sanitized LANGUAGES CXX)
    set(CMAKE_CXX_STANDARD 20)
    set(CMAKE_CXX_STANDARD_REQUIRED ON)
    set(CMAKE_CXX_EXTENSIONS OFF)
    set(CMAKE_BUILD_TYPE None)
    set(PYBIND11_FINDPYTHON ON)
    find_package(pybind11 CONFIG REQUIRED)
    find_package(Threads REQUIRED)
    add_compile_options(-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined)
    add_link_options(-fsanitize=address,undefined)
    add_subdirectory({folder} simulator)
"""
RUNNER = """
    import importlib.util, os, sys
    del os.environ["LD_PRELOAD"]  # not for the compiler
    import unikernels.backends.ascend  # the package whose module is replaced
    name = "unikernels.backends.ascend.simulator._simulator"
    spec = importlib.util.spec_from_file_location(name, sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    import pytest
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def build(folder: Path) -> Path:
    """Compile the core with sanitizers; returns the module."""
    import pybind11

    (folder / "CMakeLists.txt").write_text(textwrap.dedent(PROJECT).format(folder=ROOT / "backends/ascend/simulator"))
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [
        "cmake",
        *generator,
        "-S",
        ".",
        "-B",
        "build",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(configure, cwd=folder, check=True, capture_output=True)
    subprocess.run(
        ["cmake", "--build", "build", "--parallel", str(os.cpu_count() or 1)],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return next((folder / "build/simulator").glob("_simulator*.so"))


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="needs cmake and g++")
def test_the_core_is_clean_under_sanitizers(tmp_path):
    module = build(tmp_path)
    linked = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=True).stdout.split()
    # The C++ library too: the sanitizer looks up the real exception functions when it starts.
    runtimes = [next(w for w in linked if w.startswith("/") and name in w) for name in ("libasan", "libstdc++")]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes),
        # Python and torch are not built with sanitizers: their leaks and their allocators are not ours to judge.
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    runner = tmp_path / "runner.py"
    runner.write_text(textwrap.dedent(RUNNER))
    result = subprocess.run(
        [sys.executable, str(runner), str(module), *TESTS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    report = result.stdout[-4000:] + result.stderr[-6000:]
    assert result.returncode == 0, report
    assert "ERROR: AddressSanitizer" not in report
    assert "runtime error" not in report
