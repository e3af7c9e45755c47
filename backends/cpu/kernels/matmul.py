"""Matrix products of bf16, fp8 and fp4 operands with block scales: the one door to the native GEMM.

Here: which kernel multiplies what. Epilogues other than `c + alpha * product` and groups are elsewhere.

No kernel holds a whole decoded operand (see `panel_bound_bytes`):

* Tiles are decoded into packed panels in cache, of bfloat16 pairs with AVX512_BF16 and of float32 elsewhere. Power-of-two
  scales go into the elements, exactly; float32 scales are multiplied to the float32 sums of each K block.
* Few rows of A, without AVX512_BF16: every row of B is decoded in registers and multiplied at once; float32 scales of A
  go into its elements, those of B to the sums.
* CPUs whose bfloat16 product only torch uses (AMX): decoded bfloat16 panels and torch's product, when that is exact.

Sums are float32 throughout.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from unikernels import environment
from unikernels.operations.operands import Operand
from unikernels.settings import CURRENT

from .. import _native

#: Bytes of one decoded bfloat16 panel of the torch path; there is one of A and one of B.
PANEL_BYTES = 16 << 20

# Rows of A from which torch's bfloat16 product beats decoding into packed panels, where `multiplies_in_torch`.
_MIN_ROWS_OF_TORCH_BF16 = 48

_KIND_CODE = {"bf16": 0, "fp8": 1, "fp4": 2, "fp32": 3}
_KIND_BYTES = {"bf16": 2, "fp8": 1, "fp4": 1, "fp32": 4}
# Bytes of a scale word and whether it holds exponents, by scales per word (an enum as key would cost 1 us per call).
_SCALE_WORD = {1: (4, False), 2: (2, True), 4: (4, True)}


def panel_bound_bytes(threads: int) -> int:
    """Return the most memory a product uses besides its operands and its output, whatever their sizes.

    Either two panels of the torch path, or the native kernels' packed A (16 MiB; from k = 262144 on, sixteen rows of A)
    and each thread's packed B and sums (1.2 MiB with AVX2, 2.3 MiB with AVX-512).
    """
    return max(2 * PANEL_BYTES, (16 << 20) + threads * (5 << 19))


def matmul_nt(
    a: Operand,
    b: Operand,
    out: Tensor,
    *,
    accumulate: Tensor | None = None,
    alpha: float = 1.0,
    row_invariant: bool = False,
    compute: str | None = None,
    isa: str | None = None,
) -> None:
    """Write out = accumulate + alpha * (a @ b.T), summed in float32 and rounded once.

    Args:
        a, b: two-dimensional operands [m, k] and [n, k] on the CPU.
        out: [m, n] bfloat16 or float32, unit stride along n, any row pitch.
        accumulate: None, or [m, n] of either dtype with unit stride along n; may be `out` itself.
        row_invariant: keep the bits of a row of the product the same for any number of rows of `a`.
        compute: dtype of decoded panels, "bf16" or "fp32"; None: by CPU and UNIKERNELS_CPU_COMPUTE.
        isa: one of `_native.isa_variants()`; None: the best one. Implies the native kernels.
    """
    m, n = a.mn, b.mn
    if m == 0 or n == 0:
        return
    left, right = _fields(a), _fields(b)
    chosen = compute or compute_dtype()
    if (
        chosen == "bf16"
        and isa is None
        and not row_invariant
        and m >= _MIN_ROWS_OF_TORCH_BF16
        and multiplies_in_torch()
        and accumulate is None
        and alpha == 1.0
        and out.dtype is torch.bfloat16
        and a.k > 0
        and _panel_rows(a) >= min(m, _MIN_ROWS_OF_TORCH_BF16)
        and _native.is_exact_in_bf16(left)
        and _native.is_exact_in_bf16(right)
    ):
        _torch_bf16(a, b, out)
        return
    if accumulate is None:
        target = (out.data_ptr(), out.dtype is torch.float32, out.stride(0), 0, 0, 0)
    else:
        target = (
            out.data_ptr(),
            out.dtype is torch.float32,
            out.stride(0),
            accumulate.data_ptr(),
            accumulate.dtype is torch.float32,
            accumulate.stride(0),
        )
    _native.gemm(left, right, target, alpha, num_threads(), isa, chosen == "bf16", row_invariant)


def matmul_nt_f32(a: Operand, b: Operand, *, row_invariant: bool = False) -> Tensor:
    """Return a @ b.T as float32 [m, n]: the accumulator, for epilogues."""
    out = torch.empty((a.mn, b.mn))
    matmul_nt(a, b, out, row_invariant=row_invariant)
    return out


def decode(
    operand: Operand, dtype: torch.dtype = torch.float32, *, scaled: bool = True, isa: str | None = None
) -> Tensor:
    """Return the values of a two-dimensional operand, scales applied unless told otherwise.

    Returns:
        contiguous [mn, k] of `dtype`, float32 or bfloat16. Products with scales are rounded to float32, then to `dtype`;
        both are exact for power-of-two scales within the range of the dtype.
    """
    out = torch.empty((operand.mn, operand.k), dtype=dtype)
    _decode_into(_fields(operand), 0, operand.mn, out, scaled, isa)
    return out


def num_threads() -> int:
    """Return how many threads kernels use: torch's number, limited by `set_num_sms`."""
    return min(torch.get_num_threads(), CURRENT.num_sms or 1 << 30)


def _decode_into(
    fields: _native.OperandFields, start: int, stop: int, out: Tensor, scaled: bool = True, isa: str | None = None
) -> None:
    is_fp32 = out.dtype is torch.float32
    _native.decode(fields, start, stop, out.data_ptr(), is_fp32, out.stride(0), scaled, num_threads(), isa)


def _fields(operand: Operand) -> _native.OperandFields:
    """Describe an operand by addresses and byte strides (`read_operand` of module.cpp)."""
    data, kind, scales = operand.data, operand.kind, operand.scales
    pitch = (data.stride(0) if operand.is_k_major else data.stride(1)) * _KIND_BYTES[kind]
    head = (data.data_ptr(), _KIND_CODE[kind], operand.mn, operand.k, operand.is_k_major, pitch)
    if scales is None:
        return (*head, 0, 4, 0, 0, 0, 1, 1)
    size, is_ue8m0 = _SCALE_WORD[scales.format.per_word]
    words = scales.data
    row_pitch, word_pitch = words.stride()
    return (*head, words.data_ptr(), size, is_ue8m0, row_pitch * size, word_pitch * size, scales.gran_mn, scales.gran_k)


def _torch_has(*names: str) -> bool:
    # torch has no public name for these; without them the slower path is right too.
    return any(getattr(torch.cpu, name, bool)() for name in names)


@functools.cache
def multiplies_in_torch() -> bool:
    """Whether torch multiplies bfloat16 faster than the native kernels here: AMX, or AVX512_BF16 without byte permutes."""
    if _torch_has("_is_amx_tile_supported"):
        return True
    return _torch_has("_is_avx512_bf16_supported") and "avx512_bf16" not in _native.isa_variants()


@functools.cache
def _has_native_bf16() -> bool:
    return multiplies_in_torch() or "avx512_bf16" in _native.isa_variants()


def compute_dtype() -> str:
    """Return "bf16" or "fp32": what elements are multiplied as where both are exact."""
    chosen = environment.read("UNIKERNELS_CPU_COMPUTE")
    if chosen == "auto":
        return "bf16" if _has_native_bf16() else "fp32"
    return chosen


def _panel_rows(operand: Operand) -> int:
    return max(1, PANEL_BYTES // (2 * max(1, operand.k)))


def _torch_bf16(a: Operand, b: Operand, out: Tensor) -> None:
    """Multiply decoded panels with torch; plain bf16 operands are one panel as they are."""
    for top, left in _panels(a):
        for start, right in _panels(b):
            torch.mm(left, right.T, out=out[top : top + left.shape[0], start : start + right.shape[0]])


def _panels(operand: Operand) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, bfloat16 rows) of an operand; a panel is overwritten by the next one."""
    if operand.kind == "bf16":
        yield 0, operand.data
        return
    mn = operand.mn
    num_panels = -(-mn // _panel_rows(operand))
    step = -(-mn // num_panels)
    panel = torch.empty((step, operand.k), dtype=torch.bfloat16)
    fields = _fields(operand)
    for start in range(0, mn, step):
        part = panel[: min(step, mn - start)]
        _decode_into(fields, start, start + part.shape[0], part)
        yield start, part
