"""The metadata of sparse MQA logits: one uint8 tensor that carries the selection from the metadata call to the compute call.

Layout, all little-endian int32: a header of 16 words that says how it was made, then starts [t], ends [t], requests [t],
blocks [t, nb], and for paged keys the physical page of each block [t, nb]. Only this module knows it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from .. import validate
from ..errors import InvalidArgumentError

#: "uSpM" and the layout's version.
_MAGIC = 0x4D705375
_VERSION = 1
_HEADER_WORDS = 16


@dataclass(frozen=True, slots=True)
class Made:
    """How metadata was made; a compute call must agree in every field."""

    is_paged: bool
    num_sms: int
    is_fp4: bool
    sparse_block_kv: int
    num_max_sparse_blocks: int
    use_unaligned_ks: bool
    num_tokens: int
    num_kv_tokens: int  # contiguous keys; 0 if paged
    page_kv: int  # 0 if contiguous

    @property
    def num_words(self) -> int:
        """int32 words of the whole metadata."""
        per_token = 3 + self.num_max_sparse_blocks * (2 if self.is_paged else 1)
        return _HEADER_WORDS + self.num_tokens * per_token


@dataclass(frozen=True, slots=True)
class Selection:
    """What metadata stores: int32 tensors."""

    starts: Tensor
    ends: Tensor
    requests: Tensor
    blocks: Tensor
    pages: Tensor | None


_SAYS = {
    "is_paged": "paged keys",
    "num_sms": "get_num_sms()",
    "is_fp4": "packed FP4 (qk_dtype)",
}


def write(made: Made, starts: Tensor, ends: Tensor, requests: Tensor, blocks: Tensor, pages: Tensor | None) -> Tensor:
    """Return the metadata of a selection, uint8 [n]."""
    words = torch.empty(made.num_words, dtype=torch.int32, device=blocks.device)
    header = [_MAGIC, _VERSION, *(int(value) for value in astuple(made))]
    header += [0] * (_HEADER_WORDS - len(header))
    words[:_HEADER_WORDS] = torch.tensor(header, dtype=torch.int32)
    parts = [starts, ends, requests, blocks.flatten()] + ([] if pages is None else [pages.flatten()])
    torch.cat(parts, out=words[_HEADER_WORDS:])
    return words.view(torch.uint8)


def read(function: str, metadata: object, expected: Made) -> Selection:
    """Return what metadata stores, after checking that it was made for this call.

    The header is compared on CPU tensors; on an accelerator that would wait for the device, so only the size is.
    """
    tensor = validate.require_tensor(function, "metadata", metadata)
    validate.require_dtype(function, "metadata", tensor, torch.uint8)
    source = "get_paged_sparse_mqa_logits_metadata" if expected.is_paged else "get_sparse_mqa_logits_metadata"
    if tensor.ndim != 1 or not tensor.is_contiguous() or tensor.storage_offset() % 4:
        raise InvalidArgumentError(
            f"{function}: metadata has shape {validate.shape_of(tensor)} and strides {tensor.stride()}, expected the 1-D tensor "
            f"that {source} returns."
        )
    if tensor.device.type == "cpu":
        _compare_header(function, tensor, expected, source)
    if tensor.numel() != 4 * expected.num_words:
        raise InvalidArgumentError(
            f"{function}: metadata has {tensor.numel()} bytes, expected {4 * expected.num_words} for "
            f"{expected.num_tokens} tokens and num_max_sparse_blocks={expected.num_max_sparse_blocks}. Call {source} with the "
            f"arguments of this call."
        )
    t, nb = expected.num_tokens, expected.num_max_sparse_blocks
    sizes = [t, t, t, t * nb] + ([t * nb] if expected.is_paged else [])
    starts, ends, requests, blocks, *pages = tensor.view(torch.int32)[_HEADER_WORDS:].split(sizes)
    return Selection(starts, ends, requests, blocks.view(t, nb), pages[0].view(t, nb) if pages else None)


def _compare_header(function: str, metadata: Tensor, expected: Made, source: str) -> None:
    header = metadata[: 4 * _HEADER_WORDS].view(torch.int32).tolist() if metadata.numel() >= 4 * _HEADER_WORDS else []
    if header[:2] != [_MAGIC, _VERSION]:
        raise InvalidArgumentError(
            f"{function}: metadata ({metadata.numel()} bytes) was not made by {source}. Pass that function's result unchanged."
        )
    for field, stored in zip(fields(expected), header[2:], strict=False):
        wanted = getattr(expected, field.name)
        if stored != int(wanted):
            given: object = bool(stored) if isinstance(wanted, bool) else stored
            raise InvalidArgumentError(
                f"{function}: metadata was made with {_SAYS.get(field.name, field.name)} = {given}, but this call has {wanted}. "
                f"Call {source} with the arguments of this call."
            )
