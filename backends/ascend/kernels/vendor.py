"""GEMMs of the Ascend vendor library through torch_npu: the baselines `aclnn_*`, and what `cublaslt_gemm_*` means on an NPU.

Written against torch_npu's documentation; not run on hardware so far. Only scales pass through a kernel of ours.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from unikernels.operations import GemmProblem
from unikernels.operations.operands import Operand
from unikernels.utils import transpose_packed_fp4

from ..runtime.executor import executor_for
from . import operands

#: Rows and columns per scale, as `npu_quant_matmul` takes them.
_GROUP_SIZES = [1, 1, 32]
INSTALL = "install torch_npu with the CANN release it belongs to (pip install torch-npu), and pass npu tensors"


def is_meant(problem: GemmProblem) -> bool:
    """Return whether the vendor library computes a problem: if nothing else will do, or on request where it can."""
    if problem.is_vendor_reference:
        return True
    is_plain = problem.a.kind == problem.b.kind == "bf16"
    return problem.uses_vendor_library and is_plain and problem.d.device.type == "npu"


def why_not(problem: GemmProblem) -> str | None:
    """Return why the vendor library cannot compute a problem that asks for nothing else, else None."""
    if problem.is_vendor_reference and problem.d.device.type != "npu":
        return (
            f"the vendor's matmul, which the aclnn functions stand for, runs on an NPU only, and d lies on "
            f"'{problem.d.device}'; {INSTALL}. The functions without aclnn compute the same here"
        )
    return None


def gemm(problem: GemmProblem) -> None:
    """D = C + A @ B.T by torch_npu; with C and quantised operands the product is rounded to d's dtype first."""
    if problem.a.kind != "bf16":
        product = _quantised_product(problem.a, problem.b, problem.d.dtype)
        problem.d.copy_(product if problem.c is None else problem.c + product)
        return
    a, b = problem.a.data, problem.b.data
    if problem.d.dtype is torch.float32:
        # The product of bfloat16 is bfloat16; float32 holds the operands exactly, and so does HF32.
        a, b = a.float(), b.float()
    problem.d.copy_(torch.mm(a, b.mT) if problem.c is None else torch.addmm(problem.c, a, b.mT))


def _quantised_product(a: Operand, b: Operand, dtype: torch.dtype) -> Tensor:
    torch_npu: Any = importlib.import_module("torch_npu")
    kinds = {f"{name}_dtype": torch_npu.float4_e2m1fn_x2 for name, one in (("x1", a), ("x2", b)) if one.kind == "fp4"}
    product: Tensor = torch_npu.npu_quant_matmul(
        _data(a),
        _data(b).mT,
        _scale_pairs(b).transpose(0, 1),
        pertoken_scale=_scale_pairs(a),
        scale_dtype=torch_npu.float8_e8m0fnu,
        pertoken_scale_dtype=torch_npu.float8_e8m0fnu,
        output_dtype=dtype,
        group_sizes=_GROUP_SIZES,
        **kinds,
    )
    return product


def _data(operand: Operand) -> Tensor:
    """Return [mn, k] dense along the axis that is contiguous; FP4 as bytes [mn, k / 2], for the vendor's is K-major only."""
    if operand.kind == "fp4":
        data = operand.data if operand.is_k_major else transpose_packed_fp4(operand.data.view(torch.int8).mT)
        return data.view(torch.uint8).contiguous()
    return operand.data.contiguous() if operand.is_k_major else operand.data.mT.contiguous().mT


def _scale_pairs(operand: Operand) -> Tensor:
    """Return UE8M0 bytes [mn, k / 64, 2], with the axes of the data in memory, as the vendor wants them."""
    words = operands.scale_words(executor_for(operand.data), operand)
    pairs = words.view(torch.uint8).view(*words.shape, 2).transpose(0, 1)
    return pairs.contiguous() if operand.is_k_major or operand.kind == "fp4" else pairs
