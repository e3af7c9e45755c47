"""Traces: what every pipe of chosen blocks is predicted to do, as spans and as a file for chrome://tracing or Perfetto.

Spans come from the replay in timing.py; drawing them is in timeline.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compiler import source_line
from .timing import CORES, PIPES, CoreTiming, predict

if TYPE_CHECKING:
    from .report import Recording, Report

# Instructions that take no time of their own: a notify or an arrive only passes on when its pipe was done.
_SIGNALS = ("notify", "arrive", "unlock")


@dataclass(frozen=True, slots=True)
class PipeSpan:
    """One instruction on one pipe; cycles since the launch's first kernel began."""

    block: int
    core: int
    pipe: str
    name: str
    waited: float  # cycles the pipe stood still just before `start`
    start: float
    end: float  # when the pipe goes on: the next instruction's start or this one's result, whichever comes first
    done: float  # when the result is there
    site: int
    extents: tuple[int, ...]


def spans_of(recording: Recording, core: CoreTiming, offset: float = 0.0) -> Iterator[PipeSpan]:
    """The instructions of one traced core in order of start; signals are left out."""
    from .report import OPERATIONS

    index = next(i for i, (block, kind, _) in enumerate(recording.cores) if (block, kind) == (core.block, core.core))
    events = recording.events(index)
    following: dict[int, float] = {}
    result: list[PipeSpan] = []
    for number, waited, start, done in sorted(core.spans.tolist(), key=lambda s: (s[2], s[0]), reverse=True):
        event = events[int(number)]
        name = OPERATIONS[int(event["op"])]
        pipe = int(event["pipe"])
        if any(signal in name for signal in _SIGNALS):
            continue
        end = max(start, min(done, following.get(pipe, done)))
        following[pipe] = start - waited
        result.append(
            PipeSpan(
                core.block, core.core, PIPES[pipe], name, waited, start + offset, end + offset, done + offset,
                int(event["site"]), tuple(int(v) for v in event["a"]),
            )
        )  # fmt: skip
    return iter(result[::-1])


def traced_spans(report: Report, *, blocks: int, l2: str) -> Iterator[tuple[Recording, PipeSpan]]:
    """Spans of the first `blocks` blocks of every kernel of a launch, kernels laid out one after the other."""
    timing = predict(report.recordings, l2=l2, traced_blocks=blocks)
    offset = 0.0
    for recording, kernel in zip(report.recordings, timing.kernels, strict=True):
        offset += timing.rates["launch_us"] * timing.rates["clock_mhz"]
        for core in kernel.cores:
            if len(core.spans):
                for span in spans_of(recording, core, offset):
                    yield recording, span
        offset += kernel.cycles


def write_trace(report: Report, path: Path, *, blocks: int = 1, l2: str = "cold") -> Path:
    """Write the Trace Event Format (JSON object form); times in predicted microseconds."""
    clock = predict((), l2=l2).rates["clock_mhz"]
    lines: dict[tuple[Path, int, str], int] = {}
    events: list[dict[str, Any]] = []
    named: set[tuple[int, int]] = set()
    for recording, span in traced_spans(report, blocks=blocks, l2=l2):
        thread = span.core * len(PIPES) + PIPES.index(span.pipe)
        if (span.block, thread) not in named:
            named.add((span.block, thread))
            events.append(_name("process_name", span.block, 0, f"block {span.block} (predicted)"))
            events.append(_name("thread_name", span.block, thread, f"{CORES[span.core]} {span.pipe}"))
        key = (recording.library, span.site, recording.symbol)
        if key not in lines:
            lines[key] = source_line(*key)
        common = {"ph": "X", "pid": span.block, "tid": thread}
        if span.waited > 0:
            begin = (span.start - span.waited) / clock
            events.append({**common, "name": "wait", "cat": "stall", "ts": begin, "dur": span.waited / clock})
        if "wait" in span.name or "lock" in span.name or "sync" in span.name:
            continue
        arguments = {"line": lines[key], "extents": span.extents, "result_us": span.done / clock}
        events.append(
            {
                **common,
                "name": span.name,
                "cat": span.pipe,
                "ts": span.start / clock,
                "dur": (span.end - span.start) / clock,
                "args": arguments,
            }
        )
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")
    return path


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
