"""Backends: discovery, choice, and the bound methods that calls go through.

Discovery runs once, on first use; each plugin loads in isolation, so a broken one is reported when it is asked for and
never hurts the others. A dispatched call costs one context-variable read and one dictionary lookup.
"""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy
import torch

from . import _hookspecs, environment
from ._caller import stacklevel_of_caller
from .errors import BackendUnavailableError, InvalidArgumentError, UnsupportedOperationError

if TYPE_CHECKING:
    from torch import Tensor

    from .backend import Backend

ENTRY_POINT_GROUP = "unikernels.backends"
AUTO = "auto"

_in_context: ContextVar[str | None] = ContextVar("unikernels_backend", default=None)
_process_choice: str | None = None
_may_fall_back: ContextVar[bool] = ContextVar("unikernels_may_fall_back", default=True)
#: explicit choice (None: UNIKERNELS_BACKEND) -> device type -> operation -> bound method; nested because hashing a
#: tuple of three would cost a third of the lookup.
_bound: dict[str | None, dict[str, dict[str, Callable[[Any], Any]]]] = {}
_chosen: dict[tuple[str | None, str], Backend] = {}
_reported_fallbacks: set[tuple[str, str]] = set()


class Discovered(NamedTuple):
    """Outcome of discovery: usable plugin objects, and for the others the text of what went wrong."""

    manager: pluggy.PluginManager
    backends: dict[str, Backend]
    failures: dict[str, BaseException]


@functools.cache
def discover() -> Discovered:
    """Load every installed plugin once."""
    manager = pluggy.PluginManager(_hookspecs.PROJECT)
    manager.add_hookspecs(_hookspecs)
    backends: dict[str, Backend] = {}
    failures: dict[str, BaseException] = {}
    for entry_point in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            plugin = entry_point.load()
            manager.register(plugin, entry_point.name)
            # A misspelt hook would otherwise be ignored without a word.
            manager.check_pending()
            backend = plugin.unikernels_backend()
            backends[backend.name] = backend
        except Exception as error:
            if manager.has_plugin(entry_point.name):
                manager.unregister(name=entry_point.name)
            failures[entry_point.name] = error
    return Discovered(manager, backends, failures)


def forget() -> None:
    """Discover and bind anew on next use (for tests and for plugins installed into a running process)."""
    discover.cache_clear()
    _bound.clear()
    _chosen.clear()
    _reported_fallbacks.clear()
    environment.forget()


def backend(name: str) -> Backend:
    """Return a backend that can run here.

    Raises:
        BackendUnavailableError: unknown name, a plugin that failed to load (its error is the cause), or a backend that
            says it cannot run on this machine.
    """
    found = discover()
    if name in found.failures:
        error = found.failures[name]
        raise BackendUnavailableError(
            f"backend '{name}' failed to load: {type(error).__name__}: {error}. Repair or uninstall its package."
        ) from error
    if name not in found.backends:
        known = ", ".join(sorted({*found.backends, *found.failures}))
        raise BackendUnavailableError(f"unknown backend '{name}'. Installed backends: {known}, or '{AUTO}'.")
    chosen = found.backends[name]
    reason = chosen.unavailable_reason()
    if reason is not None:
        raise BackendUnavailableError(f"backend '{name}' cannot run here: {reason}")
    return chosen


def available_backends() -> dict[str, str | None]:
    """Return every installed backend with None (it can run here) or the reason why it cannot.

    >>> import unikernels as uk
    >>> uk.available_backends()["cpu"] is None
    True
    """
    found = discover()
    reasons = {name: known.unavailable_reason() for name, known in found.backends.items()}
    reasons.update({name: f"failed to load: {error}" for name, error in found.failures.items()})
    return dict(sorted(reasons.items()))


def backends_with(operation: str) -> list[str]:
    """Return the names of installed backends that implement a canonical operation."""
    return sorted(name for name, known in discover().backends.items() if known.implements(operation))


def remedy(operation: str, refusing: Backend) -> str:
    """Return what to do about a refusal, as a sentence with a space before it; empty if no other backend has the operation."""
    others = [name for name in backends_with(operation) if name != refusing.name]
    if not others:
        return ""
    fallback = _fallback_for(refusing, others)
    if fallback is None:
        return " Choose one with use_backend(...)."
    return (
        f" Choose one with use_backend(...), or set UNIKERNELS_FALLBACK={fallback}: '{fallback}' then computes what "
        f"'{refusing.name}' cannot, and nothing else."
    )


def _fallback_for(refusing: Backend, names: list[str]) -> str | None:
    """Return which of `names` takes the same tensors and can run here, first of all one that ``auto`` would choose."""
    if not refusing.device_types:
        return None
    device_type, known = refusing.device.type, discover().backends
    for name in sorted(names, key=lambda name: device_type not in known[name].auto_device_types):
        if device_type in known[name].device_types and known[name].unavailable_reason() is None:
            return name
    return None


def selected() -> str:
    """Return the name in force: context, then process, then UNIKERNELS_BACKEND; possibly ``auto``."""
    return _in_context.get() or _process_choice or environment.read("UNIKERNELS_BACKEND")


def set_backend(name: str | None) -> None:
    """Choose the backend for the whole process; None returns to UNIKERNELS_BACKEND.

    Args:
        name: a backend name, ``"auto"`` (by tensor device), or None.

    Raises:
        BackendUnavailableError: the backend is unknown or cannot run here.
    """
    global _process_choice
    if name not in (None, AUTO):
        backend(name)
    _process_choice = name


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Choose the backend inside a ``with`` block, in this thread or task only.

    Raises:
        BackendUnavailableError: the backend is unknown or cannot run here.
    """
    if name != AUTO:
        backend(name)
    token = _in_context.set(name)
    try:
        yield
    finally:
        _in_context.reset(token)


@contextmanager
def use_only(name: str) -> Iterator[None]:
    """Choose the backend as `use_backend` does, and let it refuse what it lacks, whatever UNIKERNELS_FALLBACK says.

    For tools that say of a backend what it computed.
    """
    token = _may_fall_back.set(False)
    try:
        with use_backend(name):
            yield
    finally:
        _may_fall_back.reset(token)


def backend_for(tensor: Tensor) -> Backend:
    """Return the backend that a call on `tensor` uses."""
    key = (_in_context.get() or _process_choice, "cpu" if tensor.is_cpu else tensor.device.type)
    try:
        return _chosen[key]
    except KeyError:
        return _chosen.setdefault(key, _choose(selected(), key[1]))


def backend_of(tensor: Tensor) -> Backend:
    """Return the backend whose formats apply to a tensor that may lie on the meta device, where no backend computes."""
    return current_backend() if tensor.is_meta else backend_for(tensor)


def current_backend() -> Backend:
    """Return the backend in force where no tensor says: the selected one, or the best automatic one."""
    name = selected()
    if name != AUTO:
        return backend(name)
    found = discover().backends.values()
    # A backend may offer itself for accelerator tensors and run on CPU tensors here (a simulator): not automatically.
    accelerated = [
        one
        for one in found
        if one.auto_device_types not in ((), ("cpu",))
        and not one.unavailable_reason()
        and one.device.type in one.auto_device_types
    ]
    return accelerated[0] if accelerated else backend("cpu")


def _choose(name: str, device_type: str) -> Backend:
    if name == AUTO:
        for candidate in discover().backends.values():
            if device_type in candidate.auto_device_types and candidate.unavailable_reason() is None:
                return candidate
        reasons = "; ".join(f"{known}: {reason}" for known, reason in available_backends().items() if reason) or "none"
        raise BackendUnavailableError(
            f"no backend for tensors on device '{device_type}'. Unavailable here: {reasons}. "
            f"Move the tensors, or choose one of {sorted(discover().backends)} with use_backend(...)."
        )
    chosen = backend(name)
    if device_type not in chosen.device_types:
        raise InvalidArgumentError(
            f"backend '{name}' takes tensors on {' or '.join(chosen.device_types)}, got tensors on '{device_type}'. "
            f"Move the tensors, or choose another backend."
        )
    return chosen


def bound(operation: str, tensor: Tensor) -> Callable[[Any], Any]:
    """Return the method of the backend in force for tensors like `tensor`.

    Raises:
        BackendUnavailableError, InvalidArgumentError: there is no such backend for this device.
        UnsupportedOperationError: the backend lacks the operation and no fallback was asked for.
    """
    # `is_cpu` first: `device.type` alone costs more than the rest of the lookup.
    device_type = "cpu" if tensor.is_cpu else tensor.device.type
    try:
        return _bound[_in_context.get() or _process_choice][device_type][operation]
    except KeyError:
        methods = _bound.setdefault(_in_context.get() or _process_choice, {}).setdefault(device_type, {})
        return methods.setdefault(operation, _bind(operation, selected(), device_type))


def _bind(operation: str, name: str, device_type: str) -> Callable[[Any], Any]:
    if device_type == "meta":
        return lambda problem: None  # shapes were checked; there is nothing to compute
    chosen = _choose(name, device_type)
    method = _without_autograd(getattr(chosen, operation))
    fallback_name = environment.read("UNIKERNELS_FALLBACK")
    if not has_limits(chosen) and (chosen.implements(operation) or not fallback_name):
        return method

    def run(problem: Any) -> Any:
        if not chosen.implements(operation):
            reason: str | None = f"it does not implement '{operation}'"
        else:
            reason = chosen.why_not(operation, problem)
        if reason is None:
            return method(problem)
        if fallback_name and fallback_name != chosen.name and _may_fall_back.get():
            _report_fallback(operation, chosen.name, fallback_name, reason)
            return _without_autograd(getattr(_choose(fallback_name, device_type), operation))(problem)
        if not chosen.implements(operation):
            return method(problem)  # raises, naming the backends that have it
        others = ", ".join(other for other in backends_with(operation) if other != chosen.name)
        raise UnsupportedOperationError(
            f"{operation}: backend '{chosen.name}' cannot: {reason}. Other backends with this operation: {others or 'none'}."
            f"{remedy(operation, chosen)}"
        )

    return run


def has_limits(chosen: Backend) -> bool:
    """Return whether a backend refuses some problems of operations it implements."""
    return type(chosen).why_not is not _base_class().why_not


@contextmanager
def intercepted(name: str, operation: str, method: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, `name` is in force and its `operation` goes to `method`, on its own device.

    For tools that ask what a call would compute. Other threads that use the backend meanwhile are affected too.
    """
    with use_backend(name):
        methods = _bound.setdefault(name, {}).setdefault(backend(name).device.type, {})
        kept = methods.get(operation)
        methods[operation] = method
        try:
            yield
        finally:
            del methods[operation]
            if kept is not None:
                methods[operation] = kept


def _without_autograd(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Results are written in place and carry no gradient, whichever of a problem's tensors require one."""

    def run(problem: Any) -> Any:
        if not torch.is_grad_enabled():
            return method(problem)
        with torch.no_grad():
            return method(problem)

    return run


def _base_class() -> type[Backend]:
    from .backend import Backend  # backend.py asks this module for names, so neither imports the other at the top

    return Backend


def _report_fallback(operation: str, name: str, fallback: str, reason: str) -> None:
    if (operation, name) not in _reported_fallbacks:
        _reported_fallbacks.add((operation, name))
        warnings.warn(
            f"{operation}: backend '{name}' cannot ({reason}); UNIKERNELS_FALLBACK computes it on '{fallback}'.",
            RuntimeWarning,
            stacklevel=stacklevel_of_caller(),
        )
