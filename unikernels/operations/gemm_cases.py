"""Cases of the dense GEMM: which shapes, element formats, scale formats and layouts are compared and timed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch

from .base import Case, Cost, Tensors
from .case_inputs import OPERAND_TOLERANCE, ScaleForm, operand_bytes, quantised, randn
from .gemm_store_cases import gemm_store_cases

_DTYPE_BYTES = {torch.bfloat16: 2, torch.float32: 4}


@dataclass(frozen=True, slots=True)
class _Dense:
    """Parameters of one quantised dense case."""

    a_kind: str
    b_kind: str
    m: int
    n: int
    k: int
    scales: ScaleForm
    layout: str = "nt"
    out: torch.dtype = torch.bfloat16
    has_c: bool = False
    alpha: float | None = None

    @property
    def id(self) -> str:
        extras = ["fp32out"] * (self.out is torch.float32) + ["c"] * self.has_c + ["alpha"] * (self.alpha is not None)
        parts = [f"{self.a_kind}x{self.b_kind}", self.layout, self.scales.label, *extras]
        return "-".join([*parts, f"m={self.m}", f"n={self.n}", f"k={self.k}"])

    def build(self, generator: torch.Generator) -> Tensors:
        tensors: Tensors = {}
        tensors["a"], tensors["sfa"] = quantised(
            generator, self.a_kind, self.m, self.k, self.scales, gran_mn=1, k_major=self.layout[0] == "n"
        )
        tensors["b"], tensors["sfb"] = quantised(
            generator,
            self.b_kind,
            self.n,
            self.k,
            self.scales,
            gran_mn=self.scales.gran_n,
            k_major=self.layout[1] == "t",
        )
        if self.layout[0] == "t":
            tensors["a"], tensors["sfa"] = tensors["a"].mT, tensors["sfa"].mT
        if self.layout[1] == "n":
            tensors["b"], tensors["sfb"] = tensors["b"].mT, tensors["sfb"].mT
        tensors["d"] = torch.full((self.m, self.n), 7.0, dtype=self.out)
        if self.has_c:
            tensors["c"] = randn(generator, self.m, self.n).to(self.out)
        return tensors

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        function = getattr(uk, f"fp8_fp4_gemm_{self.layout}")
        recipe = (1, self.scales.gran_n, self.scales.gran_k)
        function((t["a"], t["sfa"]), (t["b"], t["sfb"]), t["d"], c=t.get("c"), recipe=recipe, alpha=self.alpha)
        return {"d": t["d"]}

    def case(self, *levels: str) -> Case:
        moved = operand_bytes(self.a_kind, self.m, self.k) + operand_bytes(self.b_kind, self.n, self.k)
        moved += self.m * self.n * _DTYPE_BYTES[self.out] * (1 + self.has_c)
        return Case(
            id=self.id,
            labels={
                "dtype": f"{self.a_kind}x{self.b_kind}",
                "layout": f"{self.layout}, {self.scales.label}",
                "shape": f"{self.m}x{self.n}x{self.k}",
            },
            build=self.build,
            run=self.run,
            tolerance=OPERAND_TOLERANCE,
            cost=Cost(2.0 * self.m * self.n * self.k, moved),
            levels=frozenset(levels),
        )


def _bf16_case(m: int, n: int, k: int, layout: str, out: torch.dtype, has_c: bool, *levels: str) -> Case:
    def build(generator: torch.Generator) -> Tensors:
        a, b = randn(generator, m, k).bfloat16(), randn(generator, n, k).bfloat16()
        tensors = {
            "a": a if layout[0] == "n" else a.mT.contiguous(),
            "b": b if layout[1] == "t" else b.mT.contiguous(),
            "d": torch.full((m, n), 7.0, dtype=out),
        }
        if has_c:
            tensors["c"] = randn(generator, m, n).to(out)
        return tensors

    def run(uk: ModuleType, t: Tensors) -> Tensors:
        getattr(uk, f"bf16_gemm_{layout}")(t["a"], t["b"], t["d"], c=t.get("c"))
        return {"d": t["d"]}

    extras = "-fp32out" * (out is torch.float32) + "-c" * has_c
    return Case(
        id=f"bf16-{layout}{extras}-m={m}-n={n}-k={k}",
        labels={"dtype": "bf16", "layout": layout, "shape": f"{m}x{n}x{k}"},
        build=build,
        run=run,
        tolerance=OPERAND_TOLERANCE,
        cost=Cost(2.0 * m * n * k, 2.0 * (m * k + n * k) + m * n * _DTYPE_BYTES[out] * (1 + has_c)),
        levels=frozenset(levels),
    )


_KIND_PAIRS = (("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp8"), ("fp4", "fp4"))
_LAYOUTS = ("nt", "nn", "tn", "tt")


def _smoke() -> Iterator[Case]:
    for a_kind, b_kind in _KIND_PAIRS:
        for form in (ScaleForm.FP32_BLOCK, ScaleForm.FP32_MX, ScaleForm.INT32_MX, ScaleForm.INT16_MX):
            yield _Dense(a_kind, b_kind, 34, 130, 256, form).case("smoke", "full")
    for layout in _LAYOUTS:
        yield _Dense("fp8", "fp4", 34, 66, 192, ScaleForm.INT16_MX, layout).case("smoke", "full")
        yield _bf16_case(33, 65, 200, layout, torch.bfloat16, False, "smoke", "full")
    yield _Dense("fp8", "fp8", 34, 130, 256, ScaleForm.INT32_128, out=torch.float32, has_c=True).case("smoke", "full")
    yield _Dense("fp8", "fp8", 34, 130, 256, ScaleForm.INT16_MX, alpha=-0.375).case("smoke", "full")
    yield _bf16_case(33, 65, 200, "nt", torch.float32, True, "smoke", "full")


def _edge() -> Iterator[Case]:
    for m, n, k in ((0, 64, 64), (16, 0, 64), (16, 64, 0), (1, 1, 32), (1, 128, 96), (5, 6, 352)):
        yield _bf16_case(m, n, k, "nt", torch.bfloat16, True, "edge", "full")
        yield _Dense("fp8", "fp8", m, n, k, ScaleForm.INT16_MX, has_c=True).case("edge", "full")
    yield _Dense("fp8", "fp8", 3, 5, 40, ScaleForm.FP32_MX).case("edge", "full")


def _full() -> Iterator[Case]:
    for layout in _LAYOUTS:
        for a_kind, b_kind in _KIND_PAIRS:
            for out in (torch.bfloat16, torch.float32):
                dense = _Dense(a_kind, b_kind, 130, 258, 416, ScaleForm.INT32_MX, layout, out, has_c=True)
                yield dense.case("full")
    for m, n, k in ((1, 2112, 7168), (128, 576, 7168), (64, 4096, 512)):
        yield _Dense("fp8", "fp8", m, n, k, ScaleForm.FP32_BLOCK).case("full")
        yield _Dense("fp8", "fp4", m, n, k, ScaleForm.INT16_MX).case("full")


def _bench() -> Iterator[Case]:
    for m in (1, 16, 512):
        for a_kind, b_kind in (("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp4")):
            yield _Dense(a_kind, b_kind, m, 4096, 7168, ScaleForm.INT16_MX).case("bench")
        yield _bf16_case(m, 4096, 7168, "nt", torch.bfloat16, False, "bench")


def _large() -> Iterator[Case]:
    """Sizes of models for every operand type and layout that `_bench` does not time: models of time are asked, nothing runs."""
    m, n, k = 512, 4096, 7168
    for a_kind, b_kind in _KIND_PAIRS:
        for form in (ScaleForm.FP32_MX, ScaleForm.INT32_MX):
            yield _Dense(a_kind, b_kind, m, n, k, form).case("large")
    yield _Dense("fp4", "fp8", m, n, k, ScaleForm.INT16_MX).case("large")
    yield _Dense("fp8", "fp8", m, n, k, ScaleForm.INT32_128).case("large")
    for layout in _LAYOUTS[1:]:
        yield _Dense("fp8", "fp4", m, n, k, ScaleForm.INT16_MX, layout).case("large")
        yield _bf16_case(m, n, k, layout, torch.bfloat16, False, "large")


@functools.cache
def gemm_cases() -> tuple[Case, ...]:
    """Return all cases of the dense GEMM."""
    return (*_smoke(), *_edge(), *_full(), *_bench(), *_large(), *gemm_store_cases())
