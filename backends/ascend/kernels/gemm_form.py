"""What a GEMM program is specialised on for given operands, shared by the dense GEMM and every grouping.

How operands are read is in operands.py, how a product is stored in epilogues.py, the choice of tiles in gemm_tiles.py.
"""

from __future__ import annotations

from unikernels.operations.operands import Operand

from ..programs.gemm_variant import GemmForm, GemmVariant
from ..runtime.executor import Executor, cores_in_use
from . import operands
from .epilogues import Store
from .gemm_tiles import Sizes, choose
from .gemm_tuned import tuned_tiles


def form_of(executor: Executor, a: Operand, b: Operand, store: Store) -> GemmForm:
    """Return what a GEMM of these operands, stored in this way, is specialised on beside its tiles."""
    element, packed = operands.formats(a, b)
    return GemmForm(
        element,
        a.scales is not None,
        a.is_k_major,
        b.is_k_major,
        store.out,
        store.epilogue,
        cores_in_use(executor),
        store.sfd,
        store.counts_clamped,
        store.run,
        packed,
    )


def variant_for(form: GemmForm, sizes: Sizes, within: int | None = None) -> GemmVariant:
    """Return the variant for a problem's sizes: tuned tiles if there are any, else the cheapest by the cost model.

    Args:
        within: what the rows of a tile must divide.
    """
    tiles = tuned_tiles(form, sizes) if within is None else None
    return form.with_tiles(tiles or choose(form, sizes, within))
