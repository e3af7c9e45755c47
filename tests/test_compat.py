"""compat.install: every way callers import DeepGEMM finds this library; a real one is never half replaced."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

import unikernels
from unikernels import compat
from unikernels.errors import UnikernelsError


@pytest.fixture(autouse=True)
def _leaves_no_trace():
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "deep_gemm"}
    yield
    compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "deep_gemm"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def real_deep_gemm(tmp_path, monkeypatch):
    """A package called deep_gemm that is not ours."""
    package = tmp_path / "deep_gemm"
    (package / "utils").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import utils\nfp8_gemm_nt = 'the real one'\n")
    (package / "utils" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def _public_functions():
    return [name for name in dir(unikernels) if not name.startswith("_") and callable(getattr(unikernels, name))]


def test_functions_are_the_librarys_own():
    compat.install()
    import deep_gemm

    assert deep_gemm.fp8_gemm_nt is unikernels.fp8_gemm_nt
    assert len(_public_functions()) > 30
    for name in _public_functions():
        assert getattr(deep_gemm, name) is getattr(unikernels, name), name


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("utils", "per_token_cast_to_fp8"),
        ("utils.math", "ceil_div"),
        ("utils.layout", "get_mk_alignment_for_contiguous_layout"),
        ("utils.dist", "init_dist"),
        ("testing", "calc_diff"),
        ("testing.bench", "bench_kineto"),
        ("testing.numeric", "count_bytes"),
        ("testing.utils", "get_arch_major"),
        ("epilogue", "Alpha"),
        ("locality_domain", "localize"),
        ("legacy", "m_grouped_bf16_gemm_nt_contiguous_tl"),
        ("mega", "fp8_fp4_mega_moe"),
    ],
)
def test_every_form_of_import_finds_the_submodule(module, name):
    compat.install()
    namespace: dict[str, object] = {}
    exec(f"from deep_gemm.{module} import {name}", namespace)
    exec(f"import deep_gemm.{module} as found", namespace)
    found = importlib.import_module(f"deep_gemm.{module}")
    assert namespace["found"] is found or module == "testing.bench"  # `import a.b as c` takes the attribute
    assert namespace[name] is getattr(found, name)
    assert importlib.util.find_spec(f"deep_gemm.{module}") is not None


def test_testing_bench_stays_a_function():
    compat.install()
    import deep_gemm
    import deep_gemm.testing.bench

    assert deep_gemm.testing.bench(lambda: None, num_warmups=0, num_tests=1) >= 0
    assert unikernels.testing.bench is deep_gemm.testing.bench


def test_library_modules_keep_their_identity():
    compat.install()
    import deep_gemm

    assert deep_gemm.utils is sys.modules["unikernels.utils"]
    assert deep_gemm.utils.__name__ == "unikernels.utils"
    assert deep_gemm.utils.__spec__.name == "unikernels.utils"


def test_names_we_lack_are_missing():
    """Callers probe with getattr(module, name, None) and take another path; a stub would be called instead."""
    compat.install()
    import deep_gemm

    for name in ("gemm_fp8_fp8_bf16_nt", "get_col_major_tma_aligned_tensor", "_C", "errors", "compat", "backend"):
        assert not hasattr(deep_gemm, name), name
    with pytest.raises(ImportError, match="cannot import name 'gemm_fp8_fp8_bf16_nt'"):
        exec("from deep_gemm import gemm_fp8_fp8_bf16_nt", {})
    with pytest.raises(ModuleNotFoundError, match=r"deep_gemm\.jit_kernels"):
        importlib.import_module("deep_gemm.jit_kernels")
    assert importlib.util.find_spec("deep_gemm.jit_kernels") is None


def test_version_is_the_generation_offered():
    compat.install()
    import deep_gemm

    assert tuple(int(part) for part in deep_gemm.__version__.split(".")) >= (2, 8, 2)


def test_install_and_uninstall_are_idempotent():
    assert not compat.is_installed()
    compat.install()
    first = sys.modules["deep_gemm"]
    compat.install()
    assert sys.modules["deep_gemm"] is first
    assert compat.is_installed()
    compat.uninstall()
    compat.uninstall()
    assert not compat.is_installed()
    assert not [name for name in sys.modules if name.split(".")[0] == "deep_gemm"]
    assert "unikernels.utils" in sys.modules


def test_installed_context_ends_unless_it_was_installed_before():
    with compat.installed():
        assert compat.is_installed()
    assert not compat.is_installed()
    compat.install()
    with pytest.raises(KeyError), compat.installed():
        raise KeyError
    assert compat.is_installed()


def test_an_imported_real_deep_gemm_is_refused(real_deep_gemm):
    real = importlib.import_module("deep_gemm")
    with pytest.raises(
        UnikernelsError, match=r"another deep_gemm is imported already, from .*__init__\.py.*force=True"
    ):
        compat.install()
    assert sys.modules["deep_gemm"] is real
    assert not compat.is_installed()


def test_force_replaces_all_of_it_and_uninstall_brings_it_back(real_deep_gemm):
    real = importlib.import_module("deep_gemm")
    compat.install(force=True)
    import deep_gemm

    assert deep_gemm.fp8_gemm_nt is unikernels.fp8_gemm_nt
    assert deep_gemm.utils is unikernels.utils
    compat.uninstall()
    assert sys.modules["deep_gemm"] is real
    assert sys.modules["deep_gemm.utils"] is real.utils


def test_an_installed_but_unimported_deep_gemm_is_not_found(real_deep_gemm):
    compat.install()
    assert importlib.import_module("deep_gemm").fp8_gemm_nt is unikernels.fp8_gemm_nt
    compat.uninstall()
    assert importlib.import_module("deep_gemm").fp8_gemm_nt == "the real one"


def test_run_command_runs_a_script_unchanged(tmp_path):
    script = tmp_path / "client.py"
    script.write_text(
        "import sys, torch, deep_gemm\n"
        "d = torch.empty(2, 3, dtype=torch.bfloat16)\n"
        "deep_gemm.bf16_gemm_nt(torch.ones(2, 4).bfloat16(), torch.ones(3, 4).bfloat16(), d)\n"
        "print(sys.argv[1:], d.tolist())\n"
    )
    command = [sys.executable, "-m", "unikernels", "run", str(script), "--flag", "7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"['--flag', '7'] {[[4.0] * 3] * 2}"
