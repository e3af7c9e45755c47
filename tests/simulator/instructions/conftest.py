"""Runs hand-written Ascend C vector functions: inputs in UB from byte 0, one output region behind them.

Bypasses lowering, so that a test names exactly the builtins it means and one compilation serves many of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unikernels.backends.ascend.simulator import simulate
from unikernels.backends.ascend.simulator.lowering import Argument, DeviceFunction, Lowered

_KERNEL = """#include <tl_templates/ascend/common.h>
#include <tl_templates/ascend/debug.h>
{extra}
{function}
extern "C" __global__ __vector__ void probe(__gm__ uint8_t* X, __gm__ uint8_t* Y) {{
  asc_init();
  __ubuf__ uint8_t *ub = (__ubuf__ uint8_t *)0;
  asc_copy_gm2ub_align(ub, X, 1, {inputs}, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), {inputs}, {inputs});
  asc_copy_gm2ub_align(ub + {inputs}, Y, 1, {outputs}, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), {outputs}, {outputs});
  asc_sync();
  {call}
  asc_sync();
  asc_copy_ub2gm_align(Y, ub + {inputs}, 1, {outputs}, static_cast<asc_store_l2_cache_mode>(4), {outputs}, {outputs});
}}
"""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().flatten().view(torch.uint8)
    return torch.cat([flat, torch.zeros(-flat.numel() % 256, dtype=torch.uint8)])


def _run(
    function: str, call: str, extra: str, inputs: list[torch.Tensor], output: torch.Tensor, check: str, saturate: bool
) -> None:
    x = torch.cat([_bytes(t) for t in inputs]) if inputs else torch.zeros(256, dtype=torch.uint8)
    y = output.view(torch.uint8).flatten()
    source = _KERNEL.format(extra=extra, function=function, call=call, inputs=x.numel(), outputs=y.numel())
    arguments = (
        Argument("X", "uint8", True, (str(x.numel()),)),
        Argument("Y", "uint8", True, (str(y.numel()),)),
    )
    kernel = Lowered(source, arguments, (DeviceFunction("probe", "1", (0,), {}),))
    simulate(kernel, x, y, check=check, saturate=saturate)


@pytest.fixture
def run_simd() -> Callable[..., torch.Tensor]:
    """run_simd(body, inputs, output, ...): `in(i)` and `out(i)` are the UB addresses of the i-th 256-byte blocks."""

    def run(
        body: str,
        inputs: list[torch.Tensor],
        output: torch.Tensor,
        *,
        extra: str = "",
        check: str = "on",
        saturate: bool = False,
    ) -> torch.Tensor:
        size = max(256, sum(_bytes(t).numel() for t in inputs))
        function = (
            "__simd_vf__ inline void body(__ubuf__ uint8_t* ub) {\n"
            f"  auto in = [=](int i) {{ return ub + 256 * i; }}; auto out = [=](int i) {{ return ub + {size} + 256 * i; }};\n"
            f"{body}\n}}"
        )
        _run(function, "body(ub);", extra, inputs, output, check, saturate)
        return output

    return run


@pytest.fixture
def run_simt() -> Callable[..., torch.Tensor]:
    """run_simt(body, inputs, output, threads): one SIMT function; `in` and `out` point to the first bytes of each."""

    def run(
        body: str,
        inputs: list[torch.Tensor],
        output: torch.Tensor,
        *,
        threads: str = "32",
        extra: str = "",
        check: str = "on",
        saturate: bool = False,
    ) -> torch.Tensor:
        size = max(256, sum(_bytes(t).numel() for t in inputs))
        function = (
            "__simt_vf__ __launch_bounds__(1024) inline void body(__ubuf__ uint8_t* in, __ubuf__ uint8_t* out) {\n"
            + body
            + "\n}"
        )
        _run(
            function,
            f"asc_vf_call<body>(cce::dim3({threads}), ub, ub + {size});",
            extra,
            inputs,
            output,
            check,
            saturate,
        )
        return output

    return run
