"""The hooks a backend package implements; this file is their documentation.

A backend package declares an entry point in the group ``unikernels.backends`` that names a module, and that module
defines functions marked ``@unikernels.hookimpl``. Hooks run at discovery and in the command line only, never on a call.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .backend import Backend

PROJECT = "unikernels"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def unikernels_backend() -> Backend:  # type: ignore[empty-body]
    """Return the backend object.

    Called once per process, at discovery. Importing the plugin module and building the object must be cheap: load
    compilers and device runtimes on first use. A backend that cannot run here still returns its object and says why in
    `Backend.unavailable_reason`.
    """


@hookspec
def unikernels_command_line(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add commands to ``unikernels``: each sets ``run`` (a function of the parsed arguments that returns an exit code)."""
