"""Running cases under backends and judging the results; printing and files live beside this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from .. import _registry
from ..errors import UnsupportedOperationError
from ..operations import ALL, Case, Operation
from .compare import Comparison, compare

#: A name of the yardstick backend.
REFERENCE = "reference"
#: calc_diff is quadratic in the error: two results that each keep a tolerance may differ by four times it.
TWO_SIDED_FACTOR = 4.0

Status = Literal["passed", "failed", "unsupported", "error"]


@dataclass(frozen=True, slots=True)
class Result:
    """One case under one backend."""

    operation: str
    case: Case
    backend: str
    status: Status
    outputs: dict[str, Comparison]
    message: str = ""

    @property
    def worst(self) -> Comparison | None:
        """The output with the largest difference."""
        return max(self.outputs.values(), key=lambda one: (not one.passed, one.calc_diff), default=None)

    def as_json(self) -> dict[str, Any]:
        """Return plain data for a report."""
        return {
            "operation": self.operation,
            "case": self.case.id,
            **dict(self.case.labels),
            "backend": self.backend,
            "status": self.status,
            "message": self.message,
            "outputs": {name: {**asdict(one), "passed": one.passed} for name, one in self.outputs.items()},
        }


def select(
    operations: Sequence[str] | None = None, levels: Sequence[str] = ("smoke",), pattern: str = ""
) -> list[tuple[Operation, Case]]:
    """Return the cases of the named operations (all by default) in any of `levels` whose id contains `pattern`."""
    known = {operation.name for operation in ALL}
    unknown = set(operations or ()) - known
    if unknown:
        raise ValueError(f"unknown operations: {', '.join(sorted(unknown))}. Known: {', '.join(sorted(known))}.")
    return [
        (operation, case)
        for operation in ALL
        if not operations or operation.name in operations
        for case in operation.cases()
        if case.levels.intersection(levels) and pattern in case.id
    ]


def outputs_of(case: Case, backend: str, inputs: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Run a case under a backend and return its outputs on the CPU.

    Args:
        inputs: tensors to use instead of the case's own (already built, on the CPU).
    """
    import unikernels

    device = _registry.backend(backend).device
    tensors = case.tensors(device) if inputs is None else {name: one.to(device) for name, one in inputs.items()}
    with _registry.use_only(backend):
        return {name: one.detach().cpu() for name, one in case.run(unikernels, tensors).items()}


def judge(
    operation: Operation,
    case: Case,
    backend: str,
    expected: Callable[[], dict[str, Tensor]],
    factor: float = 1.0,
    inputs: dict[str, Tensor] | None = None,
) -> Result:
    """Run a case under `backend`, on its own inputs or the given ones, and compare with what `expected` returns."""
    try:
        actual = outputs_of(case, backend, inputs)
    except UnsupportedOperationError as error:
        return Result(operation.name, case, backend, "unsupported", {}, str(error))
    except Exception as error:  # one broken case must not hide the others; its text is part of the report
        return Result(operation.name, case, backend, "error", {}, f"{type(error).__name__}: {error}")
    return _judged(operation, case, backend, actual, expected(), factor)


def _judged(
    operation: Operation,
    case: Case,
    backend: str,
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    factor: float,
) -> Result:
    if actual.keys() != expected.keys():
        message = f"outputs {sorted(actual)} where {sorted(expected)} were expected"
        return Result(operation.name, case, backend, "error", {}, message)
    try:
        compared = {name: compare(actual[name], expected[name], case.tolerance * factor) for name in expected}
    except ValueError as error:
        return Result(operation.name, case, backend, "failed", {}, str(error))
    failed = [name for name, one in compared.items() if not one.passed]
    message = f"differs in {', '.join(failed)}" if failed else ""
    return Result(operation.name, case, backend, "failed" if failed else "passed", compared, message)


def run(cases: Sequence[tuple[Operation, Case]], backends: Sequence[str]) -> Iterator[Result]:
    """Compare each backend with the reference, case by case; yields results as they come."""
    for operation, case in cases:
        expected: dict[str, Tensor] | None = None

        def reference(case: Case = case) -> dict[str, Tensor]:
            nonlocal expected
            if expected is None:
                expected = outputs_of(case, REFERENCE)
            return expected

        for backend in backends:
            yield judge(operation, case, backend, reference)
