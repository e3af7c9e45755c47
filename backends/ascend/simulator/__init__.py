"""Ascend 950 simulator: runs, checks and times TileLang's generated Ascend C on any CPU.

Public names only; see docs/simulator.md for what is modelled and how far to trust it.
"""

from __future__ import annotations

from .device import SimulatedDevice, simulated_device
from .errors import (
    BarrierError,
    CapacityError,
    CompilerNotFoundError,
    DeadlockError,
    DeviceAssertError,
    FlagMisuseError,
    KernelCompileError,
    KernelFaultError,
    LaunchError,
    MisalignedError,
    OutOfBoundsError,
    RaceError,
    ScaleSlotError,
    UnimplementedBuiltinError,
    UninitialisedError,
)
from .launch import prepare, simulate
from .report import Report

__all__ = [
    "BarrierError",
    "CapacityError",
    "CompilerNotFoundError",
    "DeadlockError",
    "DeviceAssertError",
    "FlagMisuseError",
    "KernelCompileError",
    "KernelFaultError",
    "LaunchError",
    "MisalignedError",
    "OutOfBoundsError",
    "RaceError",
    "Report",
    "ScaleSlotError",
    "SimulatedDevice",
    "UnimplementedBuiltinError",
    "UninitialisedError",
    "prepare",
    "simulate",
    "simulated_device",
]
