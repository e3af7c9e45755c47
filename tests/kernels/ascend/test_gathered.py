"""Grouped GEMMs with a gathered operand on Ascend: exact; padding gives zeros; what lies outside a range does not matter."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import legacy
from unikernels.backends.ascend.runtime.executor import collected_kernels


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_gathered_rows_are_exact(ascend, small_integers):
    a, b = small_integers(20, 200).bfloat16(), torch.stack([small_integers(66, 200) for _ in range(3)]).bfloat16()
    labels = int32(*[2] * 100, *[-1] * 156, *[-1] * 256, *[0] * 256, *[0] * 44)  # a block without a group; no group 1
    indices = torch.randint(-1, 20, (812,), generator=torch.Generator().manual_seed(7), dtype=torch.int32)
    d = torch.full((812, 66), 7.0, dtype=torch.bfloat16)
    legacy.a_fused_m_grouped_bf16_gemm_nt_contiguous_tl(a, b, d, (labels, indices))
    rows = a.float()[indices.clamp(min=0).long()] * (indices >= 0).unsqueeze(1)
    expected = torch.einsum("mk,mnk->mn", rows, b.float()[labels.clamp(min=0).long()])
    expected[labels < 0] = 0
    assert torch.equal(d, expected.bfloat16())
    b[0, 3, 5] = torch.inf
    legacy.a_fused_m_grouped_bf16_gemm_nt_contiguous_tl(a, b, d, (labels, indices))
    assert (d[(labels < 0) | (indices < 0)] == 0).all()
    assert d[512:].isfinite().logical_not().any()


@pytest.mark.parametrize("gathers", ["a", "b"])
@pytest.mark.parametrize("accumulates", [False, True])
def test_gathered_k_is_exact(ascend, small_integers, gathers, accumulates):
    num_k, sources = 700, 30
    starts, stops = int32(3, 300, 290, 40, 699), int32(290, 301, 650, 20, 699)  # overlapping, one element, none
    used = torch.zeros(num_k, dtype=torch.bool)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        used[start:stop] = True
    k_indices = torch.randint(-1, sources - 1, (num_k,), generator=torch.Generator().manual_seed(8), dtype=torch.int32)
    k_indices[~used] = sources - 1
    operands = {name: small_integers(num_k, columns) for name, columns in (("a", 70), ("b", 66))}
    operands[gathers] = operands[gathers][:sources].clone()
    spread = dict(operands)
    spread[gathers] = operands[gathers][k_indices.clamp(min=0).long()] * (k_indices >= 0).unsqueeze(1)
    d = torch.full((5, 70, 66), 3.0)
    expected = torch.stack(
        [
            spread["a"][start:stop].T @ spread["b"][start:stop]
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
    )
    operands[gathers][sources - 1] = torch.nan
    operands["b" if gathers == "a" else "a"][~used] = torch.nan
    function = getattr(legacy, f"{gathers}_fused_k_grouped_bf16_gemm_tn_contiguous_tl")
    function(operands["a"].bfloat16(), operands["b"].bfloat16(), d, (k_indices, starts, stops), accumulates)
    assert torch.equal(d, expected + 3 if accumulates else expected)


def test_no_indices(ascend):
    a, b, nothing = torch.ones(4, 70).bfloat16(), torch.empty(0, 66).bfloat16(), int32()
    for accumulates, expected in ((True, 3.0), (False, 0.0)):
        d = torch.full((2, 70, 66), 3.0)
        handle = (nothing, int32(0, 0), int32(0, 0))
        legacy.a_fused_k_grouped_bf16_gemm_tn_contiguous_tl(a, b, d, handle, accumulates)
        assert (d == expected).all()


def test_the_limit_of_cores_holds_for_every_kernel(ascend):
    a, b = torch.ones(20, 64).bfloat16(), torch.ones(1, 66, 64).bfloat16()
    handle = (int32(*[0] * 256), int32(*[3] * 256))
    uk.set_num_sms(2)
    with collected_kernels() as kernels:
        legacy.a_fused_m_grouped_bf16_gemm_nt_contiguous_tl(a, b, torch.empty(256, 66, dtype=torch.bfloat16), handle)
    gather, multiply = kernels
    assert (gather.program, gather.variant.num_cores) == ("gather_rows", 4)  # vector cores, two of each
    assert (multiply.program, multiply.variant.gemm.num_cores) == ("m_grouped", 2)
