"""What the program that zeroes rows between groups is specialised on. Plain data: no TileLang, no tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ZeroGapsVariant:
    """One compiled form.

    Attributes:
        out: TileLang dtype of D.
        alignment: of group starts, in rows.
        block: columns one vector core zeroes at a time.
        num_cores: launched vector cores.
    """

    out: str
    alignment: int
    block: int
    num_cores: int
