"""Python numbers among the arguments: NumPy's are taken, bools, tensors and numbers nothing can hold are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unikernels as uk
from unikernels.epilogue import Alpha, Epilogue, FP8CastWithClamp
from unikernels.errors import ArgumentTypeError, InvalidArgumentError

FP8 = torch.float8_e4m3fn


def _ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def _dense(**arguments):
    a, b = (torch.ones(4, 128).to(FP8), torch.ones(4, 1)), (torch.ones(8, 128).to(FP8), torch.ones(1, 1))
    d = torch.full((4, 8), 7.0)
    try:
        uk.fp8_gemm_nt(a, b, d, **arguments)
    except InvalidArgumentError:
        assert d.eq(7).all()
        raise
    return d[0, 0].item()


@pytest.mark.parametrize("alpha", [np.float32(0.5), np.float64(0.5)])
def test_alpha_of_numpy(alpha):
    assert _dense(alpha=alpha) == _dense(epilogue=Alpha(alpha)) == 64


@pytest.mark.parametrize("alpha", ["0.5", True, torch.tensor(0.5), 1j])
def test_alpha_must_be_a_number(alpha):
    with pytest.raises(ArgumentTypeError, match="alpha is"):
        _dense(alpha=alpha)
    with pytest.raises(ArgumentTypeError, match="Alpha: alpha is"):
        Alpha(alpha)


@pytest.mark.parametrize("alpha", [float("inf"), float("-inf"), float("nan"), np.float32("inf"), 1e39])
def test_alpha_need_not_be_finite(alpha):
    expected = 128 * torch.tensor(alpha, dtype=torch.float64).float()
    for result in (_dense(alpha=alpha), _dense(epilogue=Alpha(alpha))):
        torch.testing.assert_close(torch.tensor(result), expected, equal_nan=True)


def test_the_base_class_is_no_epilogue():
    with pytest.raises(ArgumentTypeError, match=r"Epilogue is a base class\. Use Identity"):
        Epilogue()


def test_alpha_too_large_for_float():
    with pytest.raises(InvalidArgumentError, match="alpha is an int of 401 digits"):
        _dense(alpha=10**400)


def test_clamp_value_must_be_a_number():
    sfd = torch.zeros(4, 1, dtype=torch.int32)
    assert FP8CastWithClamp(sfd, np.float32(2)).clamp_value == 2.0
    with pytest.raises(ArgumentTypeError, match="clamp_value is '1'"):
        FP8CastWithClamp(sfd, "1")


@pytest.mark.parametrize("recipe", [tuple(np.array([1, 128, 128])), [1, 128, 128], torch.Size([1, 128, 128])])
def test_recipe_forms(recipe):
    assert _dense(recipe=recipe) == 128


@pytest.mark.parametrize("recipe", [(True, 128, 128), (1, 128.0, 128), (1, 2**70, 128), (1, 2**31, 128), (1, -1, 128)])
def test_recipe_must_hold_small_ints(recipe):
    with pytest.raises(InvalidArgumentError, match="fp8_fp4_gemm_nt: recipe is"):
        _dense(recipe=recipe)


def test_group_sizes_of_numpy():
    a, b, d = torch.ones(256, 16).bfloat16(), torch.ones(256, 8).bfloat16(), torch.empty(2, 16, 8)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, list(np.array([128, 128])), _ints(128, 128))
    assert d.eq(128).all()
    with pytest.raises(ArgumentTypeError, match=r"ks_cpu\[0\] is True"):
        uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, [True, 256], _ints(128, 128))


def test_expected_m_of_numpy():
    a, b, d = torch.ones(2, 8, 64).bfloat16(), torch.ones(2, 4, 64).bfloat16(), torch.empty(2, 8, 4)
    uk.m_grouped_bf16_gemm_nt_masked(a, b, d, _ints(8, 8), np.int32(8))
    assert d.eq(64).all()


@pytest.mark.parametrize("columns", [2**31, 2**70])
def test_more_logits_than_int32_windows_reach(columns):
    q, keys = torch.ones(2, 4, 64).to(FP8), torch.ones(3, 64).to(FP8)
    with pytest.raises(InvalidArgumentError, match=r"max_seqlen_k is .* expected at most 2147483647"):
        uk.fp8_mqa_logits(q, (keys, torch.ones(3)), torch.ones(2, 4), _ints(0, 0), _ints(3, 3), False, columns)


def test_routing_numbers_of_numpy():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 256, generator=generator).bfloat16(), torch.randn(8, 256, generator=generator).bfloat16()
    table = torch.arange(24, dtype=torch.int32).view(8, 3), torch.full((8,), 3, dtype=torch.int32)
    plain = {"num_topk": 2, "num_shared_experts": 0, "routed_scaling_factor": 1.5, "ep_rank": 7}
    numpy = {
        name: np.float32(value) if name == "routed_scaling_factor" else np.int8(value) for name, value in plain.items()
    }
    first, second = (
        uk.bf16_mega_gate(
            x, weight, use_shared_as_routed=False, to_physical_map=table[0], logical_count=table[1], **numbers
        )
        for numbers in (plain, numpy)
    )
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize(("clamp", "text"), [("1", r"is '1' \(str\)"), (True, "is True"), (10**400, "401 digits")])
def test_activation_clamp_must_be_a_number(clamp, text):
    buffer = uk.get_symm_buffer_for_mega_moe(None, np.int64(2), 4, np.int32(1), 128, 128, mma_type="bf16xbf16")
    l1, l2 = torch.zeros(2, 256, 128).bfloat16(), torch.zeros(2, 128, 128).bfloat16()
    l1, l2 = uk.transform_weights_for_mega_moe(l1, l2)
    buffer.topk_idx.fill_(-1)
    y = torch.full((4, 128), 7.0, dtype=torch.bfloat16)
    with pytest.raises(InvalidArgumentError, match=f"bf16_mega_moe: activation_clamp {text}|an int of {text}"):
        uk.bf16_mega_moe(y, l1, l2, buffer, activation_clamp=clamp)
    stats = y.view(torch.int32).flatten()[:2]
    with pytest.raises(InvalidArgumentError, match="cumulative_local_expert_recv_stats shares memory with y"):
        uk.bf16_mega_moe(y, l1, l2, buffer, cumulative_local_expert_recv_stats=stats)
    assert y.eq(7).all()
    uk.bf16_mega_moe(y, l1, l2, buffer, activation_clamp=np.float32(1))
    assert y.eq(0).all()
    buffer.destroy()
