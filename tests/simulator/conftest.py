"""Fixtures of the simulator tests: kernels written as generated Ascend C, and TileLang kernels lowered once."""

from __future__ import annotations

import importlib.util

import pytest
import torch

if importlib.util.find_spec("tilelang") is None:
    collect_ignore_glob = ["*"]
else:
    from unikernels.backends.ascend.simulator import launch
    from unikernels.backends.ascend.simulator.lowering import Argument, DeviceFunction, Lowered

    C_TYPES = {
        torch.float32: "float",
        torch.float16: "half",
        torch.bfloat16: "bfloat16_t",
        torch.float8_e4m3fn: "fp8_e4_t",
        torch.float8_e5m2: "fp8_e5_t",
        torch.int8: "int8_t",
        torch.uint8: "uint8_t",
        torch.int16: "int16_t",
        torch.int32: "int32_t",
        torch.int64: "int64_t",
    }
    QUALIFIERS = {"cube": "__cube__", "vector": "__vector__", "mixed": "__mix__(1, 2)"}

    def write_kernel(body, tensors, *, kind="cube", grid=1, functions="", includes=()):
        """A launchable kernel around `body`; line 1 of `body` is reported as some line of the whole source."""
        parameters = ", ".join(f"__gm__ {C_TYPES[t.dtype]}* {name}" for name, t in sorted(tensors.items()))
        headers = ("tl_templates/ascend/common.h", "tl_templates/ascend/debug.h", *includes)
        source = "".join(f"#include <{h}>\n" for h in headers)
        source += (
            functions
            + f'\nextern "C" __global__ {QUALIFIERS[kind]} void k_kernel({parameters}) {{\n  asc_init();\n{body}\n}}\n'
        )
        arguments = tuple(
            Argument(
                name, str(t.dtype).removeprefix("torch."), True, tuple(map(str, t.shape)), tuple(map(str, t.stride()))
            )
            for name, t in tensors.items()
        )
        return Lowered(source, arguments, (DeviceFunction("k_kernel", str(grid), (), {}),))

    @pytest.fixture(scope="session")
    def run_ascend():
        """run_ascend(body, {"A": tensor}, kind=, grid=, functions=, **simulate options) -> report."""

        def run(body, tensors, *, kind="cube", grid=1, functions="", includes=(), **options):
            kernel = write_kernel(body, tensors, kind=kind, grid=grid, functions=functions, includes=includes)
            return launch.simulate(kernel, *tensors.values(), **options)

        return run
