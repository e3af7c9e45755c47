"""Cases of the MQA logits over contiguous and paged keys: which kinds, modes, sizes and windows are compared and timed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from .base import Case, Cost, Tensors
from .mqa_inputs import BF16_TOLERANCE, FP32_TOLERANCE, Operands, head_weights, windows

_FP32, _BF16 = torch.float32, torch.bfloat16


def specified(logits: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return logits with everything outside columns first..last-1 of each row set to zero."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    return torch.where((columns >= first[:, None]) & (columns < last[:, None]), logits, 0)


@dataclass(frozen=True, slots=True)
class _Dense:
    """Parameters of one case over contiguous keys."""

    operands: Operands
    num_queries: int
    num_keys: int
    ranges: str = "causal"
    form: str = "compressed"  # or "full" (unspecified outside), "clean" (-inf outside)
    weights: torch.dtype = _FP32
    has_schedule: bool = False

    @property
    def id(self) -> str:
        extras = ["bf16"] * (self.weights is _BF16) + ["scheduled"] * self.has_schedule
        sizes = [f"s={self.num_queries}", f"n={self.num_keys}"]
        return "-".join([self.operands.label, self.ranges, self.form, *extras, *sizes])

    def build(self, generator: torch.Generator) -> Tensors:
        starts, ends = windows(generator, self.ranges, self.num_queries, self.num_keys)
        return {
            **self.operands.queries(generator, self.num_queries),
            **self.operands.contiguous_keys(generator, self.num_keys),
            "weights": head_weights(generator, self.num_queries, self.operands.num_heads, self.weights),
            "starts": starts,
            "ends": ends,
        }

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        starts, ends = t["starts"], t["ends"]
        lengths = (ends - starts).clamp(min=0)
        schedule = None
        if self.has_schedule:
            schedule = uk.get_mqa_logits_metadata(starts, ends, self.num_keys, self.operands.num_heads)
        is_compressed = self.form == "compressed"
        max_seqlen_k = max(int(lengths.max()), 1) if is_compressed and len(lengths) else int(is_compressed)
        logits = uk.fp8_fp4_mqa_logits(
            (t["q"], t.get("q_scale")),
            (t["kv"], t["kv_scale"]),
            t["weights"],
            starts,
            ends,
            max_seqlen_k,
            schedule,
            clean_logits=None if is_compressed else self.form == "clean",
        )
        if is_compressed:
            logits = specified(logits, torch.zeros_like(lengths), lengths)
        elif self.form == "full":
            logits = specified(logits, starts, ends)
        return {"logits": logits}

    def case(self, *levels: str) -> Case:
        one, s, n = self.operands, self.num_queries, self.num_keys
        pairs = {"causal": 0.5 * (s + 1) * n, "context_parallel": 0.4 * s * n, "random": s * n / 6}[self.ranges]
        moved = one.key_bytes * (s * one.num_heads + n) + pairs * (2 if self.weights is _BF16 else 4)
        return Case(
            id=self.id,
            labels={
                "dtype": one.kind,
                "layout": f"{one.mode}, {self.form}",
                "shape": f"{s}x{one.num_heads}x{one.head_dim}, {n} keys",
            },
            build=self.build,
            run=self.run,
            tolerance=BF16_TOLERANCE if self.weights is _BF16 else FP32_TOLERANCE,
            cost=Cost(2.0 * pairs * one.num_heads * one.head_dim, moved),
            levels=frozenset(levels),
        )


@dataclass(frozen=True, slots=True)
class _Paged:
    """Parameters of one case over paged keys."""

    operands: Operands
    batch: int
    next_n: int
    page_kv: int
    max_context_len: int
    weights: torch.dtype = _FP32
    tokens_per_request: int | None = None  # given: varlen, one row per token
    is_clean: bool = False
    page_padding: int = 0

    @property
    def id(self) -> str:
        extras = ["bf16"] * (self.weights is _BF16) + ["clean"] * self.is_clean
        extras += [f"varlen{self.tokens_per_request}"] * (self.tokens_per_request is not None)
        extras += ["pitched"] * bool(self.page_padding)
        sizes = [f"b={self.batch}", f"next={self.next_n}", f"page={self.page_kv}", f"max={self.max_context_len}"]
        return "-".join([self.operands.label, *extras, *sizes])

    def build(self, generator: torch.Generator) -> Tensors:
        rows_per_request = self.tokens_per_request or 1
        num_requests = -(-self.batch // rows_per_request)
        width = -(-self.max_context_len // self.page_kv)
        num_pages = num_requests * width + 1
        order = torch.randperm(num_pages, generator=generator)[: num_requests * width]
        requests = torch.arange(self.batch) // rows_per_request
        lens = torch.randint(0, self.max_context_len + 1, (self.batch, self.next_n), generator=generator)
        if self.batch:
            lens[-1, -1] = self.max_context_len
        tensors = {
            **self.operands.queries(generator, self.batch, self.next_n),
            "kv_cache": self.operands.pages(generator, num_pages, self.page_kv, self.page_padding),
            "weights": head_weights(generator, self.batch * self.next_n, self.operands.num_heads, self.weights),
            "context_lens": lens.int(),
            "block_table": order.int().view(num_requests, width)[requests].contiguous(),
        }
        if self.tokens_per_request is not None:
            tensors["indices"] = requests.int()
        return tensors

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        lens, indices = t["context_lens"], t.get("indices")
        schedule = None
        if self.batch:
            schedule = uk.get_paged_mqa_logits_metadata(
                lens, self.page_kv, uk.get_num_sms(), indices, num_heads=self.operands.num_heads
            )
        logits = uk.fp8_fp4_paged_mqa_logits(
            (t["q"], t.get("q_scale")),
            t["kv_cache"],
            t["weights"],
            lens,
            t["block_table"],
            schedule,
            self.max_context_len,
            indices,
            clean_logits=self.is_clean,
        )
        if not self.is_clean:
            lengths = lens.flatten()
            logits = specified(logits, torch.zeros_like(lengths), lengths)
        return {"logits": logits}

    def case(self, *levels: str) -> Case:
        one, rows = self.operands, self.batch * self.next_n
        pairs = 0.5 * (rows + 1) * self.max_context_len  # random lengths, the last one full
        keys = pairs / (self.tokens_per_request or self.next_n)
        moved = one.key_bytes * (rows * one.num_heads + keys) + pairs * (2 if self.weights is _BF16 else 4)
        return Case(
            id=self.id,
            labels={
                "dtype": one.kind,
                "layout": f"{one.mode}, pages of {self.page_kv}",
                "shape": f"{self.batch}x{self.next_n}x{one.num_heads}x{one.head_dim}, {self.max_context_len} keys",
            },
            build=self.build,
            run=self.run,
            tolerance=BF16_TOLERANCE if self.weights is _BF16 else FP32_TOLERANCE,
            cost=Cost(2.0 * pairs * one.num_heads * one.head_dim, moved),
            levels=frozenset(levels),
        )


#: (kind, mode, dims): the support table's columns; heads are varied per level.
KINDS = (
    ("fp8", "plain", (32, 64, 128)),
    ("fp8", "mx", (32, 64, 128)),
    ("fp4", "mx", (64, 128)),
    ("fp8", "mx16", (64, 128)),
    ("fp4", "mx16", (64, 128)),
)


def every_kind(num_heads: int) -> Iterator[Operands]:
    """Yield each (kind, mode, dim) with a number of heads."""
    for kind, mode, dims in KINDS:
        for dim in dims:
            yield Operands(kind, mode, num_heads, dim)


@functools.cache
def mqa_logits_cases() -> tuple[Case, ...]:
    """Return all cases of `mqa_logits`."""

    def all_cases() -> Iterator[Case]:
        for one in every_kind(32):
            yield _Dense(one, 6, 200).case("smoke", "full")
        fp8, fp4 = Operands("fp8", "mx", 64, 128), Operands("fp4", "mx16", 12, 64)
        for one in (fp8, fp4):
            for form in ("full", "clean"):
                yield _Dense(one, 5, 150, "random", form, _BF16).case("smoke", "full")
        yield _Dense(fp8, 24, 300, "context_parallel", weights=_BF16, has_schedule=True).case("smoke", "full")
        for s, n in ((0, 40), (3, 0), (1, 1), (2, 65), (1, 257)):
            for form in ("compressed", "clean"):
                yield _Dense(Operands("fp8", "plain", 4, 32), s, n, "random", form).case("edge", "full")
        for num_heads in (4, 8, 16, 64, 128):
            for one in every_kind(num_heads):
                yield _Dense(one, 40, 1100, "context_parallel", weights=_BF16).case("full")
        for s, n in ((1, 65536), (256, 8192)):
            yield _Dense(Operands("fp8", "plain", 64, 128), s, n).case("bench")
            yield _Dense(Operands("fp4", "mx", 64, 128), s, n, weights=_BF16).case("bench")

    return tuple(all_cases())


@functools.cache
def paged_mqa_logits_cases() -> tuple[Case, ...]:
    """Return all cases of `paged_mqa_logits`."""

    def all_cases() -> Iterator[Case]:
        for one in every_kind(32):
            yield _Paged(one, 3, 1, 64, 200).case("smoke", "full")
        fp8, fp4 = Operands("fp8", "plain", 64, 128), Operands("fp4", "mx", 16, 128)
        yield _Paged(fp8, 2, 2, 32, 130, is_clean=True).case("smoke", "full")
        yield _Paged(fp4, 7, 1, 128, 300, _BF16, tokens_per_request=3).case("smoke", "full")
        yield _Paged(fp4, 2, 3, 64, 130, _BF16, page_padding=256).case("smoke", "full")
        for batch, max_context_len in ((0, 64), (1, 1), (2, 0), (33, 65)):
            yield _Paged(Operands("fp8", "plain", 4, 32), batch, 1, 64, max_context_len).case("edge", "full")
        for num_heads in (4, 8, 16, 64, 128):
            for one in every_kind(num_heads):
                yield _Paged(one, 9, 1, 64, 1000, _BF16, tokens_per_request=4).case("full")
        for batch, length in ((1, 65536), (32, 8192)):
            yield _Paged(Operands("fp8", "plain", 64, 128), batch, 1, 64, length).case("bench")
            yield _Paged(Operands("fp4", "mx", 64, 128), batch, 1, 64, length, _BF16).case("bench")

    return tuple(all_cases())
