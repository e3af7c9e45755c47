"""A caller of DeepGEMM in the manner of a serving engine that probes for every function; knows nothing of unikernels.

Habits it shows: it asks importlib whether the package is there, resolves each name with getattr(module, name, None) on
first use and tries an older name next, passes disable_ue8m0_cast to every FP8 GEMM, caches the alignment, and prepares
weight scales once at load time.
"""

import functools
import importlib
import importlib.util

import torch


@functools.cache
def is_deep_gemm_there():
    return importlib.util.find_spec("deep_gemm") is not None


@functools.cache
def _resolve(*candidates):
    if not is_deep_gemm_there():
        return None
    module = importlib.import_module("deep_gemm")
    for name in candidates:
        function = getattr(module, name, None)
        if function is not None:
            return function
    return None


def _call(candidates, *args, **kwargs):
    function = _resolve(*candidates)
    if function is None:
        raise RuntimeError(f"no DeepGEMM function among {candidates}")
    return function(*args, **kwargs)


@functools.cache
def contiguous_alignment():
    return _call(("get_mk_alignment_for_contiguous_layout", "get_m_alignment_for_contiguous_layout"))


def gemm(a, b, out, uses_exponent_scales):
    _call(("fp8_gemm_nt",), a, b, out, disable_ue8m0_cast=not uses_exponent_scales)


def grouped_contiguous(a, b, out, expert_of_row, uses_exponent_scales):
    _call(("m_grouped_fp8_gemm_nt_contiguous",), a, b, out, expert_of_row, disable_ue8m0_cast=not uses_exponent_scales)


def grouped_masked(a, b, out, rows_per_expert, expected_m, uses_exponent_scales):
    _call(
        ("fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_gemm_nt_masked"),
        a,
        b,
        out,
        rows_per_expert,
        expected_m,
        disable_ue8m0_cast=not uses_exponent_scales,
    )


def prepare_weight_scales(sf, mn, k, num_groups=None):
    """Turn per-block scales of a checkpoint into what the kernels read."""
    return _call(
        ("transform_sf_into_required_layout",),
        sf=sf,
        mn=mn,
        k=k,
        recipe=(1, 128, 128),
        num_groups=num_groups,
        is_sfa=False,
    )


def align_activation_scales(sf):
    return _call(("get_col_major_tma_aligned_tensor", "get_mn_major_tma_aligned_tensor"), sf)


def quantize_block(x):
    utils = importlib.import_module("deep_gemm.utils.math")
    return utils.per_block_cast_to_fp8(x, use_ue8m0=True)


def prefill_logits(q, kv, weights, starts, ends):
    return _call(("fp8_mqa_logits",), q, kv, weights, starts, ends, clean_logits=False)


def decode_logits(q, cache, weights, lengths, table, max_length):
    schedule = _call(("get_paged_mqa_logits_metadata",), lengths, cache.size(1), _call(("get_num_sms",)))
    return _call(("fp8_paged_mqa_logits",), q, cache, weights, lengths, table, schedule, max_length, clean_logits=False)


def hyper_connection(x, fn, num_splits):
    shape = (num_splits, x.size(0), fn.size(0))
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    squares = torch.empty(shape[:2], dtype=torch.float32, device=x.device)
    _call(("tf32_hc_prenorm_gemm",), x, fn, out, squares, num_splits)
    return out.sum(0), squares.sum(0)
