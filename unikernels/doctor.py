"""What ``unikernels doctor`` shows: environment, backends with reasons, and the capability table; all of it derived."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import __version__, _registry, environment, support
from .operations import ALL

_PACKAGES = ("torch", "numpy", "pluggy", "safetensors", "triton", "tilelang", "torch-npu", "deep-gemm")
_TOOLS = ("c++", "g++", "clang++", "nvcc")


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
        state = "[green]available[/]" if reason is None else f"[yellow]unavailable[/]: {escape(reason)}"
        backends.add_row(name, state, escape("\n".join(f"{key}: {value}" for key, value in details.items())))
    console.print(backends)
    _show_operations(console)
    return len(found.failures)


def _show_operations(console: Console) -> None:
    """Print operations, operand types and layouts by backend, then the reasons behind partial answers."""
    names = list(_registry.discover().backends)
    answers = {name: support.answers(name) for name in names if _registry.available_backends()[name] is None}
    operations = Table(
        title="Operations",
        caption="Counts are pairs of operand types and layout. Derived from the cases of each operation, the methods each "
        "backend overrides and what it refuses.",
    )
    operations.add_column("operation", no_wrap=True)
    for column in ("operand types", "layouts"):
        operations.add_column(column, overflow="fold")
    for name in names:
        operations.add_column(name, justify="center", no_wrap=True)
    for operation in ALL:
        lines = [line for line, of_line, _ in support.lines() if of_line is operation]
        marks = [_mark(answers.get(name), lines, capabilities(name)[operation.name]) for name in names]
        dtypes, layouts = dict.fromkeys(line[1] for line in lines), dict.fromkeys(line[2] for line in lines)
        operations.add_row(operation.name, ", ".join(dtypes), "; ".join(layouts), *marks)
    console.print(operations)
    limits = Table(title="Limits inside implemented operations")
    for column in ("backend", "operation", "operand types and layout", "it says"):
        limits.add_column(column, overflow="fold")
    for name, answer in answers.items():
        for (operation_name, reason), combinations in _refusals(answer, capabilities(name)).items():
            limits.add_row(name, operation_name, escape("; ".join(combinations)), escape(reason))
    if limits.row_count:
        console.print(limits)


def _mark(answer: dict[support.Line, str | None] | None, lines: list[support.Line], implements: bool) -> str:
    if not implements:
        return "-"
    if answer is None:
        return "[green]yes[/], not asked"  # it cannot run here
    taken = sum(answer[line] is None for line in lines)
    return f"[green]all {taken}[/]" if taken == len(lines) else f"[yellow]{taken} of {len(lines)}[/]"


def _refusals(answer: dict[support.Line, str | None], implements: dict[str, bool]) -> dict[tuple[str, str], list[str]]:
    """Group what a backend refuses by operation and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for (operation, dtype, layout), reason in answer.items():
        if reason is not None and implements[operation]:
            grouped.setdefault((operation, reason), []).append(f"{dtype} {layout}")
    return grouped


def _show_facts(console: Console) -> None:
    shown = Table(title="Environment", show_header=False)
    for name, value in facts().items():
        shown.add_row(name, escape(value))
    for variable in environment.VARIABLES:
        shown.add_row(variable.name, escape(environment.read(variable.name)) or "[dim]not set[/]")
    console.print(shown)
