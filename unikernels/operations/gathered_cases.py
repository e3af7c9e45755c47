"""Cases of the grouped GEMMs that gather an operand: group sizes, padding and accumulation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch

from .base import Case, Cost, Tensors
from .case_inputs import OPERAND_TOLERANCE, randn
from .m_grouped_cases import ALIGNMENT, aligned_groups


@dataclass(frozen=True, slots=True)
class _GatheredRows:
    """Rows of A gathered; `sizes` are the rows of each group."""

    layout: str
    sizes: tuple[int, ...]
    n: int
    k: int
    num_a_rows: int = 20

    def build(self, generator: torch.Generator) -> Tensors:
        labels, indices = [], []
        for group, size in enumerate(self.sizes):
            gap = -size % ALIGNMENT
            labels += [group] * size + [-1] * gap
            indices += torch.randint(-1, self.num_a_rows, (size,), generator=generator).tolist() + [-1] * gap
        b = randn(generator, len(self.sizes), self.n, self.k).bfloat16()
        return {
            "a": randn(generator, self.num_a_rows, self.k).bfloat16(),
            "b": b if self.layout == "nt" else b.mT.contiguous(),
            "d": torch.full((len(labels), self.n), 7.0, dtype=torch.bfloat16),
            "labels": torch.tensor(labels, dtype=torch.int32),
            "row_indices": torch.tensor(indices, dtype=torch.int32),
        }

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        from importlib import import_module  # `uk` is a namespace of functions; legacy is a module of its own

        legacy = import_module(f"{uk.__name__}.legacy")
        function = getattr(legacy, f"a_fused_m_grouped_bf16_gemm_{self.layout}_contiguous_tl")
        with aligned_groups(uk, ALIGNMENT):
            function(t["a"], t["b"], t["d"], (t["labels"], t["row_indices"]))
        return {"d": t["d"]}

    def case(self, *levels: str) -> Case:
        rows = sum(self.sizes)
        moved = 2.0 * (rows * self.k + len(self.sizes) * self.n * self.k + rows * self.n)
        return Case(
            id=f"bf16-{self.layout}-sizes={'+'.join(map(str, self.sizes))}-n={self.n}-k={self.k}",
            labels={"dtype": "bf16", "layout": f"gathered a, {self.layout}", "shape": f"{rows}x{self.n}x{self.k}"},
            build=self.build,
            run=self.run,
            tolerance=OPERAND_TOLERANCE,
            cost=Cost(2.0 * rows * self.n * self.k, moved),
            levels=frozenset(levels),
        )


@dataclass(frozen=True, slots=True)
class _GatheredK:
    """K of one operand gathered; `sizes` are the K elements of each group."""

    gathers: str
    sizes: tuple[int, ...]
    m: int
    n: int
    accumulates: bool
    out: torch.dtype = torch.float32
    num_source_rows: int = 50

    def build(self, generator: torch.Generator) -> Tensors:
        starts, stops, start = [], [], 0
        for size in self.sizes:
            starts.append(start)
            stops.append(start + size)
            start += size + (-size % 16)
        rows = {"a": start, "b": start, self.gathers: self.num_source_rows}
        return {
            "a": randn(generator, rows["a"], self.m).bfloat16(),
            "b": randn(generator, rows["b"], self.n).bfloat16(),
            "d": randn(generator, len(self.sizes), self.m, self.n).to(self.out),
            "k_indices": torch.randint(-1, self.num_source_rows, (start,), generator=generator, dtype=torch.int32),
            "k_start": torch.tensor(starts, dtype=torch.int32),
            "k_end": torch.tensor(stops, dtype=torch.int32),
        }

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        from importlib import import_module  # as above

        function = getattr(
            import_module(f"{uk.__name__}.legacy"), f"{self.gathers}_fused_k_grouped_bf16_gemm_tn_contiguous_tl"
        )
        function(t["a"], t["b"], t["d"], (t["k_indices"], t["k_start"], t["k_end"]), self.accumulates)
        return {"d": t["d"]}

    def case(self, *levels: str) -> Case:
        k = sum(self.sizes)
        extras = "-acc" * self.accumulates + "-bf16out" * (self.out is torch.bfloat16)
        return Case(
            id=f"bf16-{self.gathers}{extras}-m={self.m}-n={self.n}-ks={'+'.join(map(str, self.sizes))}",
            labels={"dtype": "bf16", "layout": f"gathered {self.gathers}", "shape": f"{self.m}x{self.n}x{k}"},
            build=self.build,
            run=self.run,
            tolerance=OPERAND_TOLERANCE,
            cost=Cost(2.0 * self.m * self.n * k, 2.0 * k * (self.m + self.n) + 4.0 * len(self.sizes) * self.m * self.n),
            levels=frozenset(levels),
        )


def _rows() -> Iterator[Case]:
    for layout in ("nt", "nn"):
        yield _GatheredRows(layout, (5, 0, 33), 18, 40).case("smoke", "full")
        yield _GatheredRows(layout, (300, 128), 64, 96).case("full")
        yield _GatheredRows(layout, (1,), 1, 1).case("edge", "full")
        yield _GatheredRows(layout, (64,) * 8, 512, 512, 256).case("bench")
        yield _GatheredRows(layout, (512,) * 4, 2048, 2048, 2048).case("large")


def _k() -> Iterator[Case]:
    for gathers in ("a", "b"):
        for accumulates in (False, True):
            yield _GatheredK(gathers, (40, 0, 17), 12, 20, accumulates).case("smoke", "full")
            yield _GatheredK(gathers, (0, 0), 3, 2, accumulates).case("edge", "full")
            yield _GatheredK(gathers, (1, 130), 1, 1, accumulates, torch.bfloat16).case("edge", "full")
        yield _GatheredK(gathers, (256,) * 4, 256, 512, True, num_source_rows=512).case("bench")
        yield _GatheredK(gathers, (1024,) * 4, 1024, 2048, True, num_source_rows=2048).case("large")


@functools.cache
def gathered_m_cases() -> tuple[Case, ...]:
    """Return all cases of the GEMM with gathered rows."""
    return tuple(_rows())


@functools.cache
def gathered_k_cases() -> tuple[Case, ...]:
    """Return all cases of the GEMM with gathered K."""
    return tuple(_k())
