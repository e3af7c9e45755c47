"""Runs a script under `simulated_device` and reports what its kernels did; the body of ``unikernels simulate``.

Argument parsing is not here, and neither is anything a kernel does.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .device import SimulatedDevice, simulated_device
from .errors import LaunchError
from .report import Report


def run_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    trace: Path | None = None,
    timeline: Path | None = None,
    **options: Any,
) -> int:
    """Run `script` (a file, or a module's name) as ``__main__`` on the simulated device.

    Prints the report of every kernel at its first call with given shapes, and a summary. `trace` and `timeline` name
    files for the first such kernel; the others get -2, -3, ... before the suffix. `options` go to `simulate`.

    Returns:
        0, the script's own exit code, or 1 if it failed or any kernel had a hazard (even one the script caught).

    Raises:
        LaunchError: the file does not exist.
    """
    if not module and not Path(script).is_file():
        raise LaunchError(f"there is no file '{script}'; give a Python script, or -m and a module's name")
    shown: list[Report] = []

    def show(report: Report, first: bool) -> None:
        if first:
            print(f"\n{report}", flush=True)
            shown.append(report)

    with simulated_device(**options) as device:
        device.on_report = show
        code = _run(script, arguments, module)
    _summary(device)
    for path, draw in ((trace, Report.trace), (timeline, Report.timeline)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            for index, report in enumerate(shown):
                name = path if index == 0 else path.with_stem(f"{path.stem}-{index + 1}")
                print(f"wrote {draw(report, name)}")
    return 1 if device.faults else code


def _run(script: str, arguments: Sequence[str], module: bool) -> int:
    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if module else str(Path(script).resolve().parent))
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except Exception as error:
        if getattr(error, "builtin", None) is None:  # a hazard's message says all; other errors need their place
            _print_traceback(error, script)
        return 1
    return 0


def _print_traceback(error: Exception, script: str) -> None:
    """The traceback without the frames that only serve to run the script."""
    frames = error.__traceback__
    here = frames
    while here is not None and here.tb_frame.f_code.co_filename != script:
        here = here.tb_next
    traceback.print_exception(type(error), error, here or frames)


def _summary(device: SimulatedDevice) -> None:
    calls: dict[str, list[Report]] = {}
    for report in device.reports:
        calls.setdefault(", ".join(r.symbol for r in report.recordings) or "no kernel", []).append(report)
    print()
    if not device.reports and not device.faults:
        print("no kernel was launched through tilelang.jit or tilelang.compile for the Ascend target")
    for name, reports in calls.items():
        times = [r.time_us for r in reports]
        span = f"{times[0]:.1f}" if min(times) == max(times) else f"{min(times):.1f} to {max(times):.1f}"
        print(f"{name}: {len(reports)} call{'s' * (len(reports) > 1)}, predicted {span} us each")
    for fault in device.faults:
        print(f"{type(fault).__name__}: {fault}")
    verdict = "no hazards" if not device.faults else f"{len(device.faults)} hazard{'s' * (len(device.faults) > 1)}"
    total = sum(r.time_us for r in device.reports)
    checks = "" if device.options.get("check") != "off" else " (checks are off)"
    print(f"{len(device.reports)} kernel launches, predicted {total:.1f} us in all; {verdict}{checks}")
