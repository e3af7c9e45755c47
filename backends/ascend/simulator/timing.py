"""The timing model's results: predicted cycles, utilisation, stalls and traffic of the kernels of one launch.

The replay itself is in src/timing.cpp, its constants are in rates.py; pictures are in timeline.py and trace.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unikernels.errors import InvalidArgumentError

from . import _simulator
from .rates import rate_values

if TYPE_CHECKING:
    from .report import Recording

PIPES = ("S", "V", "M", "MTE1", "MTE2", "MTE3", "", "FIX")  # by number; 6 is PIPE_ALL, which holds no instructions
CORES = ("AIC", "AIV0", "AIV1")
REASONS = (
    *(f"flag from {name}" for name in PIPES),
    "lock",
    "cross-core signal",
    "barrier",
    "scalar program",
    "unit flag",
    "HBM",
    "L2",
    "UB port of the vector pair",
)


@dataclass(frozen=True, slots=True)
class CoreTiming:
    """Predicted times of one core, in cycles since its kernel began."""

    block: int
    core: int  # 0 AIC, 1 AIV0, 2 AIV1
    start: float
    end: float
    busy: dict[str, float]
    stalls: dict[tuple[str, str], float]  # (pipe, reason) -> cycles
    spans: Any = field(repr=False)  # float64 [n, 4]: event number, cycles waited, start, end; empty unless traced


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """Predicted behaviour of one device function. Bytes are those asked of GM; hbm_* are what L2 did not hold."""

    symbol: str
    cycles: float
    macs: float
    events: int
    read_bytes: float
    written_bytes: float
    hbm_read_bytes: float
    hbm_written_bytes: float
    l2_bytes: float
    estimated_vector_work: bool
    cores: tuple[CoreTiming, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Predicted time of a launch: every device function after the other, each with the cost of launching it."""

    kernels: tuple[KernelTiming, ...]
    rates: dict[str, float] = field(repr=False)
    l2: str = "cold"

    @property
    def cycles(self) -> float:
        """Core cycles of all kernels, without launching."""
        return sum(k.cycles for k in self.kernels)

    @property
    def time_us(self) -> float:
        """cycles / clock + launch cost per kernel, in microseconds."""
        return self.cycles / self.rates["clock_mhz"] + self.rates["launch_us"] * len(self.kernels)

    @property
    def gm_bytes(self) -> float:
        """Bytes the program asked to read from and write to GM; a tile read twice counts twice."""
        return sum(k.read_bytes + k.written_bytes for k in self.kernels)

    @property
    def hbm_bytes(self) -> float:
        """Bytes that moved between L2 and HBM."""
        return sum(k.hbm_read_bytes + k.hbm_written_bytes for k in self.kernels)

    @property
    def utilisation(self) -> dict[str, float]:
        """Busy share of each pipe, averaged over the cores that have it, and of L2 and HBM; launch cost excluded."""
        if not self.cycles:
            return {}
        busy: dict[str, float] = {}
        capacity: dict[str, float] = {}
        for kernel in self.kernels:
            actors: dict[str, set[tuple[int, int]]] = {}
            for core in kernel.cores:
                for pipe, cycles in core.busy.items():
                    if cycles > 0:
                        busy[pipe] = busy.get(pipe, 0.0) + cycles
                        actors.setdefault(pipe, set()).add((core.block, core.core))
            vector_only = all(core.core != 0 for core in kernel.cores) and len({c.core for c in kernel.cores}) == 1
            for pipe, used in actors.items():
                # Blocks beyond the number of cores run in waves on the same cores.
                limit = self.rates["ai_cores"] * (
                    1 if pipe in ("M", "MTE1", "FIX") else 2 if vector_only or pipe != "MTE2" else 3
                )
                capacity[pipe] = capacity.get(pipe, 0.0) + kernel.cycles * min(len(used), limit)
        result = {pipe: busy[pipe] / capacity[pipe] for pipe in PIPES if capacity.get(pipe)}
        result["L2"] = sum(k.l2_bytes for k in self.kernels) / self.rates["l2_bytes"] / self.cycles
        result["HBM"] = self.hbm_bytes / self.rates["hbm_bytes"] / self.cycles
        return result

    @property
    def critical_pipe(self) -> str:
        """The pipe or memory with the highest utilisation: the first thing to relieve."""
        shares = self.utilisation
        return max(shares, key=lambda name: shares[name]) if shares else ""

    @property
    def stalls(self) -> dict[str, dict[str, float]]:
        """pipe -> reason -> cycles that the pipe stood still for it, summed over all cores."""
        result: dict[str, dict[str, float]] = {}
        for kernel in self.kernels:
            for core in kernel.cores:
                for (pipe, reason), cycles in core.stalls.items():
                    row = result.setdefault(pipe, {})
                    row[reason] = row.get(reason, 0.0) + cycles
        return {pipe: dict(sorted(row.items(), key=lambda item: -item[1])) for pipe, row in result.items()}


def predict(
    recordings: Sequence[Recording], *, l2: str = "cold", rates: dict[str, float] | None = None, traced_blocks: int = 0
) -> Timing:
    """Replay recorded programs against the table of rates.

    Args:
        recordings: the device functions of one launch, in order.
        l2: "cold": nothing of the tensors is in L2 at the start; "warm": as much of them as fits.
        rates: replaces single entries of `rates.RATES`, by name.
        traced_blocks: keeps start and end of every instruction of that many blocks.
    """
    if l2 not in ("cold", "warm"):
        raise InvalidArgumentError(f"l2 must be 'cold' or 'warm', got {l2!r}")
    values = rate_values(**(rates or {}))
    numbers: dict[str, int] = {}
    programs = []
    for recording in recordings:
        tensors = [numbers.setdefault(name, len(numbers)) for name in recording.tensors]
        programs.append((recording.kind == "vector", tensors, recording.cores))
    results = _simulator.replay(programs, values, l2 == "warm", traced_blocks)
    kernels = tuple(_kernel(recording.symbol, r) for recording, r in zip(recordings, results, strict=True))
    return Timing(kernels, values, l2)


def _kernel(symbol: str, result: dict[str, Any]) -> KernelTiming:
    cores = tuple(
        CoreTiming(
            block=core["block"],
            core=core["core"],
            start=core["start"],
            end=core["end"],
            busy={pipe: cycles for pipe, cycles in zip(PIPES, core["busy"], strict=True) if pipe},
            stalls={
                (pipe, reason): cycles
                for pipe, row in zip(PIPES, core["stall"], strict=True)
                for reason, cycles in zip(REASONS, row, strict=True)
                if cycles > 0
            },
            spans=core["spans"],
        )
        for core in result["cores"]
    )
    read, written, hbm_read, hbm_written, l2 = result["bytes"]
    return KernelTiming(
        symbol=symbol,
        cycles=result["cycles"],
        macs=result["macs"],
        events=result["events"],
        read_bytes=read,
        written_bytes=written,
        hbm_read_bytes=hbm_read,
        hbm_written_bytes=hbm_written,
        l2_bytes=l2,
        estimated_vector_work=result["estimated_vector_work"],
        cores=cores,
    )
