"""The ``unikernels simulate`` command: its arguments. The simulator is imported when the command runs."""

from __future__ import annotations

import argparse
from pathlib import Path

_DESCRIPTION = """Run a script written for an Ascend 950 on this machine: @tilelang.jit(target="ascend") kernels are
simulated with all checks, "npu" tensors live on the CPU, and every kernel's predicted time is reported. Exit code 1 if a
kernel breaks a rule of the machine or the script fails."""


def add_simulate(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "simulate", help="run a script written for an Ascend device in the simulator", description=_DESCRIPTION
    )
    parser.add_argument("--check", choices=("on", "off"), default="on", help="hazard checks; off is faster")
    parser.add_argument("--seed", type=int, help="interleave pipes and cores at random with this seed")
    parser.add_argument(
        "--saturate", action="store_true", help="saturating instead of Inf/NaN arithmetic (CTRL[48] = 0)"
    )
    parser.add_argument("--trace", type=Path, help="write a trace for ui.perfetto.dev; further kernels get -2, -3, ...")
    parser.add_argument("--timeline", type=Path, help="draw a timeline as PNG; further kernels get -2, -3, ...")
    parser.add_argument("--module", "-m", action="store_true", help="the script is a module name, such as pytest")
    parser.add_argument("script", help="FILE.py, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.set_defaults(run=_simulate)


def _simulate(options: argparse.Namespace) -> int:
    from .simulator.script import run_script

    return run_script(
        options.script,
        options.arguments,
        module=options.module,
        trace=options.trace,
        timeline=options.timeline,
        check=options.check,
        seed=options.seed,
        saturate=options.saturate,
    )
