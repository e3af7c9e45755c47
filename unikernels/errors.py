"""The exceptions of unikernels; a leaf module that imports nothing of ours.

::

    UnikernelsError (RuntimeError)        every error this library raises on purpose
    ├── InvalidArgumentError              an argument breaks the contract; nothing was written
    │   └── ArgumentTypeError             the same, where Python callers expect a TypeError
    ├── UnsupportedOperationError         the chosen backend cannot do this (also NotImplementedError)
    ├── BackendUnavailableError           the chosen backend cannot run on this machine, or is unknown
    ├── ParityError                       two results differ, or a parity bundle cannot be trusted
    └── SimulatorError                    a kernel run in the simulator misbehaved (one subclass per hazard)

RuntimeError is the base because DeepGEMM's own host checks surface as RuntimeError: ``except RuntimeError`` of
existing callers keeps working.
"""

from __future__ import annotations


class UnikernelsError(RuntimeError):
    """Base class; catch it to catch whatever this library refuses."""


class InvalidArgumentError(UnikernelsError, ValueError):
    """An argument breaks a documented rule. Raised before anything is written."""


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is not the kind of object expected (for example a tensor where a (data, scales) pair belongs)."""


class UnsupportedOperationError(UnikernelsError, NotImplementedError):
    """The selected backend has no kernel for this problem. No other backend is tried silently."""


class BackendUnavailableError(UnikernelsError):
    """The selected backend is unknown, broken, or cannot run here; the text says which and why."""


class ParityError(UnikernelsError):
    """Results differ beyond their tolerance, or a recorded bundle is damaged or does not fit."""


class SimulatorError(UnikernelsError):
    """A simulated kernel broke a rule of the machine; subclasses name the hazard."""
