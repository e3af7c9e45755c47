"""A @ B.T on the CPU for every kind of operand; the whole decoded weight is never in memory.

Few rows: a native kernel reads the weight's bytes and decodes them in registers or in the first-level cache. Many rows:
panels of the weight are decoded and multiplied by torch (oneDNN, MKL), in bfloat16 where the CPU multiplies it natively
and decoding is exact, else in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from unikernels import environment
from unikernels.operations import Operand
from unikernels.scale_layouts import ScaleFormat, is_power_of_two
from unikernels.settings import CURRENT

from .. import _native

#: Up to this many rows of A the native kernel wins over decoding panels for torch (measured on AVX2).
FEW_ROWS = 32
#: Bytes of one decoded panel of the weight, and of one decoded block of activations with its accumulator.
PANEL_BYTES = 8 << 20
ACTIVATION_BYTES = 24 << 20
#: Peak memory beside the tensors of the call, whatever their sizes.
MAX_EXTRA_BYTES = PANEL_BYTES + 2 * ACTIVATION_BYTES

_KIND_CODES = {"bf16": 0, "fp8": 1, "fp4": 2, "fp32": 3}


def matmul_nt(a: Operand, b: Operand, out: Tensor, *, accumulate: Tensor | None = None, alpha: float = 1.0) -> None:
    """Write out = accumulate + alpha * (a @ b.T), accumulated in float32 and rounded once.

    Args:
        a, b: operands [m, k] and [n, k].
        out: [m, n] bfloat16 or float32, unit stride along n.
        accumulate: [m, n] of out's dtype, or None; may be `out` itself.
    """
    stores_product = out.dtype is torch.bfloat16 and accumulate is None and alpha == 1.0
    if stores_product and a.mn > FEW_ROWS and _is_exact_in_bf16(a, b):
        _bf16_panels(a, b, out)
        return
    for rows, columns, accumulator in _products(a, b):
        part = out[rows, columns]
        addend = None if accumulate is None else accumulate[rows, columns]
        _native.store(
            accumulator.data_ptr(),
            accumulator.stride(0),
            *accumulator.shape,
            0 if addend is None else addend.data_ptr(),
            0 if addend is None else addend.stride(0),
            alpha,
            part.data_ptr(),
            part.stride(0),
            out.dtype is torch.bfloat16,
            num_threads(),
        )


def matmul_nt_f32(a: Operand, b: Operand) -> Tensor:
    """Return a @ b.T as float32 [m, n]."""
    out = torch.empty(a.mn, b.mn)
    for rows, columns, accumulator in _products(a, b):
        out[rows, columns] = accumulator
    return out


def decode(operand: Operand, dtype: torch.dtype = torch.float32, *, scaled: bool = True) -> Tensor:
    """Return the values of an operand [mn, k] in float32 or bfloat16, with or without its scales."""
    out = torch.empty(operand.mn, operand.k, dtype=dtype)
    _decode_into(out, native(operand), slice(0, operand.mn), slice(0, operand.k), scaled)
    return out


def num_threads() -> int:
    """Return the worker threads to use: torch's, limited by `set_num_sms`."""
    return min(torch.get_num_threads(), CURRENT.num_sms or 1 << 30)


def native(operand: Operand) -> _native.Matrix:
    """Describe an operand to the native kernels. The description borrows the tensors: keep the operand alive."""
    data, scales = operand.data, operand.scales
    stride_mn, stride_k = data.stride()
    if scales is None:
        described = (0, 0, 0, 0, 1, 1)
    else:
        bytes_per_word = 0 if scales.format is ScaleFormat.FP32 else scales.format.per_word
        described = (scales.data.data_ptr(), bytes_per_word, *scales.data.stride(), scales.gran_mn, scales.gran_k)
    return _native.Matrix(
        data.data_ptr(),
        _KIND_CODES[operand.kind],
        operand.mn,
        operand.k,
        stride_mn,
        stride_k,
        operand.is_k_major,
        *described,
    )


def _products(a: Operand, b: Operand) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield (rows, columns, float32 accumulator) until all of a @ b.T is covered."""
    return _few_rows(a, b) if a.mn <= FEW_ROWS else _panels(a, b)


def _few_rows(a: Operand, b: Operand) -> Iterator[tuple[slice, slice, Tensor]]:
    step = _native.STEP
    padded_k = -(-a.k // step) * step
    left = torch.zeros(a.mn, padded_k) if padded_k != a.k else torch.empty(a.mn, padded_k)
    _decode_into(left, native(a), slice(0, a.mn), slice(0, a.k))
    accumulator = torch.empty(a.mn, b.mn)
    _native.multiply_few_rows(
        left.data_ptr(), padded_k, a.mn, native(b), accumulator.data_ptr(), accumulator.stride(0), num_threads()
    )
    yield slice(0, a.mn), slice(0, b.mn), accumulator


def _panels(a: Operand, b: Operand) -> Iterator[tuple[slice, slice, Tensor]]:
    # One K range for everything that fits; longer ones are added up in the accumulator.
    k_step = min(a.k, PANEL_BYTES // (64 * 4))
    n_step = max(64, PANEL_BYTES // (k_step * 4) // 16 * 16)
    m_step = max(64, ACTIVATION_BYTES // (max(k_step, n_step) * 4))
    left_native, right_native = native(a), native(b)
    left = torch.empty(min(m_step, a.mn), k_step)
    right = torch.empty(min(n_step, b.mn), k_step)
    accumulator = torch.empty(min(m_step, a.mn), min(n_step, b.mn))
    for rows in _slices(a.mn, m_step):
        decoded = None
        for columns in _slices(b.mn, n_step):
            acc = accumulator[: rows.stop - rows.start, : columns.stop - columns.start]
            for ks in _slices(a.k, k_step):
                x = left[: rows.stop - rows.start, : ks.stop - ks.start]
                y = right[: columns.stop - columns.start, : ks.stop - ks.start]
                if decoded != ks:
                    _decode_into(x, left_native, rows, ks)
                    decoded = ks
                _decode_into(y, right_native, columns, ks)
                torch.addmm(acc, x, y.T, beta=float(ks.start > 0), out=acc)
            yield rows, columns, acc


def _bf16_panels(a: Operand, b: Operand, out: Tensor) -> None:
    """The same in bfloat16, for CPUs that multiply it natively; oneDNN accumulates in float32 and rounds once."""
    n_step = max(64, PANEL_BYTES // (a.k * 2) // 16 * 16)
    m_step = max(64, ACTIVATION_BYTES // (a.k * 2))
    left_native, right_native = native(a), native(b)
    left = torch.empty(min(m_step, a.mn), a.k, dtype=torch.bfloat16)
    right = torch.empty(min(n_step, b.mn), a.k, dtype=torch.bfloat16)
    everything = slice(0, a.k)
    for rows in _slices(a.mn, m_step):
        x = left[: rows.stop - rows.start]
        _decode_into(x, left_native, rows, everything)
        for columns in _slices(b.mn, n_step):
            y = right[: columns.stop - columns.start]
            _decode_into(y, right_native, columns, everything)
            out[rows, columns] = x @ y.T


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(size, start + step)) for start in range(0, size, step))


def _decode_into(out: Tensor, source: _native.Matrix, rows: slice, ks: slice, scaled: bool = True) -> None:
    _native.decode(
        source,
        rows.start,
        rows.stop,
        ks.start,
        ks.stop,
        scaled,
        out.data_ptr(),
        out.stride(0),
        out.dtype is torch.bfloat16,
        num_threads(),
    )


def _is_exact_in_bf16(a: Operand, b: Operand) -> bool:
    """E4M3 and E2M1 values times powers of two are exact in bfloat16; other scales need float32 panels."""
    if compute_dtype() is torch.float32 or a.k * 2 * 64 > PANEL_BYTES:
        return False
    return all(one.kind == "bf16" or one.scales is None or is_power_of_two(one.scales) for one in (a, b))


@functools.cache
def compute_dtype() -> torch.dtype:
    """Return the dtype of panels: bfloat16 where the CPU multiplies it natively, unless UNIKERNELS_CPU_COMPUTE says."""
    wish = environment.read("UNIKERNELS_CPU_COMPUTE")
    if wish != "auto":
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[wish]
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_bf16 else torch.float32
