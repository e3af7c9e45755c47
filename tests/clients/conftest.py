"""Loads a client module as an application would: with `import deep_gemm` in it, after compat.install()."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from unikernels import compat

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def load_client():
    """Return a function from a file name in this folder to a fresh module; DeepGEMM is ours until the module ends."""
    with compat.installed():

        def load(name):
            spec = importlib.util.spec_from_file_location(f"client_{name}", FOLDER / f"{name}.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module

        yield load
    assert "deep_gemm" not in sys.modules
