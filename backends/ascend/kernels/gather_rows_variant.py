"""What the program that gathers rows is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatherRowsVariant:
    """One compiled form.

    Attributes:
        block: columns one vector core moves at a time.
        num_cores: launched vector cores.
    """

    block: int
    num_cores: int
