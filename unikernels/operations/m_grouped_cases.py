"""Cases of the GEMM grouped along M: layouts, element formats and group sizes that are compared and timed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from .base import Case, Cost, Tensors
from .case_inputs import OPERAND_TOLERANCE, ScaleForm, integers, operand_bytes, quantised, randn

ALIGNMENT = 256  # a multiple of every backend's default, so that one case suits all of them


_Kind = Literal["index", "psum", "masked"]
_KINDS: tuple[_Kind, ...] = ("index", "psum", "masked")


@contextmanager
def aligned_groups(uk: ModuleType, alignment: int) -> Iterator[None]:
    """Set the alignment of group starts and put back what was there, where the backend has another one."""
    previous = uk.get_mk_alignment_for_contiguous_layout()
    if previous == alignment:
        yield
        return
    uk.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        yield
    finally:
        uk.set_mk_alignment_for_contiguous_layout(previous)


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Parameters of one case; `sizes` are the rows of each group."""

    kind: _Kind
    a_kind: str
    b_kind: str
    sizes: tuple[int, ...]
    n: int
    k: int
    scales: ScaleForm | None = None
    b_layout: str = "nt"
    out: torch.dtype = torch.bfloat16
    pads: bool = True
    #: Share of A's rows outside every group: NaN instead of zero (psum with padding needs zeros upstream).
    has_garbage: bool = False
    #: Stochastically to bfloat16; bf16 operands are integers then, whose exact sums define every bit.
    rounds: bool = False

    @property
    def id(self) -> str:
        dtype = self.a_kind if self.scales is None else f"{self.a_kind}x{self.b_kind}"
        parts = [self.kind, dtype, self.b_layout, *([self.scales.label] if self.scales else [])]
        parts += ["fp32out"] * (self.out is torch.float32) + ["nopad"] * (not self.pads)
        parts += ["garbage"] * self.has_garbage + ["stochastic"] * self.rounds
        return "-".join([*parts, "sizes=" + "+".join(map(str, self.sizes)), f"n={self.n}", f"k={self.k}"])

    def _rows(self) -> list[tuple[int, int]]:
        """Start and end of every group in one contiguous tensor."""
        ranges, start = [], 0
        for size in self.sizes:
            ranges.append((start, start + size))
            start = -(-(start + size) // ALIGNMENT) * ALIGNMENT
        return ranges

    @property
    def num_rows(self) -> int:
        """Rows of A and D: up to the last aligned end, and one unused row more for psum."""
        last = max(self._rows()[-1])
        return -(-last // ALIGNMENT) * ALIGNMENT + (self.kind == "psum")

    def build(self, generator: torch.Generator) -> Tensors:
        tensors: Tensors = {}
        num_groups = len(self.sizes)
        max_m = max(*self.sizes, 1) + 3
        slabs, m = (num_groups, max_m) if self.kind == "masked" else (1, self.num_rows)
        a = [self._operand(generator, self.a_kind, m, False) for _ in range(slabs)]
        b = [self._operand(generator, self.b_kind, self.n, True) for _ in range(num_groups)]
        if self.kind == "masked":
            tensors["a"] = torch.stack([data for data, _ in a])
            tensors["group_sizes"] = torch.tensor(self.sizes, dtype=torch.int32)
            valid = torch.arange(m) < tensors["group_sizes"][:, None]
        else:
            tensors["a"] = a[0][0]
            valid = torch.zeros(m, dtype=torch.bool)
            labels = torch.full((m,), -1, dtype=torch.int32)
            for group, (start, end) in enumerate(self._rows()):
                labels[start:end], valid[start:end] = group, True
            ends = torch.tensor([end for _, end in self._rows()], dtype=torch.int32)
            tensors["group_sizes"] = labels if self.kind == "index" else ends
        tensors["valid"] = valid
        tensors["b"] = _stacked([data for data, _ in b])
        if self.scales is not None:
            tensors["sfa"] = torch.stack([sf for _, sf in a]) if self.kind == "masked" else a[0][1]
            tensors["sfb"] = _stacked([sf for _, sf in b])
        self._fill_gaps(tensors)
        if self.b_layout == "nn":
            tensors["b"] = tensors["b"].mT
            if self.scales is not None:
                tensors["sfb"] = tensors["sfb"].mT
        shape = (num_groups, m, self.n) if self.kind == "masked" else (m, self.n)
        tensors["d"] = torch.full(shape, 7.0, dtype=self.out)
        return tensors

    def _operand(self, generator: torch.Generator, kind: str, mn: int, is_b: bool) -> tuple[Tensor, Tensor]:
        k_major = not is_b or self.b_layout == "nt"
        if self.scales is None:
            data = integers(generator, mn, self.k) if self.rounds else randn(generator, mn, self.k)
            data = data.bfloat16()
            return (data if k_major else data.mT.contiguous().mT), torch.empty(0)
        gran_mn = self.scales.gran_n if is_b else 1
        return quantised(generator, kind, mn, self.k, self.scales, gran_mn=gran_mn, k_major=k_major)

    def _fill_gaps(self, tensors: Tensors) -> None:
        gaps = ~tensors["valid"]
        a = tensors["a"].view(torch.uint8)
        a[gaps] = 0xFF if self.has_garbage else 0
        if self.has_garbage and self.scales is not None and tensors["sfa"].dtype is torch.float32:
            tensors["sfa"][gaps] = torch.nan

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        a: Tensor | tuple[Tensor, Tensor] = t["a"]
        b: Tensor | tuple[Tensor, Tensor] = t["b"]
        options: dict[str, Any] = {"epilogue": uk.epilogue.BF16StochasticRounding()} if self.rounds else {}
        dtype = "bf16"
        if self.scales is not None:
            a, b, dtype = (t["a"], t["sfa"]), (t["b"], t["sfb"]), "fp8_fp4"
            options["recipe"] = (1, self.scales.gran_n, self.scales.gran_k)
        if self.kind == "masked":
            function = getattr(uk, f"m_grouped_{dtype}_gemm_nt_masked")
            function(a, b, t["d"], t["group_sizes"], max(self.sizes), **options)
        else:
            function = getattr(uk, f"m_grouped_{dtype}_gemm_{self.b_layout}_contiguous")
            psum = self.kind == "psum"
            with aligned_groups(uk, ALIGNMENT):
                function(a, b, t["d"], t["group_sizes"], **options, use_psum_layout=psum, ensure_zero_padding=self.pads)
        # Rows the contract leaves open are not compared; psum with padding specifies every row.
        return {"d": t["d"] if self.kind == "psum" and self.pads else t["d"][t["valid"]]}

    def case(self, *levels: str) -> Case:
        rows, groups = sum(self.sizes), len(self.sizes)
        moved = operand_bytes(self.a_kind, rows, self.k) + groups * operand_bytes(self.b_kind, self.n, self.k)
        moved += rows * self.n * (2 if self.out is torch.bfloat16 else 4)
        return Case(
            id=self.id,
            labels={
                "dtype": self.a_kind if self.scales is None else f"{self.a_kind}x{self.b_kind}",
                "layout": f"{self.kind}, {self.b_layout}" + (f", {self.scales.label}" if self.scales else ""),
                "shape": f"{rows}x{self.n}x{self.k}, {groups} groups",
            },
            build=self.build,
            run=self.run,
            tolerance=0.0 if self.rounds else OPERAND_TOLERANCE,
            cost=Cost(2.0 * rows * self.n * self.k, moved),
            levels=frozenset(levels),
        )


def _stacked(parts: list[Tensor]) -> Tensor:
    """Stack equal matrices, keeping each one's strides."""
    first = parts[0]
    if first.is_contiguous():
        return torch.stack(parts)
    return torch.stack([part.mT for part in parts]).mT


_SIZES = (3, 0, 70, 33)


def _smoke() -> Iterator[Case]:
    both = ("smoke", "full")
    for kind in _KINDS:
        yield _Grouped(kind, "bf16", "bf16", _SIZES, 65, 200).case(*both)
        yield _Grouped(kind, "fp8", "fp8", _SIZES, 130, 256, ScaleForm.FP32_BLOCK).case(*both)
        yield _Grouped(kind, "fp8", "fp4", _SIZES, 66, 192, ScaleForm.INT16_MX).case(*both)
        yield _Grouped(kind, "fp4", "fp4", _SIZES, 66, 256, ScaleForm.INT32_MX).case(*both)
    for kind in (_KINDS[0], _KINDS[2]):
        yield _Grouped(kind, "fp8", "fp8", (5, 2), 32, 128, ScaleForm.FP32_MX, has_garbage=True).case(*both)
    for kind in _KINDS[:2]:
        yield _Grouped(kind, "bf16", "bf16", (5, 70), 33, 64, b_layout="nn").case(*both)
        yield _Grouped(kind, "fp8", "fp4", (5, 70), 34, 128, ScaleForm.INT32_MX, b_layout="nn").case(*both)
    yield _Grouped("psum", "fp8", "fp8", (5, 70), 32, 128, ScaleForm.INT16_MX, pads=False, has_garbage=True).case(*both)
    yield _Grouped("psum", "bf16", "bf16", (5, 70), 32, 64, out=torch.float32).case(*both)
    yield _Grouped("psum", "bf16", "bf16", _SIZES, 65, 200, rounds=True).case(*both)


def _edge() -> Iterator[Case]:
    for kind in _KINDS:
        yield _Grouped(kind, "bf16", "bf16", (0, 0), 32, 64).case("edge", "full")
        yield _Grouped(kind, "fp8", "fp8", (1,), 1, 32, ScaleForm.INT16_MX).case("edge", "full")
        yield _Grouped(kind, "fp8", "fp8", (256, 1, 255), 6, 96, ScaleForm.INT16_MX).case("edge", "full")


def _full() -> Iterator[Case]:
    for kind in _KINDS:
        for a_kind, b_kind in (("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp8"), ("fp4", "fp4")):
            yield _Grouped(kind, a_kind, b_kind, (130, 0, 513, 64), 258, 416, ScaleForm.INT32_MX).case("full")
        yield _Grouped(kind, "bf16", "bf16", (130, 0, 513, 64), 258, 416).case("full")
        yield _Grouped(kind, "bf16", "bf16", (130, 0, 513, 64), 258, 416, rounds=True).case("full")


def _bench() -> Iterator[Case]:
    for kind in _KINDS[1:]:
        for sizes in ((20,) * 32, (256,) * 8):
            yield _Grouped(kind, "fp8", "fp8", sizes, 2048, 2048, ScaleForm.INT16_MX).case("bench")
            yield _Grouped(kind, "fp8", "fp4", sizes, 2048, 2048, ScaleForm.INT16_MX).case("bench")
            yield _Grouped(kind, "bf16", "bf16", sizes, 2048, 2048).case("bench")


def _large() -> Iterator[Case]:
    """Sizes of models for every operand type and layout that `_bench` does not time: models of time are asked, nothing runs."""
    sizes, n, k = (256,) * 8, 2048, 2048
    for kind in _KINDS:
        yield _Grouped(kind, "fp4", "fp4", sizes, n, k, ScaleForm.INT32_MX).case("large")
    for kind in (_KINDS[0], _KINDS[2]):
        yield _Grouped(kind, "fp8", "fp8", sizes, n, k, ScaleForm.FP32_MX).case("large")
    for b_kind in ("fp8", "fp4"):
        yield _Grouped("index", "fp8", b_kind, sizes, n, k, ScaleForm.INT16_MX).case("large")
    yield _Grouped("index", "bf16", "bf16", sizes, n, k).case("large")
    for kind in _KINDS[:2]:
        yield _Grouped(kind, "bf16", "bf16", sizes, n, k, b_layout="nn").case("large")
        yield _Grouped(kind, "fp8", "fp4", sizes, n, k, ScaleForm.INT32_MX, b_layout="nn").case("large")


@functools.cache
def m_grouped_cases() -> tuple[Case, ...]:
    """Return all cases of the GEMM grouped along M."""
    return (*_smoke(), *_edge(), *_full(), *_bench(), *_large())
