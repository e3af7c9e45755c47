"""Cases of what the dense GEMM does besides storing sums: FP8 output, stochastic rounding, room between heads.

Sums are exact integers, so that every bit of the result is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch

from .base import Case, Cost, Tensors
from .case_inputs import integers


@dataclass(frozen=True, slots=True)
class _Size:
    """Sizes of one case; N is a multiple of 128, with heads of 384, K of 32."""

    m: int
    n: int
    k: int

    def bf16(self, generator: torch.Generator) -> Tensors:
        return {
            "a": integers(generator, self.m, self.k).bfloat16(),
            "b": integers(generator, self.n, self.k).bfloat16(),
            "d": torch.full((self.m, self.n), 7.0, dtype=torch.bfloat16),
        }

    def fp8_output(self, generator: torch.Generator) -> Tensors:
        return self.bf16(generator) | self._fp8_outputs()

    def scaled_fp8_output(self, generator: torch.Generator) -> Tensors:
        tensors = self._fp8_outputs()
        for name, rows in (("a", self.m), ("b", self.n)):
            tensors[name] = integers(generator, rows, self.k, 7).to(torch.float8_e4m3fn)
            tensors[f"sf{name}"] = torch.exp2(integers(generator, rows, self.k // 32, 2))
        return tensors

    def _fp8_outputs(self) -> Tensors:
        return {
            "d": torch.full((self.m, self.n), 7.0).to(torch.float8_e4m3fn),
            "sfd": torch.full((self.n // 128, -(-self.m // 4) * 4), -1, dtype=torch.int32),
            "count": torch.full((1,), 99, dtype=torch.int32),
        }

    def heads(self, generator: torch.Generator) -> Tensors:
        tensors: Tensors = {"d": torch.full((self.m, self.n + self.n // 192 * 64), 7.0, dtype=torch.bfloat16)}
        for name, rows in (("a", self.m), ("b", self.n)):
            tensors[name] = integers(generator, rows, self.k, 7).to(torch.float8_e4m3fn)
        words = -(-self.k // 128)
        tensors["sfa"], tensors["sfb"] = torch.full((self.m, words), 2.0), torch.full((self.n // 128, words), 0.5)
        return tensors

    def cases(self, *levels: str) -> tuple[Case, ...]:
        return (
            self._case("bf16-nt-fp8out-clamp", "bf16", "nt, FP8 output", self.fp8_output, _run_fp8_output, levels),
            self._case("bf16-nt-stochastic", "bf16", "nt, stochastic rounding", self.bf16, _run_stochastic, levels),
            self._case("fp8xfp8-nt-heads", "fp8xfp8", "nt, room between heads", self.heads, _run_heads, levels),
        )

    def scaled_fp8_output_case(self, *levels: str) -> Case:
        name, build = "fp8xfp8-nt-fp8out-clamp", self.scaled_fp8_output
        return self._case(name, "fp8xfp8", "nt, FP8 output", build, _run_scaled_fp8_output, levels)

    def _case(
        self,
        id: str,
        dtype: str,
        layout: str,
        build: Callable[[torch.Generator], Tensors],
        run: Callable[[ModuleType, Tensors], Tensors],
        levels: tuple[str, ...],
    ) -> Case:
        m, n, k = self.m, self.n, self.k
        return Case(
            id=f"{id}-m={m}-n={n}-k={k}",
            labels={"dtype": dtype, "layout": layout, "shape": f"{m}x{n}x{k}"},
            build=build,
            run=run,
            tolerance=0.0,
            cost=Cost(2.0 * m * n * k, 2.0 * (m * k + n * k + m * n)),
            levels=frozenset(levels),
        )


def _run_fp8_output(uk: ModuleType, t: Tensors) -> Tensors:
    sfd = t["sfd"].T[: t["a"].shape[0]]
    epilogue = uk.epilogue.FP8CastWithClamp(sfd, 60000.0, t["count"].view(torch.uint32))
    uk.bf16_gemm_nt(t["a"], t["b"], t["d"], epilogue=epilogue)
    return {"d": t["d"], "sfd": sfd, "count": t["count"]}


def _run_scaled_fp8_output(uk: ModuleType, t: Tensors) -> Tensors:
    sfd = t["sfd"].T[: t["a"].shape[0]]
    epilogue = uk.epilogue.FP8CastWithClamp(sfd, 200.0, t["count"].view(torch.uint32))
    uk.fp8_fp4_gemm_nt((t["a"], t["sfa"]), (t["b"], t["sfb"]), t["d"], recipe=(1, 1, 32), epilogue=epilogue)
    return {"d": t["d"], "sfd": sfd, "count": t["count"]}


def _run_stochastic(uk: ModuleType, t: Tensors) -> Tensors:
    uk.bf16_gemm_nt(t["a"], t["b"], t["d"], epilogue=uk.epilogue.BF16StochasticRounding())
    return {"d": t["d"]}


def _run_heads(uk: ModuleType, t: Tensors) -> Tensors:
    uk.fp8_gemm_nt_skip_head_mid((t["a"], t["sfa"]), (t["b"], t["sfb"]), t["d"], (128, 64, 64), recipe=(1, 128, 128))
    return {"d": t["d"]}


def gemm_store_cases() -> tuple[Case, ...]:
    """Return all cases of this page."""
    both, large = ("smoke", "full"), _Size(512, 4224, 7168)
    return (
        *_Size(37, 384, 96).cases(*both),
        # Fewer columns than most tiles have: what fills a tile up must not be counted.
        _Size(37, 128, 96).scaled_fp8_output_case(*both),
        *large.cases("large"),
        large.scaled_fp8_output_case("large"),
    )
