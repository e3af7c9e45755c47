"""Transformed weights: their form, and the problem of producing it. Checks of what users pass are in the API.

A transformed tensor differs from a raw one in its number of dimensions. That survives `.to`, `clone`, `nn.Parameter`
and checkpoints, and neither form can be taken for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ..operations.operands import Kind, Operand
from ..scale_layouts import Scales, format_of
from .layout import GRAN_K

Layer = Literal["l1", "l2"]
#: What a user stores: one tensor (BF16) or (data, scales).
StoredWeights = Tensor | tuple[Tensor, Tensor]


def transformed_shape(layer: Layer, leading: tuple[int, ...], num_rows: int, width: int) -> tuple[int, ...]:
    """Return the shape of a transformed [.., num_rows, width] tensor: [.., 2, num_rows / 2, width] or [.., 1, num_rows, width].

    The extra dimension is (gate, up) for layer 1; for layer 2 it only marks the form.
    """
    parts = 2 if layer == "l1" else 1
    return (*leading, parts, num_rows // parts, width)


@dataclass(frozen=True, slots=True)
class TransformMegaMoeWeightsProblem:
    """Raw weights: l1 [.., 2I, H] with gate rows first, l2 [.., H, I]; quantised ones with packed scales, gran_k 32."""

    l1: Operand
    l2: Operand


@dataclass(frozen=True, slots=True)
class MegaMoeWeights:
    """One checked transformed weight tensor with its scales, in the form of the backend that runs.

    Attributes:
        data: int8 for FP4 (two codes a byte), float8_e4m3fn or bfloat16.
        scales: packed UE8M0, one per row and 32 columns; None for BF16.
        kind: element format.
        num_rows, num_columns: sizes of one expert's matrix.
    """

    data: Tensor
    scales: Tensor | None
    kind: Kind
    num_rows: int
    num_columns: int

    def expert(self, index: int | None) -> Operand:
        """Return one expert's [num_rows, num_columns] matrix (None: weights without an expert dimension).

        For the form of `transformed_shape`.
        """
        data = (self.data if index is None else self.data[index]).flatten(0, 1)
        operand = Operand(data, self.kind, self.num_rows, self.num_columns, True)
        if self.scales is None:
            return operand
        words = (self.scales if index is None else self.scales[index]).flatten(0, 1)
        return replace(operand, scales=row_scales(words, self.num_rows, self.num_columns))


def row_scales(words: Tensor, num_rows: int, num_columns: int) -> Scales:
    """Describe packed scales, one per row and 32 columns."""
    scale_format = format_of(words.dtype)
    assert scale_format is not None
    return Scales(words, scale_format, 1, GRAN_K, num_rows, num_columns)


def transform(problem: TransformMegaMoeWeightsProblem) -> tuple[StoredWeights, StoredWeights]:
    """Return both weights in the form of `transformed_shape`, without copying."""
    return _split("l1", problem.l1), _split("l2", problem.l2)


def _split(layer: Layer, weights: Operand) -> StoredWeights:
    def split(tensor: Tensor) -> Tensor:
        parts = transformed_shape(layer, (), tensor.shape[-2], tensor.shape[-1])[:2]
        view: Tensor = tensor.unflatten(-2, parts)
        return view

    data = split(weights.data)
    return data if weights.scales is None else (data, split(weights.scales.data))
