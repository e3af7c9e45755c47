"""Timeline pictures: how busy every pipe of one block is over the whole run, and single instructions in a window of it.

Needs matplotlib (the extra `report`); spans come from trace.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unikernels.errors import InvalidArgumentError, SimulatorError

from .timing import CORES, predict
from .trace import PipeSpan, traced_spans

if TYPE_CHECKING:
    from .report import Report

_COLOURS = {
    "S": "#888888",
    "MTE2": "#1f77b4",
    "MTE1": "#17becf",
    "M": "#d62728",
    "FIX": "#ff7f0e",
    "V": "#2ca02c",
    "MTE3": "#9467bd",
}
_ORDER = ("S", "MTE2", "MTE1", "M", "FIX", "V", "MTE3")
_BINS = 300
_WINDOW = 160  # instructions of the block shown one by one


def draw_timeline(report: Report, path: Path, *, block: int = 0, l2: str = "cold") -> Path:
    """Write a PNG: above, busy share per pipe over time; below, instructions from the middle of the run."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SimulatorError(
            "a timeline needs matplotlib, which is not installed; run: pip install 'unikernels[report]'"
        ) from error
    spans = [s for _, s in traced_spans(report, blocks=block + 1, l2=l2) if s.block == block]
    work = [s for s in spans if s.end > s.start]
    if not work:
        raise InvalidArgumentError(f"block {block} executed no instruction, so there is nothing to draw")
    timing = report.predict(l2=l2)
    clock = predict(()).rates["clock_mhz"]
    rows = [(core, pipe) for core in range(3) for pipe in _ORDER if any((s.core, s.pipe) == (core, pipe) for s in work)]
    figure = Figure(figsize=(13, 1.6 + 0.62 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    whole, window = figure.subplots(2, 1)
    _draw_shares(whole, work, rows, clock)
    _draw_instructions(window, spans, work, rows, clock)
    names = ", ".join(k.symbol for k in timing.kernels)
    whole.set_title(
        f"{names}, block {block}: predicted {timing.time_us:.1f} us ({l2} L2), busiest: {timing.critical_pipe}",
        fontsize=10,
    )
    figure.savefig(path, dpi=120)
    return path


def _label_rows(axes: Any, rows: list[tuple[int, str]]) -> None:
    axes.set_yticks(range(len(rows)), [f"{CORES[core]} {pipe}" for core, pipe in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("predicted us", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def busy_shares(work: list[PipeSpan], row: tuple[int, str], edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Share of each interval between `edges` (cycles) in which one pipe of one core works."""
    chosen = [s for s in work if (s.core, s.pipe) == row]
    start, end = np.array([s.start for s in chosen]), np.array([s.end for s in chosen])
    # Spans of one pipe do not overlap: work done before a time is a sum over the spans that began before it.
    total = np.concatenate([[0.0], np.cumsum(end - start)])
    before = np.searchsorted(start, edges, side="right")
    last_end = np.concatenate([[0.0], end])[before]
    done = total[before] - np.maximum(0.0, np.where(before > 0, last_end - edges, 0.0))
    return np.diff(done) / np.diff(edges)


def _draw_shares(axes: Any, work: list[PipeSpan], rows: list[tuple[int, str]], clock: float) -> None:
    edges = np.linspace(min(s.start for s in work), max(s.end for s in work), _BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2 / clock
    for y, row in enumerate(rows):
        share = busy_shares(work, row, edges)
        axes.fill_between(centres, y + 0.42, y + 0.42 - 0.84 * share, color=_COLOURS[row[1]], linewidth=0, step="mid")
        axes.axhline(y + 0.42, color="#cccccc", linewidth=0.5)
    _label_rows(axes, rows)
    axes.set_xlim(edges[0] / clock, edges[-1] / clock)


def _draw_instructions(
    axes: Any, spans: list[PipeSpan], work: list[PipeSpan], rows: list[tuple[int, str]], clock: float
) -> None:
    ordered = sorted(work, key=lambda s: s.start)
    middle = max(0, len(ordered) // 2 - _WINDOW // 2)
    shown = ordered[middle : middle + _WINDOW]
    low, high = shown[0].start, max(s.end for s in shown)
    for y, row in enumerate(rows):
        mine = [s for s in spans if (s.core, s.pipe) == row and s.start - s.waited < high and s.end > low]
        bars = [(s.start / clock, (s.end - s.start) / clock) for s in mine if s.end > s.start]
        waits = [((s.start - s.waited) / clock, s.waited / clock) for s in mine if s.waited > 0]
        axes.broken_barh(bars, (y - 0.38, 0.76), facecolors=_COLOURS[row[1]], edgecolors="white", linewidth=0.4)
        axes.broken_barh(waits, (y - 0.1, 0.2), facecolors="#dddddd")
    _label_rows(axes, rows)
    axes.set_xlim(low / clock, high / clock)
    axes.set_title(f"{len(shown)} instructions from the middle of the run; grey: the pipe waits", fontsize=9)
