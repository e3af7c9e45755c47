"""Benchmarks inside `simulated_device`: what TileLang's profiler measures on a device is predicted here.

Nothing is timed on this machine. A benchmarked function runs once; the predicted times of the kernels it launched are
the answer, and a kernel whose shapes have been simulated before is not simulated again for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .report import Report
from .timing import CoreTiming

if TYPE_CHECKING:
    from .device import SimulatedDevice


@dataclass
class PredictedProfile:
    """What ``do_bench(backend="msprof_detail")`` returns: predicted time and pipe use, ratios of a core's own cycles."""

    dur_ns: float
    aic_total_cycles: int = 0
    aic_mad: float = 0.0
    aic_scalar: float = 0.0
    aic_mte1: float = 0.0
    aic_mte2: float = 0.0
    aic_mte3: float = 0.0
    aic_fixpipe: float = 0.0
    aiv_total_cycles: int = 0
    aiv_vec: float = 0.0
    aiv_scalar: float = 0.0
    aiv_mte2: float = 0.0
    aiv_mte3: float = 0.0

    @property
    def dur_us(self) -> float:
        """Predicted microseconds."""
        return self.dur_ns / 1e3

    def tflops(self, flops: float) -> float:
        """Predicted 1e12 operations per second."""
        return flops / self.dur_ns / 1e3

    def gbps(self, bytes: float) -> float:
        """Predicted 1e9 bytes per second."""
        return bytes / self.dur_ns

    @staticmethod
    def of(reports: Sequence[Report]) -> PredictedProfile:
        """The profile of kernels launched one after the other."""
        cores = [core for report in reports for kernel in report.predict().kernels for core in kernel.cores]
        aic, aiv = [c for c in cores if c.core == 0], [c for c in cores if c.core != 0]
        return PredictedProfile(
            dur_ns=_total_us(reports) * 1e3,
            aic_total_cycles=int(_cycles(aic)),
            aic_mad=_share(aic, "M"),
            aic_scalar=_share(aic, "S"),
            aic_mte1=_share(aic, "MTE1"),
            aic_mte2=_share(aic, "MTE2"),
            aic_mte3=_share(aic, "MTE3"),
            aic_fixpipe=_share(aic, "FIX"),
            aiv_total_cycles=int(_cycles(aiv)),
            aiv_vec=_share(aiv, "V"),
            aiv_scalar=_share(aiv, "S"),
            aiv_mte2=_share(aiv, "MTE2"),
            aiv_mte3=_share(aiv, "MTE3"),
        )


def _cycles(cores: Sequence[CoreTiming]) -> float:
    return sum(core.end - core.start for core in cores)


def _share(cores: Sequence[CoreTiming], pipe: str) -> float:
    cycles = _cycles(cores)
    return sum(core.busy.get(pipe, 0.0) for core in cores) / cycles if cycles else 0.0


def _total_us(reports: Sequence[Report]) -> float:
    return sum(report.time_us for report in reports)


def predicted_bench(session: SimulatedDevice) -> Callable[..., Any]:
    """A stand-in for ``tilelang.profiler.do_bench``: predicted milliseconds, or a profile for "msprof_detail"."""

    def do_bench(
        fn: Callable[[], Any],
        *args: Any,
        quantiles: Sequence[float] | None = None,
        backend: str = "event",
        **kwargs: Any,
    ) -> Any:
        with session.benchmark() as reports:
            fn()
        if not reports:
            warnings.warn(
                "the benchmarked function launches no simulated kernel: its time on a device is unknown, nan is returned",
                stacklevel=2,
            )
        milliseconds = _total_us(reports) / 1e3 if reports else float("nan")
        if backend == "msprof_detail":
            return PredictedProfile.of(reports) if reports else PredictedProfile(float("nan"))
        if quantiles:
            return milliseconds if len(quantiles) == 1 else [milliseconds] * len(quantiles)
        return milliseconds

    return do_bench
