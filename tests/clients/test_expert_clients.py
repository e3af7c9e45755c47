"""Unchanged DeepGEMM callers, experts: weight gradients in place, and the fused mixture of experts in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from unikernels.testing import assert_close, calc_diff
from unikernels.utils import cast_back_from_fp4, cast_back_from_fp8, per_token_cast_to_fp4, per_token_cast_to_fp8

FP8, BF16 = 1e-3, 1e-5


@pytest.fixture(scope="module")
def training(load_client):
    return load_client("training")


@pytest.fixture(scope="module")
def experts(load_client):
    return load_client("mixture_of_experts")


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("name", ["accumulate_expert_gradients", "accumulate_expert_gradients_bf16"])
def test_expert_weight_gradients(training, name):
    tokens_per_expert, out_features, in_features = [256, 0, 128], 64, 96
    tokens = sum(tokens_per_expert)
    x, grad = _random(tokens, in_features, seed=0), _random(tokens, out_features, seed=1)
    before = _random(3, out_features, in_features, seed=2).float()
    main_grad = before.clone()
    getattr(training, name)(x, grad, tokens_per_expert, main_grad)
    parts = zip(grad.float().split(tokens_per_expert), x.float().split(tokens_per_expert), strict=True)
    expected = torch.stack([one.t() @ other for one, other in parts])
    assert torch.equal(main_grad[1], before[1])  # an expert without tokens
    assert_close(main_grad - before, expected, BF16 if name.endswith("bf16") else FP8)


def _expected(x, l1, l2, topk_idx, topk_weights, clamp):
    """The chain of the contract (3.7) on dequantised operands, token by token and slot by slot."""
    x = cast_back_from_fp8(*per_token_cast_to_fp8(x, True, 32), 32)
    l1, l2 = (
        [cast_back_from_fp4(*per_token_cast_to_fp4(one, True, 32), 32) for one in weights] for weights in (l1, l2)
    )
    y = torch.zeros(x.size(0), x.size(1))
    for token in range(x.size(0)):
        for expert, weight in zip(topk_idx[token].tolist(), topk_weights[token], strict=True):
            if expert < 0:
                continue
            gate, up = (l1[expert] @ x[token]).bfloat16().float().chunk(2)
            if clamp is not None:
                gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
            act = gate * gate.sigmoid() * up * weight
            act = cast_back_from_fp8(*per_token_cast_to_fp8(act[None], True, 32), 32)[0]
            y[token] += (l2[expert] @ act).bfloat16().float()
    return y


@pytest.mark.parametrize("clamp", [None, 1.0])
def test_fused_experts(experts, group, clamp):
    num_experts, hidden, intermediate, topk = 4, 256, 512, 2
    l1 = _random(num_experts, 2 * intermediate, hidden, seed=3) * 0.1
    l2 = _random(num_experts, hidden, intermediate, seed=4) * 0.1
    layer = experts.FusedExperts(group, l1, l2, max_tokens=16, topk=topk)
    x = _random(7, hidden, seed=5)
    # A repeated expert, a token with one expert, and a token with none.
    topk_idx = torch.tensor([[0, 1], [2, 3], [1, 1], [3, -1], [-1, -1], [0, 2], [2, 0]])
    topk_weights = torch.rand(7, topk, generator=torch.Generator().manual_seed(6))
    y = layer(x, topk_idx, topk_weights, clamp)
    expected = _expected(x, l1, l2, topk_idx, topk_weights, clamp)
    # One rounding of the activation to FP8 may differ where float32 sums differ in order.
    assert_close(y, expected, 1e-4)
    assert (y[4] == 0).all()
    assert calc_diff(y, _expected(x, l1, l2, topk_idx, topk_weights.flip(0), clamp)) > 1e-2  # the check can fail
    counts = torch.bincount(topk_idx[topk_idx >= 0], minlength=num_experts)
    assert layer.stats.tolist() == counts.tolist()
    assert layer(x[:0], topk_idx[:0], topk_weights[:0]).shape == (0, hidden)
    layer(x, topk_idx, topk_weights, clamp)
    assert layer.stats.tolist() == (2 * counts).tolist()
