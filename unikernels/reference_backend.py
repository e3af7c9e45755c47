"""The backend named ``reference``: every operation by its definition, slowly, on tensors of any device.

It is what parity compares with; it is never chosen automatically.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._hookspecs import hookimpl
from .backend import Backend

if TYPE_CHECKING:
    from collections.abc import Callable


class ReferenceBackend(Backend):
    """All canonical operations through `Operation.reference`."""

    name = "reference"
    device_types = ("cpu", "cuda", "npu", "xpu", "mps")
    needs_aligned_groups = False


def _method(reference: Callable[[Any], Any]) -> Callable[[Backend, Any], Any]:
    def run(self: Backend, problem: Any) -> Any:
        return reference(problem)

    return run


@hookimpl
def unikernels_backend() -> Backend:
    """Return the reference backend, one method per entry of the table of operations."""
    from .operations import ALL

    for operation in ALL:
        setattr(ReferenceBackend, operation.name, _method(operation.reference))
    return ReferenceBackend()
