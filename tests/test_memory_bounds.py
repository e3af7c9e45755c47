"""Kernels read and write nothing past the end of a tensor: every operand ends where the process may not read on."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
def test_no_access_past_the_end_of_an_operand():
    script = pathlib.Path(__file__).with_name("memory_bounds_calls.py")
    environment = {**os.environ, "UNIKERNELS_BACKEND": "cpu"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "stayed inside" in done.stdout
