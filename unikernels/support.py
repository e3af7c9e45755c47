"""Which operand types and layouts a backend takes: its `why_not` is asked about problems of the cases; nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import _registry
from .errors import UnsupportedOperationError
from .operations import ALL, Case, Operation

#: Operation, operand types, layout: a line of the capability table.
Line = tuple[str, str, str]


class _AskedError(Exception):
    """Carries the answer out of the public function that would go on to compute."""


def lines() -> Iterator[tuple[Line, Operation, Case]]:
    """Yield each combination of operation, operand types and layout once, with a case that has it."""
    seen: set[Line] = set()
    for operation in ALL:
        for case in operation.cases():
            line = (operation.name, case.labels["dtype"], case.labels["layout"])
            if "smoke" in case.levels and line not in seen:
                seen.add(line)
                yield line, operation, case


def answers(name: str) -> dict[Line, str | None]:
    """Return for each line None (the backend takes it) or the backend's reason.

    Raises:
        BackendUnavailableError: the backend is unknown or cannot run here.
    """
    asked = _registry.backend(name)
    found: dict[Line, str | None] = {}
    for line, operation, case in lines():
        if not asked.implements(operation.name):
            found[line] = f"'{operation.name}' is not implemented"
        elif _registry.has_limits(asked):
            found[line] = _answer(name, operation, case)
        else:
            found[line] = None
    return found


def _answer(name: str, operation: Operation, case: Case) -> str | None:
    import unikernels

    asked = _registry.backend(name)

    def ask(problem: Any) -> None:
        raise _AskedError(asked.why_not(operation.name, problem))

    tensors = case.tensors(asked.device)
    with _registry.intercepted(name, operation.name, ask):
        try:
            case.run(unikernels, tensors)
        except _AskedError as answer:
            reason: str | None = answer.args[0]
            return reason
        except UnsupportedOperationError as error:  # refused before the operation, by another one it needs
            return str(error)
    return None
