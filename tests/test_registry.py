"""Discovery, choice and failure of backends, with real packages installed into temporary folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.backend import Backend
from unikernels.errors import BackendUnavailableError, InvalidArgumentError, UnsupportedOperationError
from unikernels.operations import ALL

BUILD_BACKEND = """
import os, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "{dist}-1.0-py3-none-any.whl"
    info = "{dist}-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.write("{module}.py")
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: {dist}\\nVersion: 1.0\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/entry_points.txt", "[unikernels.backends]\\n{entry} = {module}\\n")
        wheel.writestr(info + "/RECORD", "")
    return name
"""

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "build_backend"\nbackend-path = ["."]\n'

GOOD = """
from unikernels import hookimpl
from unikernels.backend import Backend

class Tiny(Backend):
    name = "tiny"
    device_types = ("cpu",)
    calls = 0

    def gemm(self, problem):
        Tiny.calls += 1
        problem.d.fill_(42.0)

@hookimpl
def unikernels_backend():
    return Tiny()
"""

CALL = """
import torch, unikernels as uk
a = torch.ones(4, 64).bfloat16()
d = torch.zeros(4, 4)
uk.bf16_gemm_nt(a, a, d)
"""


def _install(tmp_path, entry, source):
    """Really install a package: built by pip through its own build backend, into a folder of its own."""
    project = tmp_path / f"project_{entry}"
    project.mkdir()
    module = f"unikernels_{entry}_backend"
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "build_backend.py").write_text(BUILD_BACKEND.format(dist=f"{module}_dist", module=module, entry=entry))
    (project / f"{module}.py").write_text(source)
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--target", str(target), "--upgrade", str(project)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def _python(site, code, **variables):
    environment = {**os.environ, "PYTHONPATH": str(site), **variables}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, cwd=site
    )
    return done.returncode, done.stdout + done.stderr


def test_third_party_backend_is_discovered_chosen_by_the_variable_and_called(tmp_path):
    site = _install(tmp_path, "tiny", GOOD)
    code, text = _python(
        site, CALL + "print(d.unique().tolist(), uk.available_backends()['tiny'])", UNIKERNELS_BACKEND="tiny"
    )
    assert (code, text.strip()) == (0, "[42.0] None")


def test_third_party_backend_is_not_chosen_unasked(tmp_path):
    site = _install(tmp_path, "tiny", GOOD)
    code, text = _python(site, CALL + "print(d.unique().tolist())", UNIKERNELS_BACKEND="auto")
    assert (code, text.strip()) == (0, "[64.0]")


def test_missing_operation_names_backend_and_alternatives(tmp_path):
    site = _install(tmp_path, "tiny", GOOD.replace("def gemm", "def other"))
    code, text = _python(site, CALL, UNIKERNELS_BACKEND="tiny")
    assert code == 1
    assert re.search(r"backend 'tiny' does not implement 'gemm'\. Backends that do: .*cpu.*, reference\.", text)
    assert "Choose one with use_backend(...), or set UNIKERNELS_FALLBACK=cpu: 'cpu' then computes what 'tiny'" in text


def test_fallback_only_when_asked_and_reported_once(tmp_path):
    site = _install(tmp_path, "tiny", GOOD.replace("def gemm", "def other"))
    code, text = _python(
        site,
        CALL + "uk.bf16_gemm_nt(a, a, d); print(d.unique().tolist())",
        UNIKERNELS_BACKEND="tiny",
        UNIKERNELS_FALLBACK="cpu",
    )
    assert code == 0
    assert "[64.0]" in text
    assert text.count("UNIKERNELS_FALLBACK computes it on 'cpu'") == 1


def test_fallback_is_reported_at_the_line_of_the_call(tmp_path):
    """However many wrappers lie between: the second function has one more than the first."""
    site = _install(tmp_path, "tiny", GOOD.replace("def gemm", "def other"))
    calls = [
        "import torch, unikernels as uk",
        "a, ends = torch.ones(128, 64).bfloat16(), torch.tensor([128], dtype=torch.int32)",
        "uk.bf16_gemm_tn(a, a, torch.zeros(64, 64))",
        "uk.k_grouped_bf16_gemm_tn_contiguous(a, a, torch.zeros(1, 64, 64), [128], ends)",
    ]
    code, text = _python(site, "\n".join(calls), UNIKERNELS_BACKEND="tiny", UNIKERNELS_FALLBACK="cpu")
    assert code == 0, text
    assert re.findall(r"^(\S+): RuntimeWarning: (\w+):", text, re.MULTILINE) == [
        ("<string>:3", "gemm"),
        ("<string>:4", "k_grouped_gemm"),
    ]


def test_limits_inside_an_operation_are_refused_with_the_reason(tmp_path):
    limited = GOOD.replace(
        "    calls = 0", "    calls = 0\n    def why_not(self, operation, problem):\n        return 'm is even'"
    )
    site = _install(tmp_path, "tiny", limited)
    code, text = _python(site, CALL, UNIKERNELS_BACKEND="tiny")
    assert code == 1
    assert "gemm: backend 'tiny' cannot: m is even" in text
    assert "or set UNIKERNELS_FALLBACK=cpu: 'cpu' then computes what 'tiny' cannot, and nothing else." in text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ImportError('libX.so: cannot open shared object file')", "libX.so: cannot open shared object file"),
        (GOOD.replace("def unikernels_backend", "def unikernels_bakcend"), "unikernels_bakcend"),
        (GOOD.replace("def unikernels_backend():", "def unikernels_backend(nonsense):"), "nonsense"),
    ],
    ids=["import-error", "misspelt-hook", "wrong-argument"],
)
def test_a_broken_plugin_leaves_the_others_and_says_why_when_asked(tmp_path, source, message):
    site = _install(tmp_path, "broken", source)
    code, text = _python(site, CALL + "print(d[0, 0].item())")
    assert (code, text.strip()) == (0, "64.0")
    code, text = _python(site, CALL, UNIKERNELS_BACKEND="broken")
    assert code == 1
    assert "backend 'broken' failed to load" in text
    assert message in text


def test_unknown_backend_lists_the_known_ones():
    with pytest.raises(
        BackendUnavailableError, match=r"unknown backend 'nope'. Installed backends: .*cpu.*, or 'auto'"
    ):
        uk.set_backend("nope")
    with pytest.raises(BackendUnavailableError, match="unknown backend 'nope'"), uk.use_backend("nope"):
        pass


def test_use_backend_nests_and_is_local_to_its_thread():
    seen = []
    with uk.use_backend("reference"):
        with uk.use_backend("cpu"):
            assert _registry.selected() == "cpu"
        assert _registry.selected() == "reference"
        thread = threading.Thread(target=lambda: seen.append(_registry.selected()))
        thread.start()
        thread.join()
    assert seen == ["auto"]
    assert _registry.selected() == "auto"


def test_set_backend_is_process_wide_until_reset():
    uk.set_backend("reference")
    assert _registry.current_backend().name == "reference"
    uk.set_backend(None)
    assert _registry.selected() == "auto"


def test_wrong_device_for_the_backend():
    with pytest.raises(InvalidArgumentError, match="backend 'cpu' takes tensors on cpu, got tensors on 'meta2'"):
        _registry._choose("cpu", "meta2")


def test_no_backend_for_a_device():
    with pytest.raises(BackendUnavailableError, match="no backend for tensors on device 'hpu'"):
        _registry._choose("auto", "hpu")


def test_meta_tensors_run_the_checks_only():
    a = torch.empty(4, 64, dtype=torch.bfloat16, device="meta")
    d = torch.empty(4, 4, device="meta")
    uk.bf16_gemm_nt(a, a, d)
    with pytest.raises(InvalidArgumentError, match="d has shape"):
        uk.bf16_gemm_nt(a, a, d[:2])


def test_every_operation_has_a_backend_method_and_every_method_an_operation():
    for operation in ALL:
        assert callable(getattr(Backend, operation.name)), operation.name
        assert _registry.discover().backends["cpu"].implements(operation.name), operation.name


def test_a_backend_without_any_method_refuses_all():
    class Nothing(Backend):
        name = "nothing"

    for operation in ALL:
        assert not Nothing.implements(operation.name)
        with pytest.raises(UnsupportedOperationError, match=f"backend 'nothing' does not implement '{operation.name}'"):
            getattr(Nothing(), operation.name)(None)
