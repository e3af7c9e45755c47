"""Results are written in place and carry no gradient, whichever tensors require one; nothing is left half written."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import _registry

BACKENDS = ("cpu", "reference")


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request):
    with _registry.use_backend(request.param):
        yield request.param


def _ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def _bf16(*shape):
    return torch.ones(shape, dtype=torch.bfloat16)


def _requires_grad(*tensors):
    return [tensor.requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("m", [4, 40])
def test_dense_operands_and_addend_may_require_grad(m):
    a, b, c = _requires_grad(_bf16(m, 64), _bf16(8, 64), _bf16(m, 8))
    d = torch.full((m, 8), torch.nan, dtype=torch.bfloat16)
    uk.bf16_gemm_nt(a, b, d, c)
    assert not d.requires_grad
    assert d.eq(65).all()


@pytest.mark.parametrize("k", [0, 64])
def test_dense_output_may_require_grad(k):
    d = torch.full((4, 8), torch.nan, requires_grad=True)
    uk.bf16_gemm_nt(_bf16(4, k), _bf16(8, k), d)
    assert d.is_leaf
    assert d.detach().eq(k).all()


def test_m_grouped_weights_and_output_may_require_grad():
    a, b, d = _requires_grad(_bf16(256, 64), _bf16(2, 8, 64), torch.full((256, 8), torch.nan))
    labels = _ints(*[0] * 128, *[1] * 64, *[-1] * 64)
    uk.m_grouped_bf16_gemm_nt_contiguous(a, b, d, labels)
    assert d.is_leaf
    assert d.detach()[:192].eq(64).all()


def test_k_grouped_empty_group_of_an_output_that_requires_grad():
    a, b = _bf16(256, 16), _bf16(256, 8)
    d = torch.full((3, 16, 8), torch.nan, requires_grad=True)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [128, 0, 128], _ints(128, 0, 128))
    assert d.detach()[:, 0, 0].tolist() == [128, 0, 128]


def test_logits_carry_no_gradient():
    q, keys = torch.ones(2, 4, 64).to(torch.float8_e4m3fn), torch.ones(3, 64).to(torch.float8_e4m3fn)
    weights = torch.ones(2, 4, requires_grad=True)
    logits = uk.fp8_mqa_logits(q, (keys, torch.ones(3)), weights, _ints(0, 0), _ints(3, 3))
    assert not logits.requires_grad
    assert logits.eq(256).all()


def test_calls_work_in_inference_mode():
    with torch.inference_mode():
        d = torch.empty(4, 8)
        uk.bf16_gemm_nt(_bf16(4, 64), _bf16(8, 64), d)
    assert d.eq(64).all()
