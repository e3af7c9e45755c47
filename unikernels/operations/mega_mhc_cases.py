"""Cases of the hyper-connection step: both mix modes, bf16 and FP8 outputs, all layouts of the scales."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from .base import Case, Cost, Tensors
from .case_inputs import randn

#: Contract 1.10: `calc_diff` of bf16 outputs and of scale bytes.
TOLERANCE = 5e-5

_N = 4
_NUM_MIXES = _N * (_N + 2)
_SCALARS = {
    "hc_mult": _N,
    "hc_norm_eps": 1e-6,
    "hc_pre_eps": 1e-2,
    "hc_post_scale": 2.0,
    "sinkhorn_eps": 1e-3,
    "rmsnorm_eps": 1e-6,
    "rmsnorm_scale": 0.75,
}
#: int32 word 0x5A5A5A5A: rows of scales that must stay as they are.
_MARKER = 0x5A5A5A5A


@dataclass(frozen=True, slots=True)
class _Mhc:
    """Parameters of one case; `fp8` is none, gemm, or a block of rows of the shared experts' scales."""

    num_tokens: int
    hidden: int
    is_shifted: bool
    has_bf16: bool = True
    fp8: str | int = "none"
    num_sinkhorn_iters: int = 20

    @property
    def id(self) -> str:
        mode = "shifted" if self.is_shifted else "plain"
        fp8 = f"shared{self.fp8}" if isinstance(self.fp8, int) else self.fp8
        outputs = "bf16" * self.has_bf16 + f"-fp8{fp8}" * (self.fp8 != "none")
        return f"{mode}-{outputs.strip('-')}-iters={self.num_sinkhorn_iters}-t={self.num_tokens}-h={self.hidden}"

    def build(self, generator: torch.Generator) -> Tensors:
        t, h = self.num_tokens, self.hidden
        tensors = {
            "x": randn(generator, t, h).bfloat16(),
            "residual": randn(generator, t, _N, h).bfloat16(),
            "post_mix": randn(generator, t, _N, 1).sigmoid() * 2,
            "comb_res_mix": randn(generator, t, _N, _N).softmax(-1),
            # Large enough for mixes that differ visibly between tokens.
            "fn": randn(generator, _NUM_MIXES, _N * h) * 4 / (_N * h) ** 0.5,
            "mix_scales": torch.tensor([0.5, 0.75, 1.25]),
            "mix_bases": randn(generator, _NUM_MIXES) * 0.5,
            "rmsnorm_weight": (1 + randn(generator, h) / 4).bfloat16(),
            "new_residual": torch.full((t, _N, h), torch.nan, dtype=torch.bfloat16),
            "new_post_mix": torch.full((t, _N, 1), torch.nan),
            "new_comb_res_mix": torch.full((t, _N, _N), torch.nan),
        }
        if self.is_shifted:
            tensors["shifted_prev_mix"] = randn(generator, t, _N, 1).sigmoid()
            tensors["new_prev_mix"] = torch.full((t, _N, 1), torch.nan)
        if self.has_bf16:
            tensors["y_bf16"] = torch.full((t, h), torch.nan, dtype=torch.bfloat16)
        if self.fp8 != "none":
            tensors["y_fp8"] = torch.full((t, h), torch.nan).to(torch.float8_e4m3fn)
            tensors.update(self._scales())
        return tensors

    def _scales(self) -> Tensors:
        t, words = self.num_tokens, self.hidden // 128
        if not isinstance(self.fp8, int):
            pitch = -(-t // 4) * 4 + 4
            return {"y_gemm_sf": torch.full((words, pitch), _MARKER, dtype=torch.int32).T}
        num_rows = -(-t // self.fp8) * (-(-self.fp8 // 128) * 128)
        return {
            "y_routed_sf": torch.full((t, words), _MARKER, dtype=torch.int32),
            "y_shared_sf": torch.full((words, num_rows), _MARKER, dtype=torch.int32).T,
        }

    def run(self, uk: ModuleType, t: Tensors) -> Tensors:
        passed: dict[str, Any] = dict(t)
        for name in ("y_gemm_sf", "y_shared_sf"):
            if name in t:
                passed[name] = t[name][: self.num_tokens]
        passed.setdefault("shifted_prev_mix", None)
        passed.setdefault("new_prev_mix", None)
        if isinstance(self.fp8, int):
            passed["shared_sf_block_m"] = self.fp8
        uk.mega_mhc(**passed, **_SCALARS, num_sinkhorn_iters=self.num_sinkhorn_iters)
        names = [name for name in t if name.startswith(("new_", "y_"))]
        # Scale words as bytes (exponents have a size, words have not); whole buffers show rows that must not change.
        return {name: _bytes(t[name]) if name.endswith("_sf") else t[name] for name in names}

    def case(self, *levels: str) -> Case:
        size = self.num_tokens * self.hidden
        y_bytes = 2.0 * self.has_bf16 + 1.1 * (self.fp8 != "none")
        return Case(
            id=self.id,
            labels={
                "dtype": "bf16" if self.fp8 == "none" else "bf16, fp8",
                "layout": "shifted" if self.is_shifted else "plain",
                "shape": f"{self.num_tokens}x{_N}x{self.hidden}",
            },
            build=self.build,
            run=self.run,
            tolerance=TOLERANCE,
            cost=Cost(
                2.0 * size * _N * (_NUM_MIXES + _N + 3),
                size * (2 + 4 * _N + y_bytes) + 4.0 * _NUM_MIXES * _N * self.hidden,
            ),
            levels=frozenset(levels),
        )


def _bytes(words: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 8, device=words.device)
    return ((words.unsqueeze(-1) >> shifts) & 0xFF).float()


def _all() -> Iterator[Case]:
    yield _Mhc(65, 1024, False).case("smoke", "full")
    yield _Mhc(65, 1024, True, fp8="gemm").case("smoke", "full")
    yield _Mhc(230, 1024, True, fp8=224).case("smoke", "full")
    yield _Mhc(17, 2048, False, has_bf16=False, fp8=32, num_sinkhorn_iters=1).case("smoke", "full")
    for is_shifted in (False, True):
        yield _Mhc(0, 1024, is_shifted, fp8="gemm").case("edge", "full")
        yield _Mhc(1, 1024, is_shifted, fp8=224, num_sinkhorn_iters=2).case("edge", "full")
    yield _Mhc(3, 1024, True, has_bf16=False, fp8="gemm").case("edge", "full")
    for num_tokens in (1, 64, 200, 513):
        for hidden in (4096, 7168):
            yield _Mhc(num_tokens, hidden, False, fp8="gemm").case("full")
            yield _Mhc(num_tokens, hidden, True, fp8=224).case("full")
    for num_tokens in (1, 64, 1024):
        yield _Mhc(num_tokens, 7168, True).case("bench")
        yield _Mhc(num_tokens, 7168, True, has_bf16=False, fp8="gemm").case("bench")


@functools.cache
def mega_mhc_cases() -> tuple[Case, ...]:
    """Return all cases of the hyper-connection step."""
    return tuple(_all())
