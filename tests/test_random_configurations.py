"""Random small configurations of every family: the CPU backend against the reference, from seeds that a failure names.

Rerun one with ``pytest tests/test_random_configurations.py -k "<family>-<seed>"``.
"""

from __future__ import annotations

import random

import pytest
import torch

from unikernels import parity
from unikernels.operations import (
    ALL,
    batched_cases,
    gemm_cases,
    hc_prenorm_cases,
    k_grouped_cases,
    m_grouped_cases,
    mega_gate_cases,
    mega_mhc_cases,
    mega_moe_cases,
    mqa_cases,
    mqa_sparse_cases,
)
from unikernels.operations.case_inputs import ScaleForm
from unikernels.operations.mqa_inputs import Operands

OPERATIONS = {operation.name: operation for operation in ALL}
FORMS = tuple(ScaleForm)
DTYPES = (torch.bfloat16, torch.float32)
LEVEL = "random"


def _even(size):
    return size + size % 2


def _coin(r):
    return r.random() < 0.5


def dense(r):
    kinds = r.choice([("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp8"), ("fp4", "fp4"), ("bf16", "bf16")])
    layout = r.choice(["nt", "nn", "tn", "tt"])
    m, n = r.choice([1, 2, 5, 17, 31, 32, 33, 40, 65]), r.choice([1, 2, 7, 15, 16, 17, 33, 64, 129])
    k = r.choice([1, 2, 3, 31, 32, 33, 65, 96, 127, 128, 129, 160, 300])
    out, has_c = r.choice(DTYPES), _coin(r)
    if kinds[0] == "bf16":
        return gemm_cases._bf16_case(m, n, k, layout, out, has_c, LEVEL)
    if "fp4" in kinds:
        # A single stored row of an MN-major FP4 operand has two unit strides and reads as K-major.
        m, n, k = _even(max(m, 3)), _even(max(n, 3)), _even(k)
    alpha = r.choice([None, None, -0.5, 3.0])
    return gemm_cases._Dense(*kinds, m, n, k, r.choice(FORMS), layout, out, has_c, alpha).case(LEVEL)


def m_grouped(r):
    layout = r.choice(["index", "psum", "masked"])
    kinds = r.choice([("fp8", "fp8"), ("fp8", "fp4"), ("fp4", "fp4"), ("bf16", "bf16")])
    sizes = tuple(r.choice([0, 0, 1, 2, 3, 9, 31, 33, 40]) for _ in range(r.randint(1, 4)))
    n, k = r.choice([3, 16, 17, 33, 64]), r.choice([1, 2, 32, 33, 100, 128, 160])
    if "fp4" in kinds:
        n, k = _even(n), _even(k)
    scales = None if kinds[0] == "bf16" else r.choice(FORMS)
    b_layout = "nt" if layout == "masked" else r.choice(["nt", "nn"])
    case = m_grouped_cases._Grouped(
        layout, *kinds, sizes, n, k, scales, b_layout, r.choice(DTYPES), pads=_coin(r), has_garbage=_coin(r)
    )
    return case.case(LEVEL)


def k_grouped(r):
    kind, form = r.choice([("fp8", "tn"), ("fp8", "nt"), ("fp8", "flat"), ("bf16", "tn"), ("fp4", "nt")])
    is_psum = form != "flat" and _coin(r)
    sizes = [r.choice([0, 1, 50, 130, 200] if is_psum else [0, 128, 256]) for _ in range(r.randint(1, 3))]
    m, n = r.choice([1, 3, 16, 33]), r.choice([1, 2, 5, 34])
    scales = None
    if kind == "fp8":
        scales = r.choice([ScaleForm.FP32_BLOCK, ScaleForm.FP32_MX, ScaleForm.INT32_MX, ScaleForm.INT16_MX])
    elif kind == "fp4":
        m, n, scales = _even(m), _even(n), r.choice([ScaleForm.INT32_MX, ScaleForm.INT16_MX])
    ks = r.choice(["aligned", "none"]) if is_psum else "aligned"
    case = k_grouped_cases._KGrouped(
        kind, kind, m, n, tuple(sizes), scales, form, is_psum, r.choice(DTYPES), has_c=_coin(r), ks=ks
    )
    return case.case(LEVEL)


def batched(r):
    if r.random() < 0.4:
        sizes = r.choice([1, 5, 33]), r.choice([1, 7, 16]), r.choice([1, 2, 3, 64])
        return batched_cases._Reduction(r.randint(1, 5), *sizes, r.choice(DTYPES)).case(LEVEL)
    expr = r.choice(["bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr"])
    scales = r.choice([None, *FORMS])
    if expr == "bhd,bhr->hdr" and scales is ScaleForm.FP32_BLOCK:
        scales = None
    sizes = r.choice([1, 3, 17, 33]), r.choice([1, 2, 3]), r.choice([1, 3, 32, 65, 128]), r.choice([1, 2, 33, 96])
    return batched_cases._Einsum(expr, *sizes, scales, r.choice(DTYPES), _coin(r), _coin(r)).case(LEVEL)


def _operands(r):
    kind = r.choice(["fp8", "fp4"])
    mode = r.choice(["plain", "mx", "mx16"] if kind == "fp8" else ["mx", "mx16"])
    dims = [32, 64, 128] if kind == "fp8" and mode != "mx16" else [64, 128]
    return Operands(kind, mode, r.choice([4, 8, 12, 20, 32, 64]), r.choice(dims))


def mqa(r):
    sizes = r.choice([1, 2, 5, 9]), r.choice([1, 2, 63, 64, 65, 200])
    ranges = r.choice(["causal", "context_parallel", "random"])
    form = r.choice(["compressed", "full", "clean"])
    return mqa_cases._Dense(_operands(r), *sizes, ranges, form, r.choice(DTYPES), has_schedule=_coin(r)).case(LEVEL)


def paged_mqa(r):
    sizes = r.choice([1, 2, 4]), r.choice([1, 2]), r.choice([32, 64, 128]), r.choice([1, 5, 64, 65, 130, 300])
    case = mqa_cases._Paged(
        _operands(r), *sizes, r.choice(DTYPES), is_clean=_coin(r), page_padding=r.choice([0, 4, 64])
    )
    return case.case(LEVEL)


def sparse_mqa(r):
    page_kv = r.choice([0, 0, 32, 64, 128])
    operands = Operands(r.choice(["fp8", "fp4"]), r.choice(["mx", "mx16"]), r.choice([4, 8, 32]), 128)
    tokens_per_request = r.choice([1, 2])
    num_queries = tokens_per_request * r.choice([1, 2, 3])
    sizes = r.choice([1, 16, 65, 130, 300]), r.choice([4, 8, 12]), r.choice([8, 16])
    is_shifted = page_kv == 0 and _coin(r)
    return mqa_sparse_cases._Sparse(operands, num_queries, *sizes, is_shifted, page_kv, tokens_per_request).case(LEVEL)


def gate(r):
    options = tuple(option for option in ("mask", "bias", "map") if _coin(r))
    function = r.choice(["sqrtsoftplus", "sigmoid", "identity"])
    sizes = r.choice([0, 1, 2, 5, 33]), 512, r.choice([128, 256, 384]), r.choice([1, 2, 6, 8])
    return mega_gate_cases._Gate(*sizes, 0, function, options).case(LEVEL)


def mhc(r):
    fp8 = r.choice(["none", "gemm", 32, 224])
    return mega_mhc_cases._Mhc(r.choice([1, 2, 7]), 1024, _coin(r), True, fp8, r.choice([1, 2, 20])).case(LEVEL)


def hc_prenorm(r):
    sizes = r.choice([1, 5, 33]), r.choice([8, 24, 128]), r.choice([64, 192, 1024])
    return hc_prenorm_cases._case(*sizes, r.choice([None, 1, 2, 5, 16]), LEVEL)


def mega_moe(r):
    mma_type = r.choice(sorted(mega_moe_cases.MMA_TYPES))
    sizes = r.choice([0, 1, 2, 5, 9]), r.choice([1, 2, 4]), r.choice([1, 2, 3]), 128, 128, r.choice([0, 0, 1, 2])
    clamp, masked = r.choice([None, 0.0, 1.0, 10.0]), r.choice([0.0, 0.3, 1.0])
    return mega_moe_cases._Layer(mma_type, *sizes, clamp, masked, _coin(r)).case(LEVEL)


#: Family -> (operation, maker of a case, number of seeds).
FAMILIES = {
    "dense": ("gemm", dense, 60),
    "m_grouped": ("m_grouped_gemm", m_grouped, 25),
    "k_grouped": ("k_grouped_gemm", k_grouped, 40),
    "batched": ("batched_gemm", batched, 40),
    "mqa": ("mqa_logits", mqa, 25),
    "paged_mqa": ("paged_mqa_logits", paged_mqa, 20),
    "sparse_mqa": ("", sparse_mqa, 15),
    "gate": ("mega_gate", gate, 20),
    "mhc": ("mega_mhc", mhc, 10),
    "hc_prenorm": ("hc_prenorm_gemm", hc_prenorm, 10),
    "mega_moe": ("mega_moe", mega_moe, 15),
}
SEEDS = [
    pytest.param(family, seed, id=f"{family}-{seed}") for family in FAMILIES for seed in range(FAMILIES[family][2])
]


@pytest.mark.parametrize(("family", "seed"), SEEDS)
def test_random_configuration(family, seed):
    operation, make, _ = FAMILIES[family]
    case = make(random.Random(f"{family}-{seed}"))
    if not operation:
        operation = "paged_sparse_mqa_logits" if "-page=" in case.id else "sparse_mqa_logits"
    (result,) = parity.run([(OPERATIONS[operation], case)], ["cpu"])
    assert result.status == "passed", f"{case.id}: {result.message}\n{result.worst}"
