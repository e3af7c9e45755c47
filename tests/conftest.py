"""Shared fixtures: options that keep a skip from hiding a broken backend, and clean global state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from unikernels import _registry
from unikernels.settings import CURRENT

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run tests marked slow as well")
    parser.addoption(
        "--require-backends",
        default="",
        help="comma-separated backends that must be available; a missing one is an error",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Tests are small: a second thread costs more than it brings. Tests of threading set their own number.
    torch.set_num_threads(1)
    required = [name for name in config.getoption("--require-backends").split(",") if name]
    reasons = _registry.available_backends()
    for name in required:
        if name not in reasons or reasons[name] is not None:
            raise pytest.UsageError(f"backend '{name}' is required but: {reasons.get(name, 'not installed')}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow; run with --slow (make test-all)")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _restore_settings():
    """Runtime settings are process-wide; a test must not leak them."""
    before = {name: getattr(CURRENT, name) for name in CURRENT.__slots__}
    yield
    for name, value in before.items():
        setattr(CURRENT, name, value)
    _registry.set_backend(None)
