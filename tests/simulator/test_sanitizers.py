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
FOLDER = ROOT / "backends/ascend/simulator"
# Every memory and instruction of the core, with the fuzzing of copy parameters; the default run takes these.
COMPACT = [
    "tests/simulator/instructions/test_gm_to_l1.py",
    "tests/simulator/instructions/test_l1_to_l0.py",
    "tests/simulator/instructions/test_ub_copies.py",
    "tests/simulator/instructions/test_mmad.py",
    "tests/simulator/instructions/test_fixpipe.py",
    "tests/simulator/instructions/test_simt_functions.py",
    "tests/simulator/hazards/test_vector_hazards.py",
    "tests/simulator/hazards/test_mixed_hazards.py",
]
REST = [
    "tests/simulator/instructions/test_simt_kernels.py",
    "tests/simulator/instructions/test_simd_kernels.py",
    "tests/simulator/hazards",
    "tests/simulator/test_launch.py",
    "tests/simulator/test_timing_replay.py",
    # Sanitizers take over the signals that this file is about.
    "--ignore=tests/simulator/hazards/test_host_faults.py",
]
# The bindings are not the core and take longest: they are neither instrumented nor optimised. Files with flags of their
# own cannot read the precompiled header.
PROJECT = """
    cmake_minimum_required(VERSION 3.20)
    project(sanitized LANGUAGES CXX)
    set(CMAKE_CXX_STANDARD 20)
    set(CMAKE_CXX_STANDARD_REQUIRED ON)
    set(CMAKE_CXX_EXTENSIONS OFF)
    set(CMAKE_BUILD_TYPE None)
    set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
    set(PYBIND11_FINDPYTHON ON)
    find_package(pybind11 CONFIG REQUIRED)
    find_package(Threads REQUIRED)
    add_compile_options(-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined)
    add_link_options(-fsanitize=address,undefined)
    add_subdirectory({folder} simulator)
    set(bindings {folder}/src/module.cpp {folder}/src/timing_module.cpp)
    set(hot {folder}/src/accesses.cpp {folder}/src/vector.cpp)
    file(GLOB tiles {folder}/src/instructions/mmad_*.cpp)
    set_source_files_properties(${{bindings}} TARGET_DIRECTORY _simulator PROPERTIES
                                COMPILE_OPTIONS "-O0;-g0;-fno-sanitize=all")
    set_source_files_properties(${{hot}} TARGET_DIRECTORY _simulator PROPERTIES COMPILE_OPTIONS "")
    set_source_files_properties(${{bindings}} ${{tiles}} TARGET_DIRECTORY _simulator PROPERTIES
                                SKIP_PRECOMPILE_HEADERS ON)
    target_precompile_headers(_simulator PRIVATE {folder}/src/vector.hpp)
"""
# The core is told that a tensor is longer than it is, and copies beyond its end.
OVERRUN = """
    import torch
    from unikernels.backends.ascend.simulator import launch
    from unikernels.backends.ascend.simulator.lowering import Argument, DeviceFunction, Lowered

    SOURCE = '''#include <tl_templates/ascend/common.h>
    extern "C" __global__ __vector__ void k_kernel(__gm__ float* X) {
      asc_copy_gm2ub_align((__ubuf__ uint8_t*)0, (uint8_t*)X, 1, 4096, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
    }
    '''

    def test_overrun(monkeypatch):
        monkeypatch.setattr(launch, "_span", lambda tensor: 1 << 20)
        kernel = Lowered(SOURCE, (Argument("X", "float32", True, ("16",)),), (DeviceFunction("k_kernel", "1", (), {}),))
        launch.simulate(kernel, torch.zeros(16))
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
    # Not captured: a sanitizer ends the process, and what it said must remain.
    sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[2:]]))
"""


needs_tools = pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="needs cmake and g++")


@pytest.fixture(scope="module")
def sanitized_core(tmp_path_factory) -> Path:
    """The core compiled with sanitizers: the module's path."""
    import pybind11

    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "CMakeLists.txt").write_text(textwrap.dedent(PROJECT).format(folder=FOLDER))
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


def run_under_sanitizers(module: Path, tests: list[str], folder: Path) -> None:
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
    runner = folder / "runner.py"
    runner.write_text(textwrap.dedent(RUNNER))
    result = subprocess.run(
        [sys.executable, str(runner), str(module), *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    report = result.stdout[-4000:] + result.stderr[-20000:]
    assert result.returncode == 0, report
    assert "ERROR: AddressSanitizer" not in report
    assert "runtime error" not in report


# One test, so that the core is built once whatever process runs it.
@needs_tools
def test_the_core_is_clean_under_sanitizers_which_catch_an_overrun(sanitized_core, tmp_path):
    run_under_sanitizers(sanitized_core, COMPACT, tmp_path)
    overrun = tmp_path / "test_overrun.py"
    overrun.write_text(textwrap.dedent(OVERRUN))
    with pytest.raises(AssertionError, match="ERROR: AddressSanitizer: heap-buffer-overflow"):
        run_under_sanitizers(sanitized_core, [str(overrun)], tmp_path)


@pytest.mark.slow
@needs_tools
def test_the_rest_of_the_core_is_clean_under_sanitizers(sanitized_core, tmp_path):
    run_under_sanitizers(sanitized_core, REST, tmp_path)
