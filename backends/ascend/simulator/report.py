"""What a simulated run leaves behind: recordings of every core's instructions, and the report built on them.

Holds data and answers questions about it; the timing model that turns recordings into cycles is in timing.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import _simulator
from .timing import Timing, predict

# Mirrors struct Event in src/events.hpp, where the meaning of `a` is listed per instruction.
EVENT = np.dtype(
    [
        ("op", "<u2"),
        ("pipe", "u1"),
        ("skipped", "u1"),
        ("site", "<u4"),
        ("address", "<u8"),
        ("tensor", "<u4"),
        ("scalar", "<u4"),
        ("a", "<u4", (8,)),
    ]
)
OPERATIONS: tuple[str, ...] = tuple(name for name, _, _, _ in _simulator.INSTRUCTIONS)


@dataclass(frozen=True, slots=True)
class Recording:
    """One device function's run: per core, the dispatched instructions in program order."""

    symbol: str
    kind: str
    grid: int
    tensors: tuple[str, ...]
    cores: list[tuple[int, int, Any]]  # block, core (0 AIC, 1 AIV0, 2 AIV1), raw bytes of EVENT records
    library: Path

    def events(self, index: int) -> np.ndarray[Any, Any]:
        """The events of one entry of `cores`."""
        return np.frombuffer(self.cores[index][2], dtype=EVENT)


@dataclass(frozen=True, slots=True)
class Report:
    """Result of simulate(): recordings of the device functions, in launch order, and warnings of the run.

    Everything about time is predicted by a model of the hardware, not measured; docs/simulator_timing.md says how well.
    Properties describe a launch with a cold L2; `predict` answers for a warm one or for other rates.
    """

    recordings: tuple[Recording, ...]
    warnings: tuple[str, ...]
    memories: dict[str, bytes] = field(default_factory=dict)  # filled by simulate(memories=True)
    _timings: dict[Any, Timing] = field(default_factory=dict, repr=False, compare=False)

    def instruction_counts(self) -> dict[str, int]:
        """How often each builtin was dispatched, over all cores."""
        counts = np.zeros(len(OPERATIONS), dtype=np.int64)
        for recording in self.recordings:
            for index in range(len(recording.cores)):
                counts += np.bincount(recording.events(index)["op"], minlength=len(OPERATIONS))
        return {name: int(n) for name, n in zip(OPERATIONS, counts, strict=True) if n}

    def predict(self, *, l2: str = "cold", rates: dict[str, float] | None = None) -> Timing:
        """Predicted timing for a "cold" or "warm" L2 and, if given, other values of single rates (see rates.RATES)."""
        key = (l2, tuple(sorted((rates or {}).items())))
        if key not in self._timings:
            self._timings[key] = predict(self.recordings, l2=l2, rates=rates)
        return self._timings[key]

    @property
    def time_us(self) -> float:
        """Predicted microseconds of the launch."""
        return self.predict().time_us

    def tflops(self, flops: float | None = None) -> float:
        """Predicted 1e12 operations per second; `flops` defaults to 2 x the multiply-accumulates of the cube."""
        timing = self.predict()
        return (2 * sum(k.macs for k in timing.kernels) if flops is None else flops) / timing.time_us / 1e6

    def gbps(self, bytes_moved: float | None = None) -> float:
        """Predicted 1e9 bytes per second; `bytes_moved` defaults to what moves between L2 and HBM."""
        timing = self.predict()
        return (timing.hbm_bytes if bytes_moved is None else bytes_moved) / timing.time_us / 1e3

    @property
    def utilisation(self) -> dict[str, float]:
        """Predicted busy share of each pipe, of L2 and of HBM."""
        return self.predict().utilisation

    @property
    def critical_pipe(self) -> str:
        """The pipe or memory that is predicted to be busiest."""
        return self.predict().critical_pipe

    @property
    def stalls(self) -> dict[str, dict[str, float]]:
        """Predicted stall cycles: pipe -> reason -> cycles over all cores."""
        return self.predict().stalls

    def trace(self, path: str | Path, *, blocks: int = 1, l2: str = "cold") -> Path:
        """Write a trace of the first `blocks` blocks that chrome://tracing and ui.perfetto.dev open."""
        from .trace import write_trace

        return write_trace(self, Path(path), blocks=blocks, l2=l2)

    def timeline(self, path: str | Path, *, block: int = 0, l2: str = "cold") -> Path:
        """Draw what every pipe of one block does over time, as a PNG; needs matplotlib."""
        from .timeline import draw_timeline

        return draw_timeline(self, Path(path), block=block, l2=l2)

    def __str__(self) -> str:
        timing = self.predict()
        names = ", ".join(k.symbol for k in timing.kernels) or "no kernel"
        lines = [
            f"{names}: predicted {timing.time_us:.1f} us ({timing.cycles:.0f} cycles, cold L2)",
            f"  {self.tflops():.1f} TFLOPS in the cube, {self.gbps():.0f} GB/s from and to HBM",
            f"  {'pipe':<6} {'busy':>6}  stalls (share of all waiting of the pipe)",
        ]
        stalls = timing.stalls
        for pipe, share in timing.utilisation.items():
            row = stalls.get(pipe, {})
            total = sum(row.values())
            why = (
                ", ".join(f"{reason} {cycles / total:.0%}" for reason, cycles in list(row.items())[:3]) if total else ""
            )
            lines.append(f"  {pipe:<6} {share:>6.1%}  {why}".rstrip())
        lines.append(f"  critical: {timing.critical_pipe}")
        if any(k.estimated_vector_work for k in timing.kernels):
            lines.append("  vector work was not counted in this run (check='off') and is estimated from copied bytes")
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)
