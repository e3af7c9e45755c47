"""Cases of the MQA logits of selected key blocks: which kinds, block sizes, windows and selections are compared and timed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from .base import Case, Cost, Tensors
from .mqa_inputs import BF16_TOLERANCE, Operands, head_weights, windows

_QK_DTYPES = {"fp8": torch.float8_e4m3fn, "fp4": torch.int8}


def select_blocks(
    generator: torch.Generator, starts: Tensor, ends: Tensor, num_blocks: int, block_kv: int, first_block: Tensor
) -> Tensor:
    """Return int32 [t, num_blocks]: random blocks of each window in increasing order; tails repeat the last one.

    Args:
        first_block: the block number of each window's first key.
    """
    rows = []
    for start, end, first in zip(starts.tolist(), ends.tolist(), first_block.tolist(), strict=True):
        available = -(-max(end - start, 0) // block_kv)
        used = min(num_blocks, available)
        chosen = (torch.randperm(available, generator=generator)[:used].sort().values + first).tolist()
        # An unused row repeats a block that does not exist: nobody may look at it.
        rows.append(chosen + [chosen[-1] if chosen else 1 << 20] * (num_blocks - used))
    return torch.tensor(rows, dtype=torch.int32).view(len(rows), num_blocks)


def specified_columns(logits: Tensor, positions: Tensor, starts: Tensor, ends: Tensor, used_columns: Tensor) -> Tensor:
    """Return logits with unused blocks and keys outside the window set to zero; `positions` are the keys of the columns."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    inside = (positions >= starts[:, None]) & (positions < ends[:, None]) & (columns < used_columns[:, None])
    return torch.where(inside, logits, 0)


@dataclass(frozen=True, slots=True)
class _Sparse:
    """Parameters of one case; `page_kv` 0 means contiguous keys."""

    operands: Operands
    num_queries: int
    num_keys: int  # paged: longest context
    num_blocks: int
    block_kv: int
    is_shifted: bool = False
    page_kv: int = 0
    tokens_per_request: int = 1

    @property
    def id(self) -> str:
        parts = [self.operands.label, f"sb={self.block_kv}", f"nb={self.num_blocks}"] + ["unaligned"] * self.is_shifted
        if self.page_kv:
            parts += [f"page={self.page_kv}", f"tokens={self.tokens_per_request}"]
        return "-".join([*parts, f"t={self.num_queries}", f"n={self.num_keys}"])

    def build(self, generator: torch.Generator) -> Tensors:
        weights = head_weights(generator, self.num_queries, self.operands.num_heads, torch.bfloat16)
        return (self._build_paged if self.page_kv else self._build_contiguous)(generator) | {"weights": weights}

    def _build_contiguous(self, generator: torch.Generator) -> Tensors:
        starts, ends = windows(generator, "random", self.num_queries, self.num_keys)
        starts //= 2  # longer windows, few empty ones
        if not self.is_shifted:
            starts = starts // self.block_kv * self.block_kv
        first_block = starts // self.block_kv
        return {
            **self.operands.queries(generator, self.num_queries),
            **self.operands.contiguous_keys(generator, self.num_keys),
            "starts": starts,
            "ends": ends,
            "blocks": select_blocks(generator, starts, ends, self.num_blocks, self.block_kv, first_block),
        }

    def _build_paged(self, generator: torch.Generator) -> Tensors:
        requests = torch.arange(self.num_queries) // self.tokens_per_request
        width = -(-self.num_keys // self.page_kv)
        num_pages = (int(requests[-1]) + 1) * width + 1
        order = torch.randperm(num_pages, generator=generator)[:-1].int()
        lens = torch.randint(0, self.num_keys + 1, (self.num_queries,), generator=generator).int()
        lens[-1] = self.num_keys
        zeros = torch.zeros_like(lens)
        return {
            **self.operands.queries(generator, self.num_queries, 1),
            "kv_cache": self.operands.pages(generator, num_pages, self.page_kv),
            "starts": zeros,
            "ends": lens,
            "block_table": order.view(-1, width)[requests].contiguous(),
            "indices": requests.int(),
            "blocks": select_blocks(generator, zeros, lens, self.num_blocks, self.block_kv, zeros),
        }

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        q, starts, ends, blocks = (t["q"], t["q_scale"]), t["starts"], t["ends"], t["blocks"]
        dtype, sb, nb = _QK_DTYPES[self.operands.kind], self.block_kv, self.num_blocks
        if self.page_kv:
            metadata = uk.get_paged_sparse_mqa_logits_metadata(
                ends, t["block_table"], t["indices"], self.page_kv, blocks, dtype, sb
            )
            logits = uk.fp8_fp4_paged_sparse_mqa_logits(q, t["kv_cache"], t["weights"], metadata, nb, sb)
        else:
            metadata = uk.get_sparse_mqa_logits_metadata(
                starts, ends, self.num_keys, blocks, dtype, sb, self.is_shifted
            )
            logits = uk.fp8_fp4_sparse_mqa_logits(
                q, (t["kv"], t["kv_scale"]), t["weights"], metadata, nb, sb, self.is_shifted
            )
        shift = starts % sb if self.is_shifted else torch.zeros_like(starts)
        keys = (blocks.long() * sb + shift[:, None])[..., None] + torch.arange(sb, device=blocks.device)
        used = (-(-(ends - starts).clamp(min=0) // sb)).clamp(max=nb) * sb
        return {"logits": specified_columns(logits, keys.flatten(1), starts, ends, used)}

    def case(self, *levels: str) -> Case:
        one, pairs = self.operands, float(self.num_queries * self.num_blocks * self.block_kv)
        layout = f"pages of {self.page_kv}" if self.page_kv else "contiguous"
        return Case(
            id=self.id,
            labels={
                "dtype": one.kind,
                "layout": f"{one.mode}, {layout}, blocks of {self.block_kv}",
                "shape": f"{self.num_queries}x{one.num_heads}x{one.head_dim}, {self.num_blocks} blocks",
            },
            build=self.build,
            run=self.run,
            tolerance=BF16_TOLERANCE,
            cost=Cost(
                2.0 * pairs * one.num_heads * one.head_dim,
                one.key_bytes * (self.num_queries * one.num_heads + pairs) + 2 * pairs,
            ),
            levels=frozenset(levels),
        )


def _kinds(num_heads: int) -> Iterator[Operands]:
    for mode in ("mx", "mx16"):
        for kind in ("fp8", "fp4"):
            yield Operands(kind, mode, num_heads, 128)


@functools.cache
def sparse_mqa_logits_cases() -> tuple[Case, ...]:
    """Return all cases of `sparse_mqa_logits`."""

    def all_cases() -> Iterator[Case]:
        for one in _kinds(32):
            for block_kv in (8, 16):
                yield _Sparse(one, 5, 300, 12, block_kv, is_shifted=block_kv == 8).case("smoke", "full")
        for t, n in ((1, 1), (2, 7), (3, 129)):
            for is_shifted in (False, True):
                yield _Sparse(Operands("fp8", "mx", 4, 128), t, n, 4, 16, is_shifted).case("edge", "full")
        for num_heads in (4, 12, 16, 32):
            for one in _kinds(num_heads):
                for is_shifted in (False, True):
                    yield _Sparse(one, 33, 3000, 64, 16, is_shifted).case("full")
        for t in (1, 64):
            yield _Sparse(Operands("fp8", "mx", 32, 128), t, 65536, 256, 8).case("bench")
            yield _Sparse(Operands("fp4", "mx", 32, 128), t, 65536, 256, 8).case("bench")

    return tuple(all_cases())


@functools.cache
def paged_sparse_mqa_logits_cases() -> tuple[Case, ...]:
    """Return all cases of `paged_sparse_mqa_logits`."""

    def all_cases() -> Iterator[Case]:
        for one in _kinds(32):
            for block_kv in (8, 16):
                yield _Sparse(one, 5, 300, 12, block_kv, page_kv=64, tokens_per_request=2).case("smoke", "full")
        for t, n in ((1, 1), (2, 7), (3, 129)):
            yield _Sparse(Operands("fp8", "mx", 4, 128), t, n, 4, 16, page_kv=32).case("edge", "full")
        for num_heads in (4, 12, 16, 32):
            for one in _kinds(num_heads):
                yield _Sparse(one, 18, 3000, 64, 8, page_kv=128, tokens_per_request=6).case("full")
        for t in (1, 64):
            yield _Sparse(Operands("fp8", "mx", 32, 128), t, 16384, 256, 8, page_kv=64).case("bench")
            yield _Sparse(Operands("fp4", "mx", 32, 128), t, 16384, 256, 8, page_kv=64).case("bench")

    return tuple(all_cases())
