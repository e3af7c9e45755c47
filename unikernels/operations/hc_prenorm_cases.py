"""Cases of the hyper-connection pre-norm GEMM: shapes of four residual streams, with and without splits."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType

import torch

from .base import Case, Cost, Tensors
from .case_inputs import randn

#: Contract 1.10, against TF32 with nearest rounding; float32 sums of a few thousand products stay below 1e-11.
TOLERANCE = 1e-8


def _case(m: int, n: int, k: int, num_splits: int | None, *levels: str) -> Case:
    slabs = () if num_splits is None else (num_splits,)

    def build(generator: torch.Generator) -> Tensors:
        # Outputs hold NaN: a slab that is not written in full shows in the sums.
        return {
            "a": randn(generator, m, k).bfloat16(),
            "b": randn(generator, n, k),
            "d": torch.full((*slabs, m, n), torch.nan),
            "sqr_sum": torch.full((*slabs, m), torch.nan),
        }

    def run(uk: ModuleType, t: Tensors) -> Tensors:
        uk.tf32_hc_prenorm_gemm(t["a"], t["b"], t["d"], t["sqr_sum"], num_splits=num_splits)
        if num_splits is None:
            return {"d": t["d"], "sqr_sum": t["sqr_sum"]}
        # Only the sums over splits are specified.
        return {"d": t["d"].sum(0), "sqr_sum": t["sqr_sum"].sum(0)}

    return Case(
        id=f"tf32-splits={num_splits or 'none'}-m={m}-n={n}-k={k}",
        labels={"dtype": "bf16xtf32", "layout": f"splits {num_splits or 'none'}", "shape": f"{m}x{n}x{k}"},
        build=build,
        run=run,
        tolerance=TOLERANCE,
        cost=Cost(2.0 * m * n * k + 2.0 * m * k, 2.0 * m * k + 4.0 * n * k + 4.0 * (num_splits or 1) * m * (n + 1)),
        levels=frozenset(levels),
    )


def _all() -> Iterator[Case]:
    for num_splits in (None, 1, 16):
        yield _case(37, 24, 7168, num_splits, "smoke", "full")
    yield _case(13, 24, 7680, 3, "smoke", "full")
    for m, n, k, num_splits in (
        (0, 24, 256, None),
        (0, 24, 256, 4),
        (1, 8, 256, None),
        (1, 32, 512, 16),
        (49, 16, 768, 5),
    ):
        yield _case(m, n, k, num_splits, "edge", "full")
    for k in (7168, 7680, 28672):
        for num_splits in (None, 16):
            yield _case(137, 24, k, num_splits, "full")
    yield _case(13, 24, 28672, 16, "full")
    for m in (1, 64, 4096):
        yield _case(m, 24, 7168, None, "bench")


@functools.cache
def hc_prenorm_cases() -> tuple[Case, ...]:
    """Return all cases of the pre-norm GEMM."""
    return tuple(_all())
