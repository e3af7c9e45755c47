"""What the program that adds up the parts of a split K is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SumSplitsVariant:
    """One compiled form of the sum.

    Attributes:
        splits: how many parts there are.
        out: TileLang dtype of D.
        block: elements one vector core adds up at a time.
        num_cores: launched vector cores.
    """

    splits: int
    out: str
    block: int
    num_cores: int
