"""Locality domains: memory placed in one part of a device (DeepGEMM's ``deep_gemm.locality_domain``).

Every device counts as one domain here, so nothing is ever placed or copied and each function keeps its meaning for
one domain. DeepGEMM's placement on two-die GPUs needs a helper process of the driver and is not provided.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .backend import Backend

_NUM_DOMAINS = 1


def _backend() -> Backend:
    # Looked up late: most callers never ask, and importing this module must not load the registry.
    return cast("Backend", importlib.import_module("unikernels._registry").current_backend())


def get_num_locality_domains() -> int:
    """Return the number of locality domains of a device: 1.

    Contract: DeepGEMM 2.8.2, ``get_num_locality_domains``.
    """
    return _NUM_DOMAINS


def is_localization_available() -> bool:
    """Return whether `localize` moves memory: False, one domain leaves nothing to choose.

    Contract: DeepGEMM 2.8.2, ``is_localization_available``.
    """
    return False


def get_granularity() -> int:
    """Return the multiple of bytes to which the pitch between domain slices is rounded: 1, there is a single slice."""
    return 1


def localize(t: Tensor, dim: int = -2) -> Tensor:
    """Return `t` itself: with one domain the split along `dim` has one part, which stays where it is.

    Args:
        t: at least one dimension.
        dim: the dimension that several domains would share.

    Raises:
        InvalidArgumentError: dim is out of range for t.

    Contract: DeepGEMM 2.8.2, ``localize``. With D domains it would return [D, ...]; callers ask
    `is_localization_available` first.
    """
    if not -t.dim() <= dim < t.dim():
        raise InvalidArgumentError(
            f"localize: dim is {dim}, expected {-t.dim()} to {t.dim() - 1} for a tensor of shape {tuple(t.shape)}."
        )
    return t


def is_localized(t: Tensor) -> bool:
    """Return whether `t` came from `localize` on a device with several domains: False.

    Raises:
        InvalidArgumentError: t is not contiguous (neither an ordinary nor a localized operand).

    Contract: DeepGEMM 2.8.2, ``is_localized``.
    """
    if not t.is_contiguous():
        raise InvalidArgumentError(
            f"is_localized: t has shape {tuple(t.shape)} and strides {t.stride()}, expected a contiguous tensor or one "
            f"that localize returned. Call t.contiguous() first."
        )
    return False


def destroy_localizer() -> None:
    """Release what `localize` holds: nothing here; may be called at any time and more than once.

    Contract: DeepGEMM 2.8.2, ``destroy_localizer``.
    """


def release_mlopart() -> None:
    """Release the driver's partition of the device: nothing here; may be called more than once."""


def empty(sizes: Sequence[int], dtype: torch.dtype, domain_idx: int) -> Tensor:
    """Return uninitialised [1, *sizes] in domain `domain_idx`: ordinary memory of the backend's device.

    Raises:
        InvalidArgumentError: domain_idx is not 0.

    Contract: DeepGEMM 2.8.2, ``locality_domain.empty``.
    """
    if domain_idx != 0:
        raise InvalidArgumentError(
            f"empty: domain_idx is {domain_idx}, expected 0: this device has one locality domain."
        )
    return empty_per_domain(sizes, dtype)


def empty_per_domain(sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return uninitialised [domains, *sizes], one slice per domain: [1, *sizes] in ordinary memory.

    Contract: DeepGEMM 2.8.2, ``locality_domain.empty_per_domain``.
    """
    return torch.empty((_NUM_DOMAINS, *sizes), dtype=dtype, device=_backend().device)


def get_sm_locality_domains() -> Tensor:
    """Return the domain of each SM (cube core, worker thread) of the backend in force: uint8 zeros, [cores]."""
    backend = _backend()
    return torch.zeros(backend.num_cores(), dtype=torch.uint8, device=backend.device)


def get_balanced_sm_locality_domains() -> Tensor:
    """Return `get_sm_locality_domains` with equally many cores in each domain; the same thing for one domain."""
    return get_sm_locality_domains()
