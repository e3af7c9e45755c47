"""Executors: the choice between them, reasons for not running and the disk cache."""

from __future__ import annotations

import ast
import dataclasses
import gc
import importlib.util
import subprocess
import sys
import time
import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import unikernels as uk
from unikernels import cli, environment
from unikernels.backends.ascend.programs.gemm_variant import GemmForm, Packed, Tiles
from unikernels.backends.ascend.programs.variants import KGroupedVariant, MGroupedVariant
from unikernels.backends.ascend.runtime import executor
from unikernels.backends.ascend.runtime.kernel import Kernel
from unikernels.backends.ascend.runtime.toolchain import find_bisheng, find_linker
from unikernels.backends.ascend.simulator.cache import Cache
from unikernels.backends.ascend.simulator.lowering import lower
from unikernels.errors import BackendUnavailableError, InvalidArgumentError


@pytest.fixture
def set_executor(monkeypatch):
    """A function that sets UNIKERNELS_ASCEND_EXECUTOR for this test."""

    def choose(name: str) -> None:
        monkeypatch.setenv("UNIKERNELS_ASCEND_EXECUTOR", name)
        environment.forget()

    yield choose
    monkeypatch.undo()
    environment.forget()


def _hide(monkeypatch, module: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else found(name, *rest))


def test_missing_tilelang_is_the_reason(monkeypatch):
    _hide(monkeypatch, "tilelang")
    assert "pip install 'unikernels[ascend]'" in executor.unavailable_reason()
    with pytest.raises(BackendUnavailableError, match="TileLang is not installed"), uk.use_backend("ascend"):
        pass


def test_missing_compiler_is_the_reason(monkeypatch, ascend):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert "compiler" in ascend.unavailable_reason()
    assert "/nonexistent/c++" in ascend.unavailable_reason()


_COMPILER, _LINKER = "TileLang's compiler `bisheng`", "the linker `ld.lld`"


@pytest.fixture
def toolkit(monkeypatch, tmp_path):
    """A function that puts empty tools into `tmp_path` and sets variables to folders of it; the rest of the machine has none."""
    for name in ("PATH", "BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)

    def install(files=(), **folders):
        for file in files:
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o755)
        for name, folder in folders.items():
            monkeypatch.setenv(name, str(tmp_path / folder))

    return install


@pytest.fixture
def npu(monkeypatch, set_executor):
    """torch_npu, seemingly, with a device."""
    pytest.importorskip("tilelang.contrib.bisheng")  # with an NPU its import would ask torch.npu for more
    set_executor("npu")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: name if name == "torch_npu" else found(name, *rest)
    )
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(is_available=lambda: True), raising=False)


@pytest.mark.parametrize(
    ("files", "folders", "missing"),
    [
        ((), {}, {_COMPILER, _LINKER}),
        (("bin/bisheng",), {"PATH": "bin"}, {_LINKER}),
        (("home/bin/bisheng",), {"BISHENG_HOME": "home"}, {_LINKER}),
        (("home/bisheng",), {"BISHENG_HOME": "home"}, {_COMPILER, _LINKER}),
        (("home/bin/bisheng", "bin/bisheng"), {"BISHENG_HOME": "home", "PATH": "bin"}, {_LINKER}),
        (("home/bin/bisheng", "home/bin/ld.lld"), {"BISHENG_HOME": "home"}, set()),
        (("bin/bisheng", "bin/ld.lld"), {"PATH": "bin"}, set()),
        (("bin/bisheng", "cann/bin/ld.lld"), {"PATH": "bin", "ASCEND_HOME_PATH": "cann"}, set()),
        (("bin/bisheng", "cann/ld.lld"), {"PATH": "bin", "ASCEND_TOOLKIT_HOME": "cann"}, set()),
        (("home/bin/bisheng", "bin/ld.lld"), {"BISHENG_HOME": "home", "PATH": "bin"}, set()),
    ],
)
def test_reason_names_the_tools_that_tilelang_does_not_find(ascend, toolkit, npu, files, folders, missing):
    bisheng = pytest.importorskip("tilelang.contrib.bisheng")
    toolkit(files, **folders)
    for finder, theirs in ((find_bisheng, bisheng.find_bisheng_path), (find_linker, bisheng.find_ld_lld_path)):
        try:
            expected = theirs()
        except RuntimeError:
            expected = None
        assert finder() == expected
    reason = ascend.unavailable_reason()
    assert {tool for tool in (_COMPILER, _LINKER) if tool in (reason or "")} == missing
    assert (reason is None) == (not missing)


def test_doctor_names_everything_an_npu_needs(monkeypatch, set_executor, toolkit, capsys):
    set_executor("npu")
    toolkit()
    _hide(monkeypatch, "torch_npu")
    monkeypatch.setenv("COLUMNS", "1000")  # no cell is wrapped
    assert cli.main(["doctor"]) == 0
    needed = f"running on an NPU needs torch_npu, which is not installed; {_COMPILER}, which"
    printed = capsys.readouterr().out
    assert needed in printed
    assert f"; {_LINKER}, which" in printed
    assert "UNIKERNELS_ASCEND_EXECUTOR=sim" in printed


def test_doctor_says_which_tools_an_npu_uses(ascend, toolkit, npu):
    toolkit(("cann/bin/bisheng", "cann/bin/ld.lld"), BISHENG_HOME="cann")
    details = ascend.details()
    assert details["compiler"].endswith("cann/bin/bisheng")
    assert details["linker"].endswith("cann/bin/ld.lld")
    assert "hazard checks" not in details


def test_an_npu_that_is_not_there_is_the_reason(monkeypatch, ascend, npu):
    monkeypatch.setattr(torch.npu, "is_available", lambda: False)
    assert "torch_npu sees none" in ascend.unavailable_reason()


def test_simulator_is_automatic_without_npu_but_never_for_cpu_tensors(monkeypatch, set_executor, ascend):
    set_executor("auto")
    _hide(monkeypatch, "torch_npu")
    assert executor.chosen_name() == "sim"
    assert ascend.device == torch.device("cpu")
    uk.set_backend(None)
    with uk.use_backend("auto"):
        from unikernels import _registry

        assert _registry.backend_for(torch.empty(1)).name == "cpu"
        assert _registry.current_backend().name == "cpu"


def test_cpu_tensors_meet_a_forced_npu(set_executor):
    set_executor("npu")
    with pytest.raises(InvalidArgumentError, match="UNIKERNELS_ASCEND_EXECUTOR=npu runs tensors on 'npu'"):
        executor.executor_for(torch.empty(1))


def test_calls_launch_nothing_but_their_kernels(ascend):
    """On an NPU whatever is no view is a launch of its own; arguments that a kernel ignores are made once."""

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    a, b, d = torch.ones(128, 8).bfloat16(), torch.ones(2, 8, 8).bfloat16(), torch.empty(128, 8)
    sizes, ends = torch.tensor([128], dtype=torch.int32), torch.tensor([4, 128], dtype=torch.int32)
    slab = torch.empty(1, 8, 8)
    calls = {
        "dense": lambda: uk.bf16_gemm_nt(a, b[0], d),
        "m_grouped": lambda: uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, ends, use_psum_layout=True),
        "k_grouped": lambda: uk.k_grouped_bf16_gemm_tn_contiguous(a, a, slab, [128], sizes),
        "batched": lambda: uk.einsum("bhr,hdr->bhd", a.view(64, 2, 8), b, d.view(64, 2, 8)),
    }
    for name, call in calls.items():
        seen = []
        with executor.collected_kernels():
            call()
            with Operations():
                call()
        assert [one for one in seen if not one.is_view] == [], name


_SECOND_PROCESS = """
import sys, torch, unikernels as uk
with uk.use_backend("ascend"):
    d = torch.empty(4, 8)
    uk.bf16_gemm_nt(torch.ones(4, 16).bfloat16(), torch.ones(8, 16).bfloat16(), d)
assert (d == 16).all()
print("tilelang" in sys.modules)
"""


def test_second_process_needs_no_tilelang(ascend):
    for expected in (None, "False"):
        found = subprocess.run([sys.executable, "-c", _SECOND_PROCESS], capture_output=True, text=True, check=True)
        assert expected in (None, found.stdout.strip())


def test_discovery_imports_no_tilelang():
    code = "import sys, unikernels as uk; uk.available_backends(); print('tilelang' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


_PREPARATION = """
import sys, time
from unikernels.backends.ascend.programs.gemm_variant import GemmForm, Tiles
from unikernels.backends.ascend.runtime.kernel import Kernel
from unikernels.backends.ascend.runtime.simulated import prepared
variant = GemmForm("bf16", False, True, True, "bfloat16", "accumulate", 32).with_tiles(Tiles(64, 64, 256, 64))
start = time.perf_counter()
prepared(Kernel("gemm", variant))
print("tilelang" in sys.modules, time.perf_counter() - start)
"""


def _prepare_in_a_new_process():
    found = subprocess.run([sys.executable, "-c", _PREPARATION], capture_output=True, text=True, check=True)
    lowered, seconds = found.stdout.split()
    return lowered == "True", float(seconds)


def test_a_lowered_kernel_takes_milliseconds_from_disk(ascend, tmp_path, monkeypatch):
    """2 to 7 ms, of which the fastest of five counts."""
    monkeypatch.setenv("UNIKERNELS_SIMULATOR_CACHE", str(tmp_path))
    lowered, _ = _prepare_in_a_new_process()
    assert lowered
    lowered, seconds = min(_prepare_in_a_new_process() for _ in range(5))
    assert not lowered
    assert seconds < 0.03


#: What docs/benchmarks.md names as the aim, and the fixed work below on an idle core of the machine it names.
_LOWERING_AIM_S, _IDLE_S = 3.0, 0.06
_SOME_WORK = "def f(a, b=1):\n    return [g(c, d.e) + b for c in a if c > b]\n" * 1500


def _thread_seconds(work):
    start = time.thread_time()
    work()
    return time.thread_time() - start


def _slowdown():
    """How much longer processor time is now: cores share caches and pipes with whatever else runs. At least 1."""
    gc.disable()  # what else lives in this process must not count
    try:
        found = min(_thread_seconds(lambda: list(ast.walk(ast.parse(_SOME_WORK)))) for _ in range(3))
    finally:
        gc.enable()
    return max(1.0, found / _IDLE_S)


def _slowest_to_lower():
    """The kinds that take longest (benchmarks/ascend_lowering.py): FP4 is decoded, groups are found on the device."""
    tiles = Tiles(32, 256, 256, 128)
    m_grouped = GemmForm("fp8", True, True, True, "bfloat16", "store", 32, packed=(Packed("b", True),))
    yield Kernel("m_grouped", MGroupedVariant(m_grouped.with_tiles(tiles), "psum", 256))
    k_grouped = GemmForm("fp8", True, False, False, "float32", "add", 32, packed=(Packed("b", False),))
    for epilogue in ("add", "accumulate"):
        form = dataclasses.replace(k_grouped, epilogue=epilogue)
        yield Kernel("k_grouped", KGroupedVariant(form.with_tiles(tiles), "psum", 256))


@pytest.mark.parametrize(
    "kernel", list(_slowest_to_lower()), ids=["m-grouped", "k-grouped-add", "k-grouped-accumulate"]
)
def test_lowering_keeps_to_its_aim(ascend, tmp_path, kernel):
    """Processor time as on an idle core, from Python function to Ascend C; the best of three attempts counts."""
    import tilelang  # noqa: F401  (its import is no lowering)

    attempts = []
    for attempt in ("first", "second", "third"):
        cache, before = Cache(tmp_path / attempt), _slowdown()
        seconds = _thread_seconds(lambda cache=cache: lower(kernel.build(), None, cache))
        attempts.append(seconds / ((before + _slowdown()) / 2))
        if attempts[-1] < _LOWERING_AIM_S:
            break
    assert 0.1 < min(attempts) < _LOWERING_AIM_S, attempts


def test_threads_lower_a_kernel_once(ascend, tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from unikernels.backends.ascend.runtime import simulated
    from unikernels.backends.ascend.simulator.lowering import Lowered

    lowered = []
    stand_in = Lowered("source", (), ())
    monkeypatch.setattr(Kernel, "build", lambda self: self.variant)
    monkeypatch.setattr(simulated, "lower", lambda program, configs, cache: lowered.append(program) or stand_in)
    monkeypatch.setenv("UNIKERNELS_SIMULATOR_CACHE", str(tmp_path))
    cache = Cache()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: simulated._lowered(Kernel("gemm", "once"), cache), range(16)))
    assert found == [stand_in] * 16
    assert lowered == ["once"]


def test_commands_print_reasons_as_they_are(monkeypatch, capsys):
    """Brackets, as in the name of an extra, are no markup."""
    _hide(monkeypatch, "tilelang")
    assert cli.main(["parity", "--backend", "ascend"]) == 2
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert "pip install 'unikernels[ascend]'" in " ".join(text.split())
