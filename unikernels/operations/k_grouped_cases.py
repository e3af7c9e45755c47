"""Cases of the GEMM grouped along K: forms of data and scales, layouts and group sizes that are compared and timed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from .base import Case, Cost, Tensors
from .case_inputs import OPERAND_TOLERANCE, ScaleForm, integers, operand_bytes, quantised, randn
from .m_grouped_cases import ALIGNMENT, aligned_groups

#: How operands are passed: K first; flat blocks; matrices with K last.
Form = Literal["tn", "flat", "nt"]


@dataclass(frozen=True, slots=True)
class _KGrouped:
    """Parameters of one case; `sizes` are the K elements of each group."""

    a_kind: str
    b_kind: str
    m: int
    n: int
    sizes: tuple[int, ...]
    scales: ScaleForm | None = None
    form: Form = "tn"
    is_psum: bool = False
    out: torch.dtype = torch.float32
    has_c: bool = True
    #: How ks_cpu is passed with end offsets: rounded up, not at all, or the real sizes with scale rows of gaps left out.
    ks: Literal["aligned", "none", "compact"] = "aligned"
    #: Stochastically to bfloat16; bf16 operands are integers then, whose exact sums define every bit.
    rounds: bool = False

    @property
    def dtype(self) -> str:
        return self.a_kind if self.scales is None else f"{self.a_kind}x{self.b_kind}"

    @property
    def id(self) -> str:
        parts = [self.dtype, self.form, *([self.scales.label] if self.scales else [])]
        parts += [f"psum-{self.ks}"] if self.is_psum else []
        parts += ["bf16out"] * (self.out is torch.bfloat16) + ["c"] * self.has_c
        parts += ["stochastic"] * self.rounds
        return "-".join([*parts, f"m={self.m}", f"n={self.n}", "ks=" + "+".join(map(str, self.sizes))])

    def _ranges(self) -> list[tuple[int, int, int]]:
        """Start, end and aligned end of every group."""
        ranges, start = [], 0
        for size in self.sizes:
            aligned = -(-size // ALIGNMENT) * ALIGNMENT if self.is_psum else size
            ranges.append((start, start + size, start + aligned))
            start += aligned
        return ranges

    @property
    def k(self) -> int:
        """Extent along K, gaps included."""
        return self._ranges()[-1][2]

    def build(self, generator: torch.Generator) -> Tensors:
        tensors: Tensors = {}
        for name, kind, mn in (("a", self.a_kind, self.m), ("b", self.b_kind, self.n)):
            tensors.update(self._operand(generator, name, kind, mn))
        layout = [end for _, end, _ in self._ranges()] if self.is_psum else self.sizes
        tensors["layout"] = torch.tensor(layout, dtype=torch.int32)
        shape = (len(self.sizes), self.m, self.n)
        tensors["d"] = torch.full(shape, 7.0, dtype=self.out)
        if self.has_c:
            tensors["c"] = randn(generator, *shape).to(self.out)
        return tensors

    def _operand(self, generator: torch.Generator, name: str, kind: str, mn: int) -> Tensors:
        if self.scales is None:
            data = integers(generator, self.k, mn) if self.rounds else randn(generator, self.k, mn)
            data, sf = data.bfloat16(), None
        else:
            data, sf = quantised(generator, kind, mn, self.k, self.scales, k_major=self.form != "tn")
            data, sf = (data.mT if self.form == "tn" else data), sf.mT
        for _, end, aligned_end in self._ranges():
            if self.form == "tn":
                data.view(torch.uint8)[end:aligned_end] = 0
            else:
                per_byte = 2 if kind == "fp4" else 1
                data.view(torch.uint8)[:, end // per_byte : aligned_end // per_byte] = 0
        if self.form == "flat":
            data = torch.cat([data.view(torch.uint8)[:, s:e].flatten() for s, e, _ in self._ranges()]).view(data.dtype)
        if sf is None:
            return {name: data}
        return {name: data, f"sf{name}": self._passed_scales(sf)}

    def _passed_scales(self, sf: Tensor) -> Tensor:
        """Turn K-first scales at the positions of the data into the form that is passed."""
        assert self.scales is not None
        if self.ks == "compact":
            gran_k = self.scales.gran_k
            sf = torch.cat([sf[start // gran_k : -(-end // gran_k)] for start, end, _ in self._ranges()])
        is_k_first = self.form == "tn" or self.a_kind == "fp4"
        return sf.contiguous() if is_k_first else sf.mT

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        ks: list[int] | None = list(self.sizes)
        if self.is_psum and self.ks != "compact":
            ks = None if self.ks == "none" else [end - start for start, _, end in self._ranges()]
        arguments: dict[str, Any] = {"c": t.get("c"), "use_psum_layout": self.is_psum}
        if self.rounds:
            arguments["epilogue"] = uk.epilogue.BF16StochasticRounding()
        a: Tensor | tuple[Tensor, Tensor] = t["a"]
        b: Tensor | tuple[Tensor, Tensor] = t["b"]
        if self.scales is None:
            function = uk.k_grouped_bf16_gemm_tn_contiguous
        else:
            a, b = (t["a"], t["sfa"]), (t["b"], t["sfb"])
            arguments["recipe"] = (1, 1, self.scales.gran_k)
            dtype = "fp4" if self.form == "nt" and self.a_kind == "fp4" else "fp8"
            function = getattr(uk, f"k_grouped_{dtype}_gemm_{'tn' if self.form == 'tn' else 'nt'}_contiguous")
        with aligned_groups(uk, ALIGNMENT):
            function(a, b, t["d"], ks, t["layout"], **arguments)
        return {"d": t["d"]}

    def case(self, *levels: str) -> Case:
        k = sum(self.sizes)
        moved = operand_bytes(self.a_kind, self.m, k) + operand_bytes(self.b_kind, self.n, k)
        moved += len(self.sizes) * self.m * self.n * (2 if self.out is torch.bfloat16 else 4) * (1 + self.has_c)
        layout = [self.form, *([self.scales.label] if self.scales else []), "psum" if self.is_psum else "plain"]
        return Case(
            id=self.id,
            labels={
                "dtype": self.dtype,
                "layout": ", ".join(layout),
                "shape": f"{self.m}x{self.n}x{k}, {len(self.sizes)} groups",
            },
            build=self.build,
            run=self.run,
            tolerance=0.0 if self.rounds else OPERAND_TOLERANCE,
            cost=Cost(2.0 * self.m * self.n * k, moved),
            levels=frozenset(levels),
        )


_PLAIN = (128, 0, 384)
_PSUM = (100, 0, 258, 64)


def _smoke() -> Iterator[Case]:
    both = ("smoke", "full")
    for sizes, is_psum in ((_PLAIN, False), (_PSUM, True)):
        yield _KGrouped("bf16", "bf16", 34, 65, sizes, is_psum=is_psum).case(*both)
        for form in (ScaleForm.FP32_MX, ScaleForm.INT32_MX, ScaleForm.INT16_MX):
            yield _KGrouped("fp8", "fp8", 36, 64, sizes, form, is_psum=is_psum).case(*both)
        yield _KGrouped("fp8", "fp4", 36, 64, sizes, ScaleForm.INT16_MX, is_psum=is_psum).case(*both)
        yield _KGrouped("fp4", "fp4", 36, 64, sizes, ScaleForm.INT32_MX, "nt", is_psum=is_psum).case(*both)
        yield _KGrouped("fp8", "fp8", 36, 64, sizes, ScaleForm.INT16_MX, "nt", is_psum=is_psum).case(*both)
    yield _KGrouped("fp8", "fp8", 36, 64, _PLAIN, ScaleForm.FP32_MX, "flat").case(*both)
    yield _KGrouped("fp8", "fp8", 36, 64, _PSUM, ScaleForm.FP32_MX, is_psum=True, ks="compact").case(*both)
    yield _KGrouped("fp8", "fp8", 36, 64, _PSUM, ScaleForm.INT32_MX, is_psum=True, ks="none", has_c=False).case(*both)
    yield _KGrouped("bf16", "bf16", 34, 65, _PLAIN, out=torch.bfloat16, has_c=False).case(*both)


def _edge() -> Iterator[Case]:
    for m, n, sizes in ((0, 64, (128, 128)), (4, 0, (128,)), (4, 8, (0, 0)), (1, 1, (256,)), (129, 3, (128, 128))):
        for has_c in (False, True):
            yield _KGrouped("bf16", "bf16", m, n, sizes, has_c=has_c).case("edge", "full")
    yield _KGrouped("fp8", "fp8", 4, 8, (0, 1, 257, 0), ScaleForm.INT16_MX, is_psum=True).case("edge", "full")
    yield _KGrouped("fp8", "fp8", 4, 8, (0, 0), ScaleForm.FP32_MX).case("edge", "full")


def _full() -> Iterator[Case]:
    for sizes, is_psum in (((1024, 0, 512, 128), False), ((1000, 0, 513, 77), True)):
        for out in (torch.bfloat16, torch.float32):
            for form in (ScaleForm.FP32_MX, ScaleForm.INT32_MX, ScaleForm.INT16_MX):
                case = _KGrouped("fp8", "fp8", 260, 132, sizes, form, is_psum=is_psum, out=out, has_c=False)
                yield case.case("full")
            yield _KGrouped("bf16", "bf16", 260, 132, sizes, is_psum=is_psum, out=out).case("full")
        rounded = _KGrouped(
            "bf16", "bf16", 36, 66, sizes, is_psum=is_psum, out=torch.bfloat16, has_c=False, rounds=True
        )
        yield rounded.case("full")


def _bench() -> Iterator[Case]:
    for sizes in ((1024,) * 4, (512,) * 16):
        for kind in ("fp8", "fp4"):
            yield _KGrouped(kind, kind, 1024, 2048, sizes, ScaleForm.INT16_MX).case("bench")
        yield _KGrouped("bf16", "bf16", 1024, 2048, sizes).case("bench")


def _large() -> Iterator[Case]:
    """Sizes of models for every operand type and layout that `_bench` does not time: models of time are asked, nothing runs."""
    m, n, sizes = 1024, 2048, (1024,) * 4
    yield _KGrouped("bf16", "bf16", m, n, sizes, is_psum=True).case("large")
    for is_psum in (False, True):
        for form in (ScaleForm.FP32_MX, ScaleForm.INT32_MX):
            yield _KGrouped("fp8", "fp8", m, n, sizes, form, is_psum=is_psum).case("large")
        yield _KGrouped("fp8", "fp4", m, n, sizes, ScaleForm.INT16_MX, is_psum=is_psum).case("large")
        yield _KGrouped("fp4", "fp4", m, n, sizes, ScaleForm.INT32_MX, "nt", is_psum=is_psum).case("large")
        yield _KGrouped("fp8", "fp8", m, n, sizes, ScaleForm.INT16_MX, "nt", is_psum=is_psum).case("large")
    yield _KGrouped("fp8", "fp8", m, n, sizes, ScaleForm.INT16_MX, is_psum=True).case("large")
    yield _KGrouped("fp8", "fp8", m, n, sizes, ScaleForm.FP32_MX, "flat").case("large")


@functools.cache
def k_grouped_cases() -> tuple[Case, ...]:
    """Return all cases of the GEMM grouped along K."""
    return (*_smoke(), *_edge(), *_full(), *_bench(), *_large())
