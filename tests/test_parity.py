"""Every case of every operation on every backend, against the reference. Adding an operation adds its tests here."""

from __future__ import annotations

import pytest

from unikernels import _registry, parity
from unikernels.parity import runner

LEVELS = {"smoke", "edge"}
BACKENDS = sorted(name for name in _registry.available_backends() if name != runner.REFERENCE)


def _parameters():
    for operation, case in parity.select(levels=("smoke", "edge", "full")):
        marks = [] if case.levels & LEVELS else [pytest.mark.slow]
        for backend in BACKENDS:
            yield pytest.param(operation, case, backend, id=f"{operation.name}-{case.id}-{backend}", marks=marks)


@pytest.mark.parametrize(("operation", "case", "backend"), list(_parameters()))
def test_parity(operation, case, backend):
    reason = _registry.available_backends()[backend]
    if reason is not None:
        pytest.skip(f"backend '{backend}' cannot run here: {reason}")
    (result,) = parity.run([(operation, case)], [backend])
    if result.status == "unsupported":
        assert backend != "cpu", result.message  # the CPU backend has every operation
        pytest.skip(result.message)
    rerun = f"unikernels parity --backend {backend} --op {operation.name} --level full --level edge -k {case.id}"
    assert result.status == "passed", f"{result.message}\n{result.worst}\nrerun with: {rerun}"


def test_case_ids_are_unique():
    ids = [
        (operation.name, case.id)
        for operation, case in parity.select(levels=("smoke", "edge", "full", "bench", "large"))
    ]
    assert len(ids) == len(set(ids))


def test_every_operation_has_smoke_and_edge_cases():
    for operation in runner.ALL:
        levels = set().union(*(case.levels for case in operation.cases()))
        assert {"smoke", "edge"} <= levels, operation.name


def test_cases_are_reproducible():
    for operation in runner.ALL:
        case = next(case for case in operation.cases() if "smoke" in case.levels)
        first, second = case.tensors(), case.tensors()
        for name, tensor in first.items():
            comparison = parity.compare(tensor, second[name], 0.0)
            assert comparison.num_bit_mismatches == 0, (operation.name, case.id, name)
