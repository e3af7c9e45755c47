"""What a scale tensor is: its storage format, its granularity and the logical matrix it belongs to.

Only descriptions live here; reading bytes is in decode.py, changing the layout in convert.py, checks in checks.py.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

import torch
from torch import Tensor


def ceil_div(x: int, y: int) -> int:
    """Return ceil(x / y) for integers."""
    return -(-x // y)


def align(x: int, alignment: int) -> int:
    """Return `x` rounded up to a multiple of `alignment`."""
    return -(-x // alignment) * alignment


class ScaleFormat(enum.Enum):
    """How scale factors are stored.

    Attributes:
        label: short name for messages and reports.
        dtype: dtype of the scale tensor.
        per_word: K blocks held by one element, the first block in the least significant byte.
    """

    FP32 = ("float32", torch.float32, 1)
    UE8M0X4_INT32 = ("ue8m0x4-int32", torch.int32, 4)
    UE8M0X2_INT16 = ("ue8m0x2-int16", torch.int16, 2)

    label: str
    dtype: torch.dtype
    per_word: int

    def __init__(self, label: str, dtype: torch.dtype, per_word: int) -> None:
        # Plain attributes: they are read on the path of every call, where a property would cost more.
        self.label = label
        self.dtype = dtype
        self.per_word = per_word

    @property
    def is_packed(self) -> bool:
        """Whether elements are words of UE8M0 exponents."""
        return self.per_word > 1


FORMAT_OF_DTYPE = {scale_format.dtype: scale_format for scale_format in ScaleFormat}


def format_of(dtype: torch.dtype) -> ScaleFormat | None:
    """Return the format a scale tensor of `dtype` has, or None if no format uses that dtype."""
    return FORMAT_OF_DTYPE.get(dtype)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Scales:
    """Block scales of a logical [.., mn, k] matrix: element (i, j) has scale (i // gran_mn, j // gran_k).

    Immutable, compared by identity. Nothing is checked on construction (it happens in every call); `normalize_scales`
    builds one from a user's tensor.

    Attributes:
        data: [.., ceil(mn / gran_mn), ceil(ceil(k / gran_k) / per_word)] of `format.dtype`, any strides.
        format: how `data` stores the scales.
        gran_mn, gran_k: rows and columns that share one scale.
        mn, k: logical sizes of the matrix.
    """

    data: Tensor
    format: ScaleFormat
    gran_mn: int
    gran_k: int
    mn: int
    k: int

    def __init__(self, data: Tensor, format: ScaleFormat, gran_mn: int, gran_k: int, mn: int, k: int) -> None:
        # One object is made per operand and call; the generated __init__ of a frozen class takes twice as long.
        _set_data(self, data)
        _set_format(self, format)
        _set_gran_mn(self, gran_mn)
        _set_gran_k(self, gran_k)
        _set_mn(self, mn)
        _set_k(self, k)

    @property
    def num_mn_blocks(self) -> int:
        """Scale rows: ceil(mn / gran_mn)."""
        return ceil_div(self.mn, self.gran_mn)

    @property
    def num_k_blocks(self) -> int:
        """Scales along K, not words: ceil(k / gran_k)."""
        return ceil_div(self.k, self.gran_k)

    @property
    def num_words(self) -> int:
        """Elements of `data` along K."""
        return ceil_div(self.num_k_blocks, self.format.per_word)

    @property
    def leading_shape(self) -> tuple[int, ...]:
        """Shape in front of the last two dimensions: () or (num_groups,)."""
        return tuple(self.data.shape[:-2])


_set_data, _set_format, _set_gran_mn, _set_gran_k, _set_mn, _set_k = (
    vars(Scales)[field.name].__set__ for field in fields(Scales)
)
