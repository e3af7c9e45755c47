"""Locality domains of one-domain devices: nothing moves, and wrong arguments are still refused."""

from __future__ import annotations

import pytest
import torch

from unikernels import _registry, locality_domain, use_backend
from unikernels.errors import InvalidArgumentError


@pytest.fixture(autouse=True)
def _on_reference_backend():
    with use_backend("reference"):
        yield


def test_one_domain_and_nothing_to_localize():
    assert locality_domain.get_num_locality_domains() == 1
    assert locality_domain.is_localization_available() is False
    assert locality_domain.get_granularity() == 1


@pytest.mark.parametrize("dim", [-2, -1, 0, 1, 2])
def test_localize_returns_its_argument(dim):
    t = torch.ones(3, 5, 7)
    assert locality_domain.localize(t, dim) is t
    assert locality_domain.localize(t, dim=dim) is t


@pytest.mark.parametrize(("shape", "dim"), [((4,), -2), ((4, 4), 2), ((4, 4), -3), ((), -1)])
def test_localize_refuses_a_missing_dimension(shape, dim):
    with pytest.raises(InvalidArgumentError, match=rf"localize: dim is {dim}, expected"):
        locality_domain.localize(torch.ones(shape), dim)


def test_is_localized():
    t = torch.ones(4, 6)
    assert locality_domain.is_localized(t) is False
    assert locality_domain.is_localized(locality_domain.localize(t)) is False
    with pytest.raises(InvalidArgumentError, match=r"is_localized: t has shape \(6, 4\) and strides \(1, 6\)"):
        locality_domain.is_localized(t.t())


def test_empty_has_a_leading_domain():
    for t in (
        locality_domain.empty((3, 4), torch.bfloat16, 0),
        locality_domain.empty_per_domain([3, 4], dtype=torch.bfloat16),
    ):
        assert (t.shape, t.dtype, t.is_contiguous()) == ((1, 3, 4), torch.bfloat16, True)
    with pytest.raises(InvalidArgumentError, match="domain_idx is 1, expected 0"):
        locality_domain.empty((3, 4), torch.bfloat16, 1)


def test_every_core_is_in_the_one_domain():
    cores = _registry.current_backend().num_cores()
    for domains in (locality_domain.get_sm_locality_domains(), locality_domain.get_balanced_sm_locality_domains()):
        assert domains.dtype == torch.uint8
        assert domains.tolist() == [0] * cores


def test_release_functions_may_be_called_twice():
    for release in (locality_domain.destroy_localizer, locality_domain.release_mlopart):
        assert release() is None
        assert release() is None
