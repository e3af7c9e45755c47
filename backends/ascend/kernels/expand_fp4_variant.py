"""What the FP4 expansion program is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpandVariant:
    """What the expansion program is specialised on.

    Attributes:
        block: FP4 bytes one vector core converts at a time.
        num_cores: launched vector cores.
    """

    block: int
    num_cores: int
