"""The command line: doctor, parity, bench, tune, warmup, run, and the commands that backends add."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from . import _registry
from .errors import UnikernelsError
from .operations import LEVELS

if TYPE_CHECKING:
    from .operations import Case, Operation
    from .parity import Result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 fine, 1 a comparison failed, 2 the request makes no sense)."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        return code
    except (UnikernelsError, ValueError) as error:
        Console(stderr=True).print(f"[bold red]unikernels {options.command}:[/] {escape(str(error))}", highlight=False)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unikernels", description="One DeepGEMM-compatible kernel API over pluggable backends."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    doctor = commands.add_parser("doctor", help="show the environment, backends with reasons, and what they can do")
    doctor.set_defaults(run=_doctor)

    parity = commands.add_parser("parity", help="compare backends with the reference, or with a recorded bundle")
    _add_selection(parity)
    parity.add_argument("--html", type=Path, help="write a self-contained report page")
    parity.add_argument("--json", type=Path, help="write all comparisons as JSON")
    parity.add_argument("--picture", type=Path, help="write the plots as a PNG")
    parity.set_defaults(run=_parity, action=None, backend=[])
    parity.add_argument(
        "--backend", action="append", help="backend to compare; may be repeated (default: all available)"
    )
    actions = parity.add_subparsers(dest="action")
    record = actions.add_parser("record", help="run cases and keep inputs and outputs in FILE")
    record.add_argument("file", type=Path)
    record.add_argument("--backend", default=None, help="default: the backend in force")
    _add_selection(record)
    record.set_defaults(run=_record)
    check = actions.add_parser("check", help="run the cases of FILE here and compare with what it holds")
    check.add_argument("file", type=Path)
    check.add_argument("--backend", default=None, help="default: the backend in force")
    check.set_defaults(run=_check)

    bench = commands.add_parser("bench", help="time cases on one backend")
    _add_selection(bench, level="bench")
    bench.add_argument("--backend", default=None, help="default: the backend in force")
    bench.add_argument("--json", type=Path, help="append one JSON line per case")
    bench.add_argument(
        "--predicted", action="store_true", help="predict published results with the backend's timing model instead"
    )
    bench.set_defaults(run=_bench)

    tune = commands.add_parser("tune", help="choose kernel configurations and write them to the backend's table")
    tune.add_argument("--file", type=Path, help="table to update (default: the backend's own)")
    tune.set_defaults(run=_tune)
    warmup = commands.add_parser("warmup", help="build kernels before they are needed")
    warmup.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many at once (default: %(default)s)"
    )
    warmup.add_argument(
        "--groups", type=int, default=0, metavar="G",
        help="build for grouped GEMMs with G groups of these sizes, not for dense ones",
    )  # fmt: skip
    warmup.set_defaults(run=_warmup)
    for command in (tune, warmup):
        command.add_argument("--backend", default=None, help="default: the backend in force")
        command.add_argument(
            "--shapes", type=_shape, nargs="+", action="extend", default=[], metavar="M,N,K",
            help="GEMM sizes (default: those in the table)",
        )  # fmt: skip

    run = commands.add_parser("run", help="run a script with `import deep_gemm` answered by unikernels")
    run.add_argument("script", type=Path)
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    run.set_defaults(run=_run)

    for backend in _registry.discover().backends:
        plugin = _registry.discover().manager.get_plugin(backend)
        hook = getattr(plugin, "unikernels_command_line", None)
        if hook is not None:
            hook(commands)
    return parser


def _add_selection(parser: argparse.ArgumentParser, level: str = "smoke") -> None:
    parser.add_argument("--op", action="append", help="canonical operation; may be repeated (default: all)")
    parser.add_argument("--level", action="append", choices=LEVELS, help=f"set of cases (default: {level})")
    parser.add_argument("-k", dest="pattern", default="", help="only cases whose id contains this text")
    parser.set_defaults(default_level=level)


def _selection(options: argparse.Namespace) -> list[tuple[Operation, Case]]:
    from .parity import select

    cases = select(options.op, options.level or [options.default_level], options.pattern)
    if not cases:
        raise ValueError("no case fits --op, --level and -k.")
    return cases


@contextmanager
def _progress(title: str, total: int) -> Iterator[Progress]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(title, total=total)
    with bar:
        yield bar


def _console() -> Console:
    """Standard output; files and pipes get lines wide enough for the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 120))


def _backend_in_force(name: str | None) -> str:
    return name or _registry.current_backend().name


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import show

    return 1 if show(_console()) else 0


def _parity(options: argparse.Namespace) -> int:
    from . import parity

    cases = _selection(options)
    backends = options.backend or [
        name for name, reason in _registry.available_backends().items() if reason is None and name != "reference"
    ]
    for name in backends:
        _registry.backend(name)
    results = []
    with _progress("parity", len(cases) * len(backends)) as bar:
        for result in parity.run(cases, backends):
            results.append(result)
            bar.advance(bar.task_ids[0])
    return _show(results, options.html, options.json, options.picture)


def _show(
    results: Sequence[Result], html: Path | None = None, as_json: Path | None = None, picture: Path | None = None
) -> int:
    from .parity import report

    console = _console()
    console.print(report.table(results))
    bad = [result for result in results if result.status in ("failed", "error")]
    for result in bad:
        console.print(
            f"[bold red]{result.status}[/] {result.operation} {result.case.id} on {result.backend}: "
            + escape(result.message)
        )
    for (operation, backend, reason), count in report.refusals(results).items():
        console.print(
            f"[yellow]unsupported[/] {operation} on {backend}, {count} {'case' if count == 1 else 'cases'}: "
            + escape(reason)
        )
    if as_json:
        as_json.write_text(report.as_json(results), encoding="utf-8")
    if picture:
        report.figure(results).savefig(picture, dpi=110)
    if html:
        report.write_html(html, results)
    for path in (as_json, picture, html):
        if path:
            console.print(f"wrote {path}")
    return 1 if bad else 0


def _record(options: argparse.Namespace) -> int:
    from . import parity

    cases = _selection(options)
    backend = _backend_in_force(options.backend)
    with _progress("record", len(cases)) as bar:
        count = parity.record(options.file, cases, backend, lambda: bar.advance(bar.task_ids[0]))
    _console().print(f"recorded {count} of {len(cases)} cases of backend '{backend}' in {options.file}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from . import parity

    backend = _backend_in_force(options.backend)
    header, _ = parity.load(options.file)
    with _progress("check", len(header["entries"])) as bar:
        header, results = parity.check(options.file, backend, lambda: bar.advance(bar.task_ids[0]))
    _console().print(f"recorded by backend '{header['backend']}' with torch {header['torch']} on {header['machine']}")
    return _show(results)


def _bench(options: argparse.Namespace) -> int:
    from .bench import Timing, measure

    if options.predicted:
        return _predict(options)
    cases = _selection(options)
    backend = _backend_in_force(options.backend)
    if _registry.backend(backend).is_simulated:
        raise ValueError(
            f"backend '{backend}' runs in a simulator here, whose own speed says nothing about a device. Use --predicted."
        )
    shown = Table(title=f"Measured on '{backend}', warm caches", caption="median of steady runs; first run apart")
    for column in ("operation", "case", "first ms", "median ms", "min ms", "TFLOPS", "GB/s"):
        shown.add_column(column, justify="left" if column in ("operation", "case") else "right")
    with _progress("bench", len(cases)) as bar:
        for one in measure(cases, backend):
            bar.advance(bar.task_ids[0])
            if not isinstance(one, Timing):
                operation, case, reason = one
                shown.add_row(operation.name, case.id, f"[yellow]{escape(reason)}[/]", "", "", "", "")
                continue
            milliseconds = [f"{1e3 * value:.3f}" for value in (one.first, one.median, one.minimum)]
            shown.add_row(one.operation, one.case.id, *milliseconds, f"{one.tflops:.3f}", f"{one.gbps:.1f}")
            if options.json:
                line = {
                    "operation": one.operation, "case": one.case.id, "backend": backend, "first_s": one.first,
                    "median_s": one.median, "min_s": one.minimum, "runs": one.num_runs, "kind": "measured",
                }  # fmt: skip
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    _console().print(shown)
    return 0


def _predict(options: argparse.Namespace) -> int:
    if options.op or options.level:
        raise ValueError("--predicted runs the published rows; choose among them with -k, not with --op or --level.")
    backend = _backend_in_force(options.backend)
    shown = Table(title=f"Predicted for '{backend}', cold caches", caption="nothing here was measured")
    for column in ("operation", "row", "predicted us", "TFLOPS", "published", "ratio", "limit"):
        shown.add_column(column, justify="left" if column in ("operation", "row", "limit") else "right")
    console = Console(stderr=True)
    with console.status("predicting") as status:
        for one in _registry.backend(backend).predictions(options.pattern):
            status.update(f"predicted {one.row}")
            numbers = (f"{one.time_us:.1f}", f"{one.tflops:.0f}", f"{one.published_tflops:.0f}", f"{one.ratio:.2f}")
            shown.add_row(one.operation, one.row, *numbers, one.critical_pipe)
            if options.json:
                line = {**dataclasses.asdict(one), "backend": backend, "kind": "predicted"}
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    if not shown.row_count:
        raise ValueError(f"no published row contains {options.pattern!r}.")
    _console().print(shown)
    return 0


def _shape(text: str) -> tuple[int, int, int]:
    try:
        m, n, k = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not M,N,K: three numbers, as in 128,7168,2048") from None
    if min(m, n, k) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' has a size below 1")
    return m, n, k


def _tune(options: argparse.Namespace) -> int:
    backend = _registry.backend(_backend_in_force(options.backend))
    with _progress("tune", 1) as bar:
        summary = backend.tune(options.shapes, options.file, _advance(bar))
    _console().print(summary)
    return 0


def _warmup(options: argparse.Namespace) -> int:
    if options.processes < 1:
        raise ValueError(f"--processes is {options.processes}; it takes at least one.")
    if options.groups < 0:
        raise ValueError(f"--groups is {options.groups}; it takes a number of groups, or 0 for dense GEMMs.")
    backend = _registry.backend(_backend_in_force(options.backend))
    with _progress("warmup", 1) as bar:
        summary = backend.warmup(options.shapes, options.groups, options.processes, _advance(bar))
    _console().print(summary)
    return 0


def _advance(bar: Progress) -> Callable[[int, int], None]:
    return lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total)


def _run(options: argparse.Namespace) -> int:
    from . import compat

    compat.install()
    sys.argv = [str(options.script), *options.arguments]
    sys.path.insert(0, str(options.script.resolve().parent))
    runpy.run_path(str(options.script), run_name="__main__")
    return 0
