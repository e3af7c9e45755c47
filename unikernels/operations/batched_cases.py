"""Cases of the batched GEMM: einsum expressions, syrk and symm, with the element formats and strides compared and timed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from .base import Case, Cost, Tensors
from .case_inputs import OPERAND_TOLERANCE, ScaleForm, quantised, randn

#: Dimensions of a contraction by letter.
Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class _Einsum:
    """Parameters of one contraction; quantised if `scales` is given."""

    expr: str
    b: int
    h: int
    r: int
    d: int
    scales: ScaleForm | None = None
    out: torch.dtype = torch.bfloat16
    has_c: bool = False
    is_padded: bool = False

    @property
    def sizes(self) -> Sizes:
        return {"b": self.b, "h": self.h, "r": self.r, "d": self.d}

    def _shape(self, letters: str) -> tuple[int, ...]:
        return tuple(self.sizes[letter] for letter in letters)

    @property
    def id(self) -> str:
        extras = ["fp32out"] * (self.out is torch.float32) + ["fp8out"] * (self.out is torch.float8_e4m3fn)
        extras += ["c"] * self.has_c + ["padded"] * self.is_padded
        dtype = "bf16" if self.scales is None else f"fp8-{self.scales.label}"
        sizes = [f"{letter}={size}" for letter, size in self.sizes.items()]
        return "-".join([self.expr.replace("->", "_").replace(",", "_"), dtype, *extras, *sizes])

    def build(self, generator: torch.Generator) -> Tensors:
        (a, b), d = self.expr.split("->")[0].split(","), self.expr.split("->")[1]
        summed = next(letter for letter in a if letter in b and letter not in d)
        tensors: Tensors = {}
        for name, letters in (("a", a), ("b", b)):
            if self.scales is None:
                values = randn(generator, *self._shape(letters)).bfloat16()
                tensors[name] = _padded(values) if self.is_padded else values
            else:
                gran_mn = self.scales.gran_n if letters == "hdr" else 1
                data, sf = _quantised(generator, letters, summed, self.sizes, self.scales, gran_mn)
                tensors[name], tensors[f"sf{name}"] = data, sf
        tensors["d"] = torch.full(self._shape(d), 7.0).to(self.out)
        if self.has_c:
            tensors["c"] = randn(generator, *self._shape(d)).to(self.out)
        if self.out is torch.float8_e4m3fn:
            tensors["sfd"] = torch.full((self.h * self.d // 128, -(-self.b // 4) * 4), -1, dtype=torch.int32)
        return tensors

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        if self.scales is None:
            uk.einsum(self.expr, t["a"], t["b"], t["d"], c=t.get("c"))
            return {"d": t["d"]}
        recipe = (1, self.scales.gran_n, self.scales.gran_k)
        a, b, d = (t["a"], t["sfa"]), (t["b"], t["sfb"]), t["d"]
        if "sfd" not in t:
            uk.fp8_einsum(self.expr, a, b, d, c=t.get("c"), recipe=recipe)
            return {"d": d}
        sfd = t["sfd"].T[: self.b]
        uk.fp8_einsum(self.expr, a, b, (d, sfd), recipe=recipe)
        # A sum a hair from a rounding boundary may land on either side: values are compared, not codes.
        factors = (sfd.contiguous().view(torch.uint8).int() << 23).view(torch.float32)
        return {"d": (d.flatten(1).float().unflatten(1, (-1, 32)) * factors[..., None]).flatten(1)}

    def case(self, *levels: str) -> Case:
        flops = 2.0 * self.b * self.h * self.r * self.d
        elements = sum(_product(self._shape(letters)) for letters in self.expr.replace("->", ",").split(","))
        return Case(
            id=self.id,
            labels={
                "dtype": "bf16" if self.scales is None else "fp8",
                "layout": self.expr + (f", {self.scales.label}" if self.scales else ""),
                "shape": " ".join(f"{letter}={size}" for letter, size in self.sizes.items()),
            },
            build=self.build,
            run=self.run,
            tolerance=_FP8_OUTPUT_TOLERANCE if self.out is torch.float8_e4m3fn else OPERAND_TOLERANCE,
            cost=Cost(flops, elements * (2.0 if self.scales is None else 1.0)),
            levels=frozenset(levels),
        )


#: A step of E4M3 at a rounding boundary is 2^-4 relative; one element in a few thousand may take it.
_FP8_OUTPUT_TOLERANCE = 1e-4


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _padded(values: Tensor) -> Tensor:
    """Store with a wider row pitch."""
    wide = torch.zeros((*values.shape[:-1], values.shape[-1] + 8), dtype=values.dtype)
    wide[..., : values.shape[-1]] = values
    return wide[..., : values.shape[-1]]


def _quantised(
    generator: torch.Generator, letters: str, summed: str, sizes: Sizes, form: ScaleForm, gran_mn: int
) -> tuple[Tensor, Tensor]:
    """Quantise along the summed letter, one matrix per head; dimensions of data and scales in the order of `letters`."""
    kept = next(letter for letter in letters if letter not in ("h", summed))
    heads = [quantised(generator, "fp8", sizes[kept], sizes[summed], form, gran_mn=gran_mn) for _ in range(sizes["h"])]
    # Both are [h, kept, summed] here.
    order = [("h", kept, summed).index(letter) for letter in letters]
    data = torch.stack([data for data, _ in heads]).permute(order).contiguous()
    return data, torch.stack([sf for _, sf in heads]).permute(order)


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The expression that sums over the batch."""

    s: int
    m: int
    n: int
    k: int
    out: torch.dtype

    def build(self, generator: torch.Generator) -> Tensors:
        return {
            "a": randn(generator, self.s, self.m, self.k).bfloat16(),
            "b": randn(generator, self.s, self.n, self.k).bfloat16(),
            "d": randn(generator, self.m, self.n).to(self.out),
        }

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        uk.einsum("bmk,bnk->mn", t["a"], t["b"], t["d"], c=t["d"] if self.out is torch.float32 else None)
        return {"d": t["d"]}

    def case(self, *levels: str) -> Case:
        moved = 2.0 * self.s * (self.m + self.n) * self.k + 4.0 * self.m * self.n
        out = "-fp32out" * (self.out is torch.float32)
        return Case(
            id=f"bmk_bnk_mn-bf16{out}-s={self.s}-m={self.m}-n={self.n}-k={self.k}",
            labels={"dtype": "bf16", "layout": "bmk,bnk->mn", "shape": f"{self.s}x{self.m}x{self.n}x{self.k}"},
            build=self.build,
            run=self.run,
            tolerance=OPERAND_TOLERANCE,
            cost=Cost(2.0 * self.s * self.m * self.n * self.k, moved),
            levels=frozenset(levels),
        )


@dataclass(frozen=True, slots=True)
class _Symmetric:
    """syrk (D = A @ A.T) and symm (D = A @ B, A symmetric)."""

    name: str
    batch: int
    m: int
    k: int
    dtype: torch.dtype
    is_padded: bool = False

    def build(self, generator: torch.Generator) -> Tensors:
        wide = randn(generator, self.batch, self.m, self.k).to(self.dtype)
        wide = _padded(wide) if self.is_padded else wide
        if self.name == "syrk":
            return {"a": wide, "d": torch.full((self.batch, self.m, self.m), 7.0, dtype=self.dtype)}
        square = randn(generator, self.batch, self.m, self.m)
        return {"a": (square + square.mT).to(self.dtype), "b": wide, "d": torch.full_like(wide, 7.0)}

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        if self.name == "syrk":
            uk.batched_syrk(t["a"], t["d"])
        else:
            uk.batched_symm(t["a"], t["b"], t["d"])
        return {"d": t["d"]}

    def case(self, *levels: str) -> Case:
        dtype = "bf16" if self.dtype is torch.bfloat16 else "fp32"
        shape = f"{self.batch}x{self.m}x{self.k}"
        padded = "-padded" * self.is_padded
        return Case(
            id=f"{self.name}-{dtype}{padded}-batch={self.batch}-m={self.m}-k={self.k}",
            labels={"dtype": dtype, "layout": self.name, "shape": shape},
            build=self.build,
            run=self.run,
            tolerance=OPERAND_TOLERANCE,
            cost=Cost(2.0 * self.batch * self.m * self.m * self.k, 4.0 * self.batch * self.m * (self.m + self.k)),
            levels=frozenset(levels),
        )


_PER_TOKEN = ("bhr,hdr->bhd", "bhd,hdr->bhr")
_WEIGHT = "bhd,bhr->hdr"


def _smoke() -> Iterator[Case]:
    both = ("smoke", "full")
    for expr in (*_PER_TOKEN, _WEIGHT):
        out = torch.float32 if expr == _WEIGHT else torch.bfloat16
        yield _Einsum(expr, 33, 3, 40, 24, out=out, has_c=expr == _WEIGHT).case(*both)
        yield _Einsum(expr, 64, 2, 160, 96, ScaleForm.INT16_MX, out=out).case(*both)
        yield _Einsum(expr, 36, 2, 128, 160, ScaleForm.INT32_MX, out=out, has_c=True).case(*both)
    for expr in _PER_TOKEN:
        yield _Einsum(expr, 5, 2, 256, 136, ScaleForm.FP32_BLOCK).case(*both)
        yield _Einsum(expr, 33, 3, 40, 24, is_padded=True).case(*both)
    yield _Einsum("bhr,hdr->bhd", 6, 2, 128, 128, ScaleForm.FP32_MX, out=torch.float8_e4m3fn).case(*both)
    for out in (torch.bfloat16, torch.float32):
        yield _Reduction(17, 64, 128, 64, out).case(*both)
    for name in ("syrk", "symm"):
        for dtype in (torch.bfloat16, torch.float32):
            yield _Symmetric(name, 2, 33, 40, dtype, is_padded=dtype is torch.float32).case(*both)


def _edge() -> Iterator[Case]:
    for sizes in ((0, 2, 8, 8), (4, 2, 0, 8), (4, 2, 8, 0), (1, 1, 1, 1)):
        for expr in (*_PER_TOKEN, _WEIGHT):
            yield _Einsum(expr, *sizes, out=torch.float32, has_c=True).case("edge", "full")
    yield _Einsum("bhr,hdr->bhd", 1, 1, 32, 1, ScaleForm.INT16_MX).case("edge", "full")
    for batch, m, k in ((0, 4, 4), (1, 0, 4), (2, 4, 0), (1, 1, 1)):
        for name in ("syrk", "symm"):
            yield _Symmetric(name, batch, m, k, torch.float32).case("edge", "full")


def _full() -> Iterator[Case]:
    for expr in _PER_TOKEN:
        yield _Einsum(expr, 128, 8, 512, 128).case("full")
        yield _Einsum(expr, 128, 8, 512, 128, ScaleForm.FP32_BLOCK).case("full")
    yield _Einsum(_WEIGHT, 256, 8, 256, 128, ScaleForm.INT16_MX, out=torch.float32, has_c=True).case("full")
    yield _Reduction(129, 128, 256, 128, torch.float32).case("full")


def _bench() -> Iterator[Case]:
    for b in (4, 128):
        yield _Einsum("bhr,hdr->bhd", b, 16, 4096, 1024, ScaleForm.INT16_MX).case("bench")
        yield _Einsum("bhr,hdr->bhd", b, 128, 512, 128).case("bench")


def _large() -> Iterator[Case]:
    """Sizes of models for every operand type and layout that `_bench` does not time: models of time are asked, nothing runs."""
    sizes = (128, 16, 4096, 1024)
    for expr in (*_PER_TOKEN, _WEIGHT):
        out = torch.float32 if expr == _WEIGHT else torch.bfloat16
        yield _Einsum(expr, *sizes, ScaleForm.INT32_MX, out=out).case("large")
        if expr != _PER_TOKEN[0]:
            yield _Einsum(expr, *sizes, out=out).case("large")
            yield _Einsum(expr, *sizes, ScaleForm.INT16_MX, out=out).case("large")
    yield _Einsum(_PER_TOKEN[0], *sizes, ScaleForm.FP32_MX).case("large")
    yield _Reduction(64, 128, 4096, 1024, torch.float32).case("large")
    for name in ("syrk", "symm"):
        for dtype in (torch.bfloat16, torch.float32):
            yield _Symmetric(name, 4, 2048, 2048, dtype).case("large")


@functools.cache
def batched_cases() -> tuple[Case, ...]:
    """Return all cases of the batched GEMM."""
    return (*_smoke(), *_edge(), *_full(), *_bench(), *_large())
