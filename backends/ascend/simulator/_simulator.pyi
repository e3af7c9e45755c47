"""Types of the compiled core; see src/module.cpp and src/timing_module.cpp."""

from typing import Any

ABI_VERSION: int
INSTRUCTIONS: list[tuple[str, str, str, str]]  # name, pipe, group, section of the instruction reference

class Kernel:
    def __init__(self, path: str) -> None: ...

def run(
    kernel: Kernel,
    symbol: str,
    kind: str,
    grid: int,
    arguments: list[Any],
    tensors: list[tuple[str, int, int, bool]],
    inter: bool,
    options: dict[str, Any],
) -> dict[str, Any]: ...
def instruction_set() -> str: ...
def replay(
    programs: list[tuple[bool, list[int], list[tuple[int, int, Any]]]],
    rates: dict[str, float],
    warm: bool,
    traced_blocks: int,
) -> list[dict[str, Any]]: ...
