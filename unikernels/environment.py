"""Every environment variable this library reads: name, default, meaning.

Each variable is read once per process (a lookup costs more than a whole dispatch); docs/environment.md is generated
from this table. Code that must react to a changed environment calls `forget()`, as the tests do.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable."""

    name: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()


VARIABLES = (
    Variable("UNIKERNELS_BACKEND", "auto", "Backend of every call: a backend name, or `auto` (by tensor device)."),
    Variable(
        "UNIKERNELS_FALLBACK",
        "",
        "Backend that computes what the selected one refuses; empty: refuse. Each use is reported once.",
    ),
    Variable(
        "UNIKERNELS_CACHE_DIR",
        "",
        "Where compiled kernels are kept; empty: DG_JIT_CACHE_DIR, else unikernels/ in XDG_CACHE_HOME or ~/.cache.",
    ),
    Variable(
        "DG_JIT_CACHE_DIR", "", "DeepGEMM's name for the kernel cache; honoured when UNIKERNELS_CACHE_DIR is empty."
    ),
    Variable("DG_COMM_KERNEL_DEBUG", "0", "1: zero the whole Mega MoE buffer after each call.", ("0", "1")),
    Variable(
        "DG_USE_NVIDIA_TOOLS",
        "",
        "Set: `testing.bench_kineto` does not profile (an outer profiler does) and returns 1.",
    ),
    Variable(
        "UNIKERNELS_ASCEND_EXECUTOR",
        "auto",
        "What runs Ascend kernels: `npu` (torch_npu), `sim` (the simulator, on CPU tensors), or `auto` (an NPU if present).",
        ("auto", "npu", "sim"),
    ),
    Variable(
        "UNIKERNELS_SIMULATOR_CACHE",
        "",
        "Where the simulator keeps compiled kernels, a folder of the user's own; empty: `simulator` in the folder above.",
    ),
    Variable("UNIKERNELS_SIMULATOR_CHECK", "on", "Hazard checks of simulated kernels; off is faster.", ("on", "off")),
    Variable("UNIKERNELS_CPU_COMPUTE", "auto", "dtype of decoded panels on the CPU.", ("auto", "bf16", "fp32")),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}


@functools.cache
def read(name: str) -> str:
    """Return the value of a declared variable, or its default.

    Raises:
        ValueError: the variable is set to something outside its choices.
    """
    variable = _BY_NAME[name]
    value = os.environ.get(name, variable.default)
    if variable.choices and value not in variable.choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(variable.choices)}.")
    return value


def forget() -> None:
    """Read the environment anew on next use (for tests)."""
    read.cache_clear()
