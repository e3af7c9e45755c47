"""Cases of expert routing. Logits are exact in float32, so that every backend ranks the same numbers, ties included."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from .base import Case, Cost, Tensors
from .case_inputs import randn

#: Contract 1.10, for weights; indices are integers and compared exactly.
TOLERANCE = 1e-11

_MASKS = ("mask", "image_token_mask", "fix_routing_mask", "force_random")
_DUP = 3


@dataclass(frozen=True, slots=True)
class _Gate:
    """Parameters of one case; `options` are names of optional arguments, ``map`` for both tables."""

    num_tokens: int
    hidden: int
    num_experts: int
    num_topk: int
    num_shared: int = 0
    scoring_func: str = "sqrtsoftplus"
    options: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        extras = "+".join(option.removesuffix("_mask") for option in self.options) or "plain"
        sizes = f"t={self.num_tokens}-h={self.hidden}-e={self.num_experts}+{self.num_shared}-top={self.num_topk}"
        return f"{self.scoring_func}-{extras}-{sizes}"

    def build(self, generator: torch.Generator) -> Tensors:
        t, num_slots = self.num_tokens, self.num_topk + self.num_shared
        # Small integers times a power of two: any order of summation gives the same logits, of size about 2.
        shift = round(torch.tensor(float(self.hidden)).sqrt().log2().item())
        tensors = {
            "x": _small_integers(generator, t, self.hidden),
            "weight": _small_integers(generator, self.num_experts, self.hidden) * 2.0**-shift,
            "topk_idx": torch.full((t, num_slots), -7),
            "topk_weights": torch.full((t, num_slots), torch.nan),
        }
        for option in self.options:
            if option == "map":
                tensors.update(self._tables(generator))
            elif option == "unmapped_topk_idx":
                # Rows of a wider tensor; what is in them matters where fix_routing_mask says so.
                wide = torch.rand((t, self.num_experts), generator=generator).argsort(dim=1)
                tensors[option] = wide[:, : self.num_topk]
            elif option in _MASKS:
                tensors[option] = torch.rand(t, generator=generator) < (0.8 if option == "mask" else 0.4)
            else:
                tensors[option] = randn(generator, self.num_experts) * 0.25
        return tensors

    def _tables(self, generator: torch.Generator) -> Tensors:
        num_logical = self.num_experts + self.num_shared
        count = torch.randint(1, _DUP + 1, (num_logical,), generator=generator)
        table = torch.full((num_logical, _DUP), -1, dtype=torch.int32)
        physical = torch.randperm(int(count.sum()), generator=generator).int()
        table[torch.arange(_DUP) < count.unsqueeze(1)] = physical
        return {"to_physical_map": table, "logical_count": count.int()}

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        optional = {name: one for name, one in t.items() if name not in ("x", "weight", "topk_idx", "topk_weights")}
        uk.bf16_mega_gate(
            t["x"], t["weight"], self.num_topk, self.num_shared > 0, self.num_shared, 2.5, 3, self.scoring_func,
            **optional, out=(t["topk_idx"], t["topk_weights"]),
        )  # fmt: skip
        outputs = {"topk_idx": t["topk_idx"].clone(), "topk_weights": t["topk_weights"].clone()}
        if "unmapped_topk_idx" in t:
            outputs["unmapped_topk_idx"] = t["unmapped_topk_idx"]
        if "force_random" in t:
            # Random choices are specified by their properties only.
            is_random = t["force_random"] & t.get("mask", torch.ones_like(t["force_random"]))
            num_physical = self.num_experts + self.num_shared
            if "logical_count" in t:
                num_physical = int(t["logical_count"].sum())
            outputs["random_is_valid"] = ~is_random | _is_valid(
                outputs["topk_idx"], outputs["topk_weights"], num_physical
            )
            outputs["topk_idx"][is_random] = 0
            outputs["topk_weights"][is_random] = 0
        return outputs

    def case(self, *levels: str) -> Case:
        t, h, e = self.num_tokens, self.hidden, self.num_experts
        return Case(
            id=self.id,
            labels={
                "dtype": "bf16",
                "layout": "+".join(self.options) or "plain",
                "shape": f"{t}x{e}x{h} top{self.num_topk}",
            },
            build=self.build,
            run=self.run,
            tolerance=TOLERANCE,
            cost=Cost(2.0 * t * h * e, 2.0 * (t + e) * h + 12.0 * t * (self.num_topk + self.num_shared)),
            levels=frozenset(levels),
        )


def _small_integers(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(-2, 3, shape, generator=generator).bfloat16()


def _is_valid(experts: Tensor, weights: Tensor, num_physical: int) -> Tensor:
    ascending = experts.sort(dim=1).values
    is_distinct = (ascending.diff(dim=1) > 0).all(1)
    in_range = ((experts >= 0) & (experts < num_physical)).all(1)
    return is_distinct & in_range & ((weights > 0) & (weights <= 1)).all(1)


_ALL_OPTIONS = (
    "mask",
    "bias",
    "image_bias",
    "image_token_mask",
    "fix_routing_mask",
    "unmapped_topk_idx",
    "force_random",
    "map",
)


def _all() -> Iterator[Case]:
    for scoring_func in ("sqrtsoftplus", "sigmoid", "identity"):
        yield _Gate(65, 256, 128, 6, 0, scoring_func, ("bias",)).case("smoke", "full")
    yield _Gate(97, 512, 96, 6, 2, options=_ALL_OPTIONS).case("smoke", "full")
    yield _Gate(64, 1024, 256, 8, 2, options=("mask", "unmapped_topk_idx", "map")).case("smoke", "full")
    yield _Gate(
        49, 256, 72, 6, 1, options=("image_bias", "image_token_mask", "fix_routing_mask", "unmapped_topk_idx")
    ).case("smoke", "full")
    yield _Gate(0, 256, 96, 6, 2, options=_ALL_OPTIONS).case("edge", "full")
    yield _Gate(1, 256, 4, 4).case("edge", "full")
    yield _Gate(3, 512, 60, 30, 2, options=("force_random",)).case("edge", "full")
    yield _Gate(5, 256, 512, 32, options=("mask", "force_random", "map")).case("edge", "full")
    for experts, shared, topk in (
        (64, 2, 6), (72, 1, 6), (96, 2, 6), (108, 2, 6), (128, 2, 6), (144, 2, 6), (256, 1, 6), (256, 2, 8),
        (384, 1, 6), (384, 1, 9), (512, 1, 6),
    ):  # fmt: skip
        # Shared experts are routed only where each rank gets the same share.
        routed = shared if experts % (topk // shared) == 0 else 0
        yield _Gate(130, 7168, experts, topk, routed, options=("mask", "bias", "map")).case("full")
    for t in (1, 64, 4096):
        yield _Gate(t, 7168, 256, 8, 0, options=("bias",)).case("bench")


@functools.cache
def mega_gate_cases() -> tuple[Case, ...]:
    """Return all cases of expert routing."""
    return tuple(_all())
