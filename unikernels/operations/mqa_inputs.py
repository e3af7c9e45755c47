"""Random inputs of MQA logits cases: queries, keys, fused pages and windows, in every scale mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..scale_layouts import ScaleFormat, Scales, convert_scales
from ..utils import per_token_cast_to_fp4, per_token_cast_to_fp8
from .case_inputs import randn

#: Largest `calc_diff` against dequantised operands (contract 1.10).
FP32_TOLERANCE = 5e-6
BF16_TOLERANCE = 3e-5

#: Scale mode -> format of packed scales; "plain" has one float32 scale per key and none for queries.
PACKED_FORMATS = {"mx": ScaleFormat.UE8M0X4_INT32, "mx16": ScaleFormat.UE8M0X2_INT16}


@dataclass(frozen=True, slots=True)
class Operands:
    """Element kind, scale mode, heads and dim of a case."""

    kind: str
    mode: str
    num_heads: int
    head_dim: int

    @property
    def label(self) -> str:
        return f"{self.kind}-{self.mode}-h={self.num_heads}-d={self.head_dim}"

    @property
    def key_bytes(self) -> float:
        """Bytes of one key with its scales."""
        data = self.head_dim // 2 if self.kind == "fp4" else self.head_dim
        return data + (self.head_dim // 32 if self.mode == "mx16" else 4)

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return data and scales of float32 [n, head_dim]: scales [n, 1] float32, or words [n, words], contiguous."""
        if self.mode == "plain":
            return per_token_cast_to_fp8(x, False, self.head_dim)
        cast = per_token_cast_to_fp4 if self.kind == "fp4" else per_token_cast_to_fp8
        data, sf = cast(x, True, 32)
        scales = Scales(sf, ScaleFormat.FP32, 1, 32, x.shape[0], self.head_dim)
        return data, convert_scales(scales, PACKED_FORMATS[self.mode]).data.contiguous()

    def queries(self, generator: torch.Generator, *leading: int) -> dict[str, Tensor]:
        """Return q [*leading, heads, dim or dim/2], and q_scale unless the mode is plain."""
        shape = (*leading, self.num_heads)
        x = randn(generator, *shape, self.head_dim).flatten(0, -2)
        if self.mode == "plain":
            return {"q": x.to(torch.float8_e4m3fn).unflatten(0, shape)}
        data, sf = self.quantise(x)
        words = sf.squeeze(-1) if self.mode == "mx" else sf
        return {"q": data.unflatten(0, shape), "q_scale": words.unflatten(0, shape)}

    def keys(self, generator: torch.Generator, num_keys: int) -> tuple[Tensor, Tensor]:
        """Return data [n, dim or dim/2] and scales [n, words] of keys of differing size."""
        sizes = torch.exp2(torch.randint(-2, 3, (num_keys, 1), generator=generator).float())
        return self.quantise(randn(generator, num_keys, self.head_dim) * sizes)

    def contiguous_keys(self, generator: torch.Generator, num_keys: int) -> dict[str, Tensor]:
        """Return kv and kv_scale as the functions take them."""
        data, sf = self.keys(generator, num_keys)
        return {"kv": data, "kv_scale": sf if self.mode == "mx16" else sf.squeeze(-1)}

    def pages(self, generator: torch.Generator, num_pages: int, page_kv: int, padding: int = 0) -> Tensor:
        """Return a fused cache of random pages, `padding` unused bytes (0xff) between pages."""
        data, sf = self.keys(generator, num_pages * page_kv)
        return fused_pages(data, sf, page_kv, padding)


def fused_pages(data: Tensor, sf: Tensor, page_kv: int, padding: int = 0) -> Tensor:
    """Lay keys out in planar pages: uint8 [pages, page_kv, 1, bytes per key], all data of a page before all its scales."""
    planes = [part.reshape(-1).view(torch.uint8).view(data.shape[0] // page_kv, -1) for part in (data, sf)]
    page_bytes = sum(plane.shape[1] for plane in planes)
    rows = torch.full((planes[0].shape[0], page_bytes + padding), 255, dtype=torch.uint8)
    rows[:, :page_bytes] = torch.cat(planes, 1)
    cache: Tensor = rows[:, :page_bytes].unflatten(1, (page_kv, 1, page_bytes // page_kv))
    return cache


def head_weights(generator: torch.Generator, num_rows: int, num_heads: int, dtype: torch.dtype) -> Tensor:
    """Return [rows, heads] weights of both signs, rows at a multiple of 16 bytes."""
    per_16_bytes = 16 // dtype.itemsize
    pitch = -(-num_heads // per_16_bytes) * per_16_bytes
    return randn(generator, num_rows, pitch).to(dtype)[:, :num_heads]


def windows(generator: torch.Generator, ranges: str, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor]:
    """Return starts and ends: causal, context_parallel (two causal chunks, shifted starts), or random with empty ones."""
    index = torch.arange(num_queries)
    if ranges == "causal":
        starts, ends = torch.zeros(num_queries), (index + 1) * num_keys // max(num_queries, 1)
    elif ranges == "context_parallel":
        starts = torch.full((num_queries,), num_keys // 5)
        half = num_queries // 2
        ends = torch.where(index < half, num_keys // 4 + index, num_keys - num_queries + index)
    else:
        starts = torch.randint(0, num_keys + 1, (num_queries,), generator=generator)
        ends = torch.randint(0, num_keys + 1, (num_queries,), generator=generator)
    return starts.int(), ends.clamp(0, num_keys).int()
