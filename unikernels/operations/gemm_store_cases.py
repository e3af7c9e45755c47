"""Cases of what the dense GEMM does besides storing sums: FP8 output, stochastic rounding, room between heads.

Sums are exact integers, so that every bit of the result is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from .base import Case, Cost, Tensors
from .case_inputs import integers

_M, _N, _K = 37, 384, 96
_NARROW = 128  # fewer columns than most tiles have: what fills a tile up must not be counted


def _case(
    id: str, dtype: str, layout: str, build: Callable[..., Tensors], run: Callable[..., Tensors], n: int = _N
) -> Case:
    return Case(
        id=f"{id}-m={_M}-n={n}-k={_K}",
        labels={"dtype": dtype, "layout": layout, "shape": f"{_M}x{n}x{_K}"},
        build=build,
        run=run,
        tolerance=0.0,
        cost=Cost(2.0 * _M * n * _K, 2.0 * (_M * _K + n * _K + _M * n)),
        levels=frozenset({"smoke", "full"}),
    )


def _build_bf16(generator: torch.Generator) -> Tensors:
    return {
        "a": integers(generator, _M, _K).bfloat16(),
        "b": integers(generator, _N, _K).bfloat16(),
        "d": torch.full((_M, _N), 7.0, dtype=torch.bfloat16),
    }


def _build_fp8_output(generator: torch.Generator) -> Tensors:
    return _build_bf16(generator) | _fp8_outputs(_N)


def _fp8_outputs(n: int) -> Tensors:
    return {
        "d": torch.full((_M, n), 7.0).to(torch.float8_e4m3fn),
        "sfd": torch.full((n // 128, 40), -1, dtype=torch.int32),
        "count": torch.full((1,), 99, dtype=torch.int32),
    }


def _run_fp8_output(uk: ModuleType, t: Tensors) -> Tensors:
    epilogue = uk.epilogue.FP8CastWithClamp(t["sfd"].T[:_M], 60000.0, t["count"].view(torch.uint32))
    uk.bf16_gemm_nt(t["a"], t["b"], t["d"], epilogue=epilogue)
    return {"d": t["d"], "sfd": t["sfd"].T[:_M], "count": t["count"]}


def _build_scaled_fp8_output(generator: torch.Generator) -> Tensors:
    tensors = _fp8_outputs(_NARROW)
    for name, rows in (("a", _M), ("b", _NARROW)):
        tensors[name] = integers(generator, rows, _K, 7).to(torch.float8_e4m3fn)
        tensors[f"sf{name}"] = torch.exp2(integers(generator, rows, _K // 32, 2))
    return tensors


def _run_scaled_fp8_output(uk: ModuleType, t: Tensors) -> Tensors:
    epilogue = uk.epilogue.FP8CastWithClamp(t["sfd"].T[:_M], 200.0, t["count"].view(torch.uint32))
    uk.fp8_fp4_gemm_nt((t["a"], t["sfa"]), (t["b"], t["sfb"]), t["d"], recipe=(1, 1, 32), epilogue=epilogue)
    return {"d": t["d"], "sfd": t["sfd"].T[:_M], "count": t["count"]}


def _run_stochastic(uk: ModuleType, t: Tensors) -> Tensors:
    uk.bf16_gemm_nt(t["a"], t["b"], t["d"], epilogue=uk.epilogue.BF16StochasticRounding())
    return {"d": t["d"]}


def _build_heads(generator: torch.Generator) -> Tensors:
    tensors: Tensors = {"d": torch.full((_M, _N + _N // 192 * 64), 7.0, dtype=torch.bfloat16)}
    for name, rows in (("a", _M), ("b", _N)):
        tensors[name] = integers(generator, rows, _K, 7).to(torch.float8_e4m3fn)
    tensors["sfa"], tensors["sfb"] = torch.full((_M, 1), 2.0), torch.full((_N // 128, 1), 0.5)
    return tensors


def _run_heads(uk: ModuleType, t: Tensors) -> Tensors:
    uk.fp8_gemm_nt_skip_head_mid((t["a"], t["sfa"]), (t["b"], t["sfb"]), t["d"], (128, 64, 64), recipe=(1, 128, 128))
    return {"d": t["d"]}


def gemm_store_cases() -> tuple[Case, ...]:
    """Return all cases of this page."""
    return (
        _case("bf16-nt-fp8out-clamp", "bf16", "nt, FP8 output", _build_fp8_output, _run_fp8_output),
        _case(
            "fp8xfp8-nt-fp8out-clamp",
            "fp8xfp8",
            "nt, FP8 output",
            _build_scaled_fp8_output,
            _run_scaled_fp8_output,
            _NARROW,
        ),
        _case("bf16-nt-stochastic", "bf16", "nt, stochastic rounding", _build_bf16, _run_stochastic),
        _case("fp8xfp8-nt-heads", "fp8xfp8", "nt, room between heads", _build_heads, _run_heads),
    )
