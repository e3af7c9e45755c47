"""Functions that upstream hands to a vendor's BLAS, and the GEMM that leaves room in its output rows.

Contract: DeepGEMM 2.8.2 (`cublaslt_nvfp4_gemm_nt`, `batched_syrk`, `batched_symm`), 2.6.1 (`fp8_gemm_nt_skip_head_mid`);
the aclnn functions, DeepGEMM-Ascend's, are in aclnn.py, the plain `cublaslt_gemm_*` in gemm.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import validate
from .._registry import bound
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..operations.batched import BatchedGemmProblem
from ..operations.gemm import E2M1_VALUES, GemmProblem
from ..operations.operands import Operand
from .gemm import Pair, run_dense, write_empty_product

#: One UE4M3 scale per this many K elements; tiles of 128 rows by 4 scales.
_NVFP4_GRAN_K = 16


def cublaslt_nvfp4_gemm_nt(a: Pair, b: Pair, d: Tensor, c: Tensor | None = None) -> None:
    """Compute d = c + a @ b.T for FP4 operands with one UE4M3 scale per 16 elements (NVFP4).

    Args:
        a: (data, scales). data [m, k/2] packed FP4, contiguous, k a multiple of 32. scales: UE4M3 bytes (E4M3, sign
            ignored) as uint8, int8 or float8_e4m3fn, contiguous, ceil(m/128) * ceil(k/64) * 512 of them in tiles
            [ceil(m/128), ceil(k/64), 32, 4, 4]: the scale of row r and elements 16j to 16j+15 is byte
            ``((r//128)*ceil(k/64) + j//4)*512 + (r%32)*16 + (r%128//32)*4 + j%4``.
        b: (data, scales) in the same way with n for m.
        d: [m, n] bfloat16 or float32, unit stride along n; written in place.
        c: [m, n] of d's dtype, added; may be `d` itself.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM 2.8.2, `cublaslt_nvfp4_gemm_nt`. Every FP4 value times a UE4M3 scale is exact in bfloat16; the
    operands are decoded to it.
    """
    function = "cublaslt_nvfp4_gemm_nt"
    operands, scales = [], {}
    for name, value in (("a", a), ("b", b)):
        data, sf = validate.pair(function, name, value)
        operand = validate.matrix(function, name, data, ndim=2, kinds=("fp4",))
        validate.require_contiguous(function, name, data)
        mn, k = data.shape[0], 2 * data.shape[1]
        if k % 32:
            raise InvalidArgumentError(f"{function}: {name} has k={k}, expected a multiple of 32. Pad K with zeros.")
        _check_nvfp4_scales(function, f"sf{name}", sf, mn, k)
        operands.append(Operand(operand.data, "fp4", mn, k, True))
        scales[f"sf{name}"] = sf

    def decoded(a: Operand, b: Operand) -> tuple[Operand, Operand]:
        return _nvfp4_values(a, scales["sfa"]), _nvfp4_values(b, scales["sfb"])

    left, right = operands
    run_dense(
        function, left, right, d, c, scales=decoded, uses_vendor_library=True, sfa=scales["sfa"], sfb=scales["sfb"]
    )


def _check_nvfp4_scales(function: str, name: str, sf: Tensor, mn: int, k: int) -> None:
    validate.require_dtype(function, name, sf, torch.uint8, torch.int8, torch.float8_e4m3fn)
    validate.require_contiguous(function, name, sf)
    tiles = (-(-mn // 128), -(-k // 64))
    if sf.numel() != tiles[0] * tiles[1] * 512:
        raise InvalidArgumentError(
            f"{function}: {name} has {sf.numel()} bytes (shape {validate.shape_of(sf)}), expected "
            f"{tiles[0] * tiles[1] * 512}: tiles {(*tiles, 32, 4, 4)} of one scale per row and {_NVFP4_GRAN_K} elements."
        )


def _nvfp4_values(operand: Operand, sf: Tensor) -> Operand:
    """Return an FP4 operand with tiled UE4M3 scales as bfloat16 values, exactly."""
    device, mn, k = operand.data.device, operand.mn, operand.k
    tiles = sf.view(torch.uint8).view(-(-mn // 128), -(-k // 64), 32, 4, 4)
    # [row tile, k tile, r % 32, r % 128 // 32, j % 4] -> [row, j]
    flat = tiles.permute(0, 3, 2, 1, 4).reshape(tiles.shape[0] * 128, -1)[:mn, : k // _NVFP4_GRAN_K]
    factors = (flat & 0x7F).contiguous().view(torch.float8_e4m3fn).to(torch.bfloat16)
    values = torch.tensor(E2M1_VALUES, dtype=torch.bfloat16, device=device)
    pairs = torch.stack([values.repeat(16), values.repeat_interleave(16)], dim=-1)
    payload = pairs[operand.data.view(torch.uint8).int()].view(mn, -1, _NVFP4_GRAN_K)
    return Operand(payload.mul_(factors.unsqueeze(-1)).view(mn, k), "bf16", mn, k, True)


def batched_syrk(a: Tensor, d: Tensor) -> None:
    """Compute d = a @ a.T for one matrix or a batch; both triangles are written.

    Args:
        a: [m, k] or [batch, m, k] bfloat16 or float32, unit stride in one of the last two dimensions.
        d: [m, m] or [batch, m, m] of a's dtype, unit last stride; batch strides and pitches are free.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM 2.8.2, `batched_syrk`.
    """
    function = "batched_syrk"
    left = _plain(function, "a", a)
    _run_batched(function, left, left, d, left.data, "(.., m, m)")


def batched_symm(a: Tensor, b: Tensor, d: Tensor) -> None:
    """Compute d = a @ b for one symmetric matrix a or a batch of them; the whole of a is read, its symmetry not checked.

    Args:
        a: [m, m] or [batch, m, m] bfloat16 or float32, unit stride in one of the last two dimensions.
        b: [m, k] or [batch, m, k] of a's dtype, unit stride in one of the last two dimensions.
        d: [m, k] or [batch, m, k] of a's dtype, unit last stride; batch strides and pitches are free.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM 2.8.2, `batched_symm`.
    """
    function = "batched_symm"
    left = _plain(function, "a", a)
    validate.require_dtype(function, "b", validate.require_tensor(function, "b", b), a.dtype)
    if b.ndim != a.ndim:
        raise InvalidArgumentError(f"{function}: b has {b.ndim} dimensions and a {a.ndim}, expected the same number.")
    right = _plain(function, "b", b.transpose(-1, -2))
    if left.mn != left.k:
        raise InvalidArgumentError(
            f"{function}: a has shape {validate.shape_of(a)}, expected square matrices (.., m, m): a is symmetric."
        )
    _run_batched(function, left, right, d, a, "(.., m, k)")


def _plain(function: str, name: str, value: object) -> Operand:
    """Read a bfloat16 or float32 matrix, or a batch of them, as a [batch, mn, k] operand."""
    data = validate.require_tensor(function, name, value)
    if data.ndim not in (2, 3):
        raise InvalidArgumentError(
            f"{function}: {name} has {data.ndim} dimensions (shape {validate.shape_of(data)}), expected 2 or 3."
        )
    return validate.matrix(
        function, name, data if data.ndim == 3 else data.unsqueeze(0), ndim=3, kinds=("bf16", "fp32")
    )


def _run_batched(function: str, a: Operand, b: Operand, d: object, like: Tensor, why: str) -> None:
    if a.data.shape[0] != b.data.shape[0] or a.k != b.k:
        raise InvalidArgumentError(
            f"{function}: a has shape {validate.shape_of(a.data)} and b {validate.shape_of(b.data.mT)}, expected the same "
            f"batch, and as many rows of b as a has columns."
        )
    shape = (a.data.shape[0], a.mn, b.mn)
    is_single = isinstance(d, Tensor) and d.ndim == 2 and shape[0] == 1
    output = validate.output(function, "d", d, shape[1:] if is_single else shape, (like.dtype,), why)
    validate.require_same_device(function, output, a=a.data, b=b.data)
    if output.numel() == 0:
        return
    validate.refuse_overlap(function, "d", output, a=a.data, b=b.data)
    if a.k == 0:
        write_empty_product(output, None, None)
        return
    if output.ndim == 2:
        output = output.unsqueeze(0)
    bound("batched_gemm", output)(BatchedGemmProblem(a, b, output, uses_vendor_library=True))


def fp8_gemm_nt_skip_head_mid(
    a: Pair,
    b: Pair,
    d: Tensor,
    head_splits: tuple[int, int, int],
    recipe: tuple[int, int, int] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """Compute a @ b.T with FP8 operands and spread its columns over d, leaving the middle of every head as it is.

    Args:
        a: (data, scales). data [m, k] float8_e4m3fn; scales as in `fp8_fp4_gemm_nt`, with gran_k 128.
        b: (data, scales). data [n, k] float8_e4m3fn.
        d: [m, n + n/(left+right)*middle] bfloat16 or float32. Column h*(left+right)+j of the product goes to column
            h*(left+middle+right)+j, plus middle if j >= left; the other columns keep their content.
        head_splits: (left, middle, right); left + right divides n.
        recipe: (gran_m, gran_n, 128); default as in `fp8_fp4_gemm_nt`.
        compiled_dims, disable_ue8m0_cast: as in `fp8_fp4_gemm_nt`.

    Raises:
        InvalidArgumentError: naming the argument and the rule it breaks; nothing has been written.

    Contract: DeepGEMM 2.6.1, `fp8_gemm_nt_skip_head_mid`.
    """
    function = "fp8_gemm_nt_skip_head_mid"
    (a_data, sfa), (b_data, sfb) = validate.pair(function, "a", a), validate.pair(function, "b", b)
    validate.compiled_dims(function, compiled_dims)
    validate.refuse_ue8m0_cast(function, disable_ue8m0_cast, (sfa, sfb))
    left = validate.matrix(function, "a", a_data, ndim=2, kinds=("fp8",))
    right = validate.matrix(function, "b", b_data, ndim=2, kinds=("fp8",))
    validate.require_equal_k(function, left, right)
    splits = _head_splits(function, head_splits)
    head, n = splits[0] + splits[2], right.mn
    if n == 0 or left.k == 0 or n % head:
        raise InvalidArgumentError(
            f"{function}: b has shape {validate.shape_of(b_data)}, expected k > 0 and n a positive multiple of "
            f"left + right = {head} (head_splits {splits})."
        )
    width = n + n // head * splits[1]
    output = validate.output(function, "d", d, (left.mn, width), why="(m, n + n/(left+right)*middle)")
    validate.require_same_device(function, output, a=a_data, b=b_data, sfa=sfa, sfb=sfb)
    granularities = validate.recipes(function, recipe, None, None)
    if recipe is not None and recipe[2] != 128:
        raise InvalidArgumentError(f"{function}: recipe is {recipe}, expected 128 elements of K per scale.")
    if left.mn == 0:
        return
    validate.refuse_overlap(function, "d", output, a=a_data, b=b_data, sfa=sfa, sfb=sfb)
    gran_m, gran_k_a, gran_n, gran_k_b = granularities or validate.default_recipe(sfb)
    left = validate.with_scales(function, "sfa", left, sfa, gran_m, gran_k_a, recipe_form="joint")
    right = validate.with_scales(function, "sfb", right, sfb, gran_n, gran_k_b, recipe_form="joint")
    bound("gemm", output)(GemmProblem(left, right, output, head_splits=splits))


def _head_splits(function: str, value: object) -> tuple[int, int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 3 or not all(type(size) is int for size in value):
        raise ArgumentTypeError(f"{function}: head_splits is {value!r}, expected three ints (left, middle, right).")
    left, middle, right = value
    if min(left, middle, right) < 0 or left + right == 0:
        raise InvalidArgumentError(
            f"{function}: head_splits is {tuple(value)}, expected sizes of at least 0 and left + right positive."
        )
    return left, middle, right
