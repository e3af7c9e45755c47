"""What a simulated run leaves behind: recordings of every core's instructions, and the report built on them.

Holds data; the timing model that turns recordings into cycles is in timing.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import _simulator

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
    """Result of simulate(): recordings of the device functions, in launch order, and warnings of the run."""

    recordings: tuple[Recording, ...]
    warnings: tuple[str, ...]
    memories: dict[str, bytes] = field(default_factory=dict)  # filled by simulate(memories=True)

    def instruction_counts(self) -> dict[str, int]:
        """How often each builtin was dispatched, over all cores."""
        counts = np.zeros(len(OPERATIONS), dtype=np.int64)
        for recording in self.recordings:
            for index in range(len(recording.cores)):
                counts += np.bincount(recording.events(index)["op"], minlength=len(OPERATIONS))
        return {name: int(n) for name, n in zip(OPERATIONS, counts, strict=True) if n}
