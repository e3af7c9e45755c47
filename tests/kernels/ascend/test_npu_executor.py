"""The NPU executor through TileLang's real compiler driver and runtime; what a device would be given is what the simulator runs.

Only the vendor's parts stand in: `bisheng` and `ld.lld` pass the source on as the binary, AscendCL hands launches over.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import unikernels as uk
from unikernels import parity
from unikernels.backends.ascend.runtime import simulated
from unikernels.backends.ascend.runtime.executor import collected_kernels
from unikernels.backends.ascend.runtime.npu import NpuExecutor
from unikernels.backends.ascend.simulator import launch
from unikernels.backends.ascend.simulator.compiler import find_compiler
from unikernels.errors import UnsupportedOperationError

_COMPILER = """#!/bin/sh
options="$*"
while [ $# -gt 1 ]; do
  case "$1" in *.asc) source="$1" ;; -o) output="$2" ;; esac
  shift
done
{ echo "$options"; cat "$source"; } > "$output"
"""
_LINKER = """#!/bin/sh
while [ $# -gt 1 ]; do
  case "$1" in *.rel.o) object="$1" ;; -o) output="$2" ;; esac
  shift
done
cp "$object" "$output"
"""
_EXT_DEV = 12  # DLPack's device type of NPUs in TileLang
_DEVICE_TYPE_OFFSET = 24 + 8  # of a tvm_ffi tensor: behind the object's header and the data pointer
_OBSERVER = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t
)


class Launch(NamedTuple):
    """What a device is told to run: a program's text, a function of it, how many blocks, and the bytes of its arguments."""

    source: str
    symbol: str
    num_blocks: int
    arguments: bytes


class Device:
    """Takes down the launches of TileLang's runtime, and the options their sources were compiled with."""

    def __init__(self, ascendcl: Path) -> None:
        self.launches: list[Launch] = []
        self.options: list[str] = []
        self._observer = _OBSERVER(self._observe)
        ctypes.CDLL(str(ascendcl)).observe_launches(self._observer)

    def _observe(self, binary, binary_bytes, symbol, num_blocks, arguments, argument_bytes):
        options, _, source = ctypes.string_at(binary, binary_bytes).decode().partition("\n")
        self.options.append(options)
        self.launches.append(Launch(source, symbol.decode(), num_blocks, ctypes.string_at(arguments, argument_bytes)))


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory):
    """A folder like CANN's, with the stand-ins; one per process, because TileLang loads AscendCL once."""
    if importlib.util.find_spec("torch_npu") is not None:
        pytest.skip("torch_npu is installed, so that TileLang would find the real AscendCL")
    folder = tmp_path_factory.mktemp("toolkit")
    (folder / "bin").mkdir()
    for name, script in (("bisheng", _COMPILER), ("ld.lld", _LINKER)):
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    library = folder / "runtime" / "lib64" / "libascendcl.so"
    library.parent.mkdir(parents=True)
    source = Path(__file__).with_name("stand_in_ascendcl.cpp")
    subprocess.run([*find_compiler(), "-std=c++20", "-shared", "-fPIC", "-o", library, source], check=True)
    return folder


@pytest.fixture
def device(toolkit, monkeypatch, tmp_path):
    """The stand-in device, with TileLang's cache empty."""
    pytest.importorskip("tilelang")
    monkeypatch.setenv("BISHENG_HOME", str(toolkit))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
    return Device(toolkit / "runtime" / "lib64" / "libascendcl.so")


def _on_device(argument):
    """The same memory as a tensor that says it lies on an NPU; scalars as they are."""
    import tvm_ffi

    if not isinstance(argument, torch.Tensor):
        return argument
    moved = tvm_ffi.from_dlpack(argument)
    handle = ctypes.cast(moved.__chandle__(), ctypes.c_void_p).value
    ctypes.c_int32.from_address(handle + _DEVICE_TYPE_OFFSET).value = _EXT_DEV
    return moved


def _in_memory(values) -> bytes:
    """Pointers (integers) and scalars (bytes) one behind another, each on a multiple of its size, as a C struct."""
    packed = b""
    for value in values:
        field = struct.pack("<Q", value) if isinstance(value, int) else value
        packed += bytes(-len(packed) % len(field)) + field
    return packed + bytes(-len(packed) % 8)


@pytest.fixture
def on_both(ascend, device, monkeypatch):
    """Every kernel that runs in the simulator runs on the stand-in device too; returns the two executors' launches."""
    npu, simulated_launches = NpuExecutor(), []
    run_simulated, run_core = simulated.SimulatedExecutor.run, launch._simulator.run

    def run(self, kernel, *arguments):
        def observed(library, symbol, kind, grid, values, *rest):
            source = simulated.prepared(kernel).lowered.source
            simulated_launches.append(Launch(source, symbol, grid, _in_memory(values)))
            return run_core(library, symbol, kind, grid, values, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(launch._simulator, "run", observed)
            run_simulated(self, kernel, *arguments)
        npu.run(kernel, *map(_on_device, arguments))

    monkeypatch.setattr(simulated.SimulatedExecutor, "run", run)
    return device, simulated_launches


def _run(*ids):
    cases = {case.id: case for _, case in parity.select(levels=("smoke", "edge"))}
    for case in (cases[one] for one in ids):
        case.run(uk, case.tensors())


def _programs(launches) -> set[str]:
    return {one.symbol.removesuffix("_kernel") for one in launches}


def test_a_device_is_given_what_the_simulator_runs(on_both):
    """Sources, functions, blocks and every byte of the arguments, of four programs."""
    device, simulated_launches = on_both
    _run("fp8xfp8-nt-fp32_32-m=34-n=130-k=256", "bf16-nt-sizes=5+0+33-n=18-k=40")
    assert device.launches == simulated_launches
    assert _programs(device.launches) == {"scale_words", "gemm", "gather_rows", "m_grouped_gemm"}
    assert all("--npu-arch=dav-3510" in options.split() for options in device.options)


def _cases_of_every_program():
    """Parity cases that run every program, each with all operand types it is used for."""
    seen: set[tuple[str, str]] = set()
    for _, case in parity.select(levels=("smoke", "edge")):
        with collected_kernels() as kernels, contextlib.suppress(UnsupportedOperationError):
            case.run(uk, case.tensors())
        found = {(kernel.program, case.labels["dtype"]) for kernel in kernels}
        if not found <= seen:
            seen |= found
            yield case


@pytest.mark.slow
def test_a_device_is_given_what_the_simulator_runs_in_every_program(on_both, small_integers):
    """In all operand types; a long K that is divided is none of the cases."""
    device, simulated_launches = on_both
    for case in _cases_of_every_program():
        case.run(uk, case.tensors())
    uk.bf16_gemm_nt(small_integers(16, 16384).bfloat16(), small_integers(64, 16384).bfloat16(), torch.empty(16, 64))
    assert device.launches == simulated_launches
    folder = Path(simulated.__file__).parents[1] / "programs"
    assert len(_programs(device.launches)) == sum("\ndef build(" in path.read_text() for path in folder.glob("*.py"))


def test_kernels_are_compiled_once_and_take_no_cpu_tensors(ascend, device, monkeypatch):
    import tilelang

    compiled, compile_kernel = [], tilelang.compile
    monkeypatch.setattr(
        tilelang, "compile", lambda *given, **options: compiled.append(options) or compile_kernel(*given, **options)
    )
    launched = []
    with monkeypatch.context() as patch:
        patch.setattr(simulated.SimulatedExecutor, "run", lambda self, *given: launched.append(given))
        _run("psum-bf16-nt-sizes=3+0+70+33-n=65-k=200")
    kernel, *arguments = next(given for given in launched if given[0].program == "zero_gaps")
    executor = NpuExecutor()
    executor.build(kernel)
    assert not device.launches
    with pytest.raises(RuntimeError, match="device_type mismatch, expected ext_dev"):
        executor.run(kernel, *arguments)
    assert not device.launches
    for _ in range(2):
        executor.run(kernel, *map(_on_device, arguments))
    assert [one.symbol for one in device.launches] == ["zero_gaps_kernel"] * 2
    assert compiled == [{"target": "ascend"}]
