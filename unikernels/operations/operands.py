"""Matrix operands as every backend sees them; no checks are made here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ..scale_layouts import Scales

Kind = Literal["bf16", "fp8", "fp4", "fp32"]


@dataclass(slots=True)  # immutable by convention: freezing would cost every call 3 us
class Operand:
    """One matrix operand, logically [mn, k], or [num_groups, mn, k]. Treat it as immutable.

    Attributes:
        data: [.., mn, k] for bf16, fp32 and fp8 (e4m3fn), one of the last two strides being 1. For fp4 (two E2M1 codes a
            byte, low nibble first, dtype int8) packed along the contiguous axis: [.., mn, k/2] if K-major, else
            [.., mn/2, k].
        kind: element format.
        mn, k: logical sizes.
        is_k_major: whether K is the contiguous axis.
        scales: block scales of fp8 and fp4 operands; None for plain ones (scale 1).
    """

    data: Tensor
    kind: Kind
    mn: int
    k: int
    is_k_major: bool
    scales: Scales | None = None

    def group(self, index: int) -> Operand:
        """Return group `index` of a [num_groups, mn, k] operand as a two-dimensional one, without copying."""
        scales = self.scales
        if scales is not None:
            scales = replace(scales, data=scales.data[index])
        return replace(self, data=self.data[index], scales=scales)

    def rows(self, start: int, stop: int) -> Operand:
        """Return rows start:stop of a K-major two-dimensional operand with one scale per row, without copying."""
        scales = self.scales
        if scales is not None:
            scales = replace(scales, data=scales.data[start:stop], mn=stop - start)
        return replace(self, data=self.data[start:stop], mn=stop - start, scales=scales)

    def columns(self, start: int, stop: int) -> Operand:
        """Return columns start:stop of a two-dimensional operand, without copying.

        `start` is a multiple of the K elements in one element of the scale tensor (and of 2 for K-major FP4). An odd
        `stop` of K-major FP4 data takes the other half of its last byte along.
        """
        scales, data = self.scales, self.data
        if self.kind == "fp4" and self.is_k_major:
            stop += stop % 2
            data = data[:, start // 2 : stop // 2]
        else:
            data = data[:, start:stop]
        if scales is not None:
            per_word = scales.gran_k * scales.format.per_word
            words = scales.data[:, start // per_word : -(-stop // per_word)]
            scales = replace(scales, data=words, k=stop - start)
        return replace(self, data=data, k=stop - start, scales=scales)
