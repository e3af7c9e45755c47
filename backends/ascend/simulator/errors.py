"""Hazard classes of the simulator: one class per kind of mistake a kernel can make.

All derive from `unikernels.errors.SimulatorError`. Where a class lives in the core it is named by `kind`; nothing here
detects anything. Problems of the host (no compiler, unusable arguments) are the last group.
"""

from __future__ import annotations

from unikernels.errors import InvalidArgumentError, SimulatorError


class KernelFaultError(SimulatorError):
    """A simulated kernel broke a rule of the machine.

    Attributes say where: `kernel`, `block`, `core` (AIC, AIV0, AIV1), `pipe`, `builtin`, `line` of the generated source.
    """

    kernel: str = ""
    block: int = -1
    core: str = ""
    pipe: str = ""
    builtin: str = ""
    line: int = 0


class OutOfBoundsError(KernelFaultError):
    """A copy or access leaves the tensor it addresses, or an argument leaves its field."""


class CapacityError(KernelFaultError):
    """An access lies beyond the end of an on-chip memory."""


class MisalignedError(KernelFaultError):
    """An address, stride or extent breaks an alignment rule."""


class UninitialisedError(KernelFaultError):
    """Data that nothing wrote is used, or reaches an output."""


class RaceError(KernelFaultError):
    """Two accesses conflict and no flag, lock, barrier or cross-core signal orders them."""


class FlagMisuseError(KernelFaultError):
    """A flag is set twice or left set, a counter overflows, an id or pipe does not exist."""


class BarrierError(KernelFaultError):
    """A thread cannot reach a barrier others wait for, or a warp function is used outside SIMT code."""


class DeadlockError(KernelFaultError):
    """No core can advance; the message lists who waits for what."""


class ScaleSlotError(KernelFaultError):
    """A block-scaled multiply reads a scale slot before it was loaded."""


class UnimplementedBuiltinError(KernelFaultError):
    """The kernel uses a builtin, mode or type that the simulator does not have."""


class DeviceAssertError(KernelFaultError):
    """An assertion written in the kernel failed."""


class CompilerNotFoundError(SimulatorError):
    """No C++ compiler was found to compile the generated kernel."""


class KernelCompileError(SimulatorError):
    """The C++ compiler refused the generated kernel."""


class LaunchError(SimulatorError, InvalidArgumentError):
    """The tensors or scalars do not fit the kernel's signature."""


FAULTS: dict[str, type[KernelFaultError]] = {
    "out_of_bounds": OutOfBoundsError,
    "capacity": CapacityError,
    "misaligned": MisalignedError,
    "uninitialised": UninitialisedError,
    "race": RaceError,
    "flag": FlagMisuseError,
    "barrier": BarrierError,
    "deadlock": DeadlockError,
    "mx_scale": ScaleSlotError,
    "unimplemented": UnimplementedBuiltinError,
    "assert": DeviceAssertError,
}
