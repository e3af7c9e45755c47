"""What ``unikernels doctor`` shows: environment, backends with reasons, and the capability table; all of it derived."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil

import torch
from rich.console import Console
from rich.table import Table

from . import __version__, _registry, environment
from .operations import ALL

_PACKAGES = ("torch", "numpy", "pluggy", "safetensors", "triton", "tilelang", "torch-npu", "deep-gemm")
_TOOLS = ("c++", "g++", "clang++", "nvcc", "bisheng")


def facts() -> dict[str, str]:
    """Return versions and tools of this machine."""
    found = {"unikernels": __version__, "python": platform.python_version(), "machine": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["CPU instructions"] = torch.backends.cpu.get_cpu_capability()
    found["threads"] = str(torch.get_num_threads())
    for tool in _TOOLS:
        found[tool] = shutil.which(tool) or "not found"
    return found


def capabilities(backend: str) -> dict[str, bool]:
    """Return for each canonical operation whether an installed backend implements it."""
    known = _registry.discover().backends[backend]
    return {operation.name: known.implements(operation.name) for operation in ALL}


def show(console: Console) -> int:
    """Print everything; returns the number of backends that are installed but broken (for the exit code)."""
    _show_facts(console)
    found = _registry.discover()
    backends = Table(title="Backends", caption=f"in force: {_registry.selected()}")
    for column in ("backend", "state", "details"):
        backends.add_column(column, overflow="fold")
    for name, reason in _registry.available_backends().items():
        details = found.backends[name].details() if name in found.backends and reason is None else {}
        state = "[green]available[/]" if reason is None else f"[yellow]unavailable[/]: {reason}"
        backends.add_row(name, state, "\n".join(f"{key}: {value}" for key, value in details.items()))
    console.print(backends)
    operations = Table(
        title="Operations", caption="derived from the cases of each operation and the methods each backend overrides"
    )
    operations.add_column("operation", no_wrap=True)
    operations.add_column("operand types")
    operations.add_column("computes")
    for name in found.backends:
        operations.add_column(name, justify="center")
    columns = [capabilities(name) for name in found.backends]
    for operation in ALL:
        marks = ["[green]yes[/]" if column[operation.name] else "-" for column in columns]
        dtypes = dict.fromkeys(case.labels["dtype"] for case in operation.cases())
        operations.add_row(operation.name, ", ".join(dtypes), operation.summary, *marks)
    console.print(operations)
    return len(found.failures)


def _show_facts(console: Console) -> None:
    shown = Table(title="Environment", show_header=False)
    for name, value in facts().items():
        shown.add_row(name, value)
    for variable in environment.VARIABLES:
        shown.add_row(variable.name, environment.read(variable.name) or "[dim]not set[/]")
    console.print(shown)
