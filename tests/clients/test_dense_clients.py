"""Unchanged DeepGEMM callers, dense and grouped GEMMs, against float32 products of the unquantised inputs."""

from __future__ import annotations

import pytest
import torch

import unikernels
from unikernels.testing import assert_bitwise_equal, assert_close, calc_diff
from unikernels.utils import (
    cast_back_from_fp8,
    per_block_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
)

#: Contract 1.10: accepted difference from the product of unquantised inputs, by the operands.
FP8, ONE_FP4, BF16 = 1e-3, 1e-2, 1e-5


@pytest.fixture(scope="module")
def probing(load_client):
    return load_client("serving_probing")


@pytest.fixture(scope="module")
def direct(load_client):
    return load_client("serving_direct")


@pytest.fixture(scope="module")
def training(load_client):
    return load_client("training")


def _random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _marked(*shape, dtype=torch.bfloat16):
    return torch.full(shape, torch.nan, dtype=dtype)


def test_probing_client_finds_the_package(probing):
    assert probing.is_deep_gemm_there()
    assert probing._resolve("get_col_major_tma_aligned_tensor", "gemm_fp8_fp8_bf16_nt") is None
    assert probing.contiguous_alignment() == unikernels.get_mk_alignment_for_contiguous_layout()


@pytest.mark.parametrize("m", [1, 33])
@pytest.mark.parametrize("prepares_scales", [False, True])
def test_probing_client_linear(probing, m, prepares_scales):
    """Block scales of a checkpoint as they are, and prepared at load time, must give the same bits."""
    x, weight = _random(m, 512, seed=0), _random(256, 512, seed=1)
    a, (b, sfb) = per_token_cast_to_fp8(x, use_ue8m0=True), probing.quantize_block(weight)
    plain = _marked(m, 256)
    probing.gemm(a, (b, sfb), plain, uses_exponent_scales=True)
    assert_close(plain, x.float() @ weight.float().t(), FP8)
    if prepares_scales:
        prepared = _marked(m, 256)
        packed = probing.prepare_weight_scales(sfb, 256, 512)
        assert packed.dtype == torch.int32
        sfa = probing._resolve("get_mn_major_tma_aligned_packed_ue8m0_tensor")(a[1])
        probing.gemm((a[0], sfa), (b, packed), prepared, uses_exponent_scales=True)
        assert_bitwise_equal(prepared, plain)


def test_probing_client_prefers_the_first_name_it_knows(probing):
    sf = torch.rand(5, 3)
    aligned = probing.align_activation_scales(sf)
    assert torch.equal(aligned, sf)
    assert aligned.stride() == (1, 8)


@pytest.mark.parametrize("client", ["probing", "direct"])
def test_grouped_contiguous(client, request):
    module = request.getfixturevalue(client)
    alignment = unikernels.get_mk_alignment_for_contiguous_layout()
    sizes, n, k = (100, 0, alignment), 128, 256
    rows = [(size + alignment - 1) // alignment * alignment for size in sizes]
    indices = torch.full((sum(rows),), -1, dtype=torch.int32)
    start = 0
    for expert, (size, aligned) in enumerate(zip(sizes, rows, strict=True)):
        indices[start : start + size] = expert
        start += aligned
    x, weights = _random(sum(rows), k, seed=2), _random(3, n, k, seed=3)
    casts = [per_block_cast_to_fp8(weight, use_ue8m0=True) for weight in weights]
    b = tuple(torch.stack(part) for part in zip(*casts, strict=True))
    out = _marked(sum(rows), n)
    extra = (True,) if client == "probing" else ()
    module.grouped_contiguous(per_token_cast_to_fp8(x, use_ue8m0=True), b, out, indices, *extra)
    valid = indices >= 0
    expected = torch.einsum("mk,mnk->mn", x[valid].float(), weights.float()[indices[valid].long()])
    assert_close(out[valid], expected, FP8)


@pytest.mark.parametrize("client", ["probing", "direct"])
def test_grouped_masked(client, request):
    module = request.getfixturevalue(client)
    groups, max_m, n, k = 3, 40, 128, 256
    masked_m = torch.tensor([40, 0, 7], dtype=torch.int32)
    x, weights = _random(groups, max_m, k, seed=4), _random(groups, n, k, seed=5)
    a = tuple(torch.stack(part) for part in zip(*(per_token_cast_to_fp8(one, True) for one in x), strict=True))
    b = tuple(torch.stack(part) for part in zip(*(per_block_cast_to_fp8(one, True) for one in weights), strict=True))
    out = torch.full((groups, max_m, n), 7.0, dtype=torch.bfloat16)
    extra = (True,) if client == "probing" else ()
    module.grouped_masked(a, b, out, masked_m, 16, *extra)
    for group, size in enumerate(masked_m.tolist()):
        assert_close(out[group, :size], (x[group].float() @ weights[group].float().t())[:size], FP8)
        assert (out[group, size:] == 7).all()


def test_direct_client_masked_with_fp4_weights_and_two_recipes(direct):
    x, weights = _random(2, 8, 256, seed=6), _random(2, 64, 256, seed=7)
    a = tuple(torch.stack(part) for part in zip(*(per_token_cast_to_fp8(one, True) for one in x), strict=True))
    b = tuple(
        torch.stack(part) for part in zip(*(per_token_cast_to_fp4(one, True, 32) for one in weights), strict=True)
    )
    out = _marked(2, 8, 64)
    masked_m = torch.tensor([8, 8], dtype=torch.int32)
    direct.grouped_masked(a, b, out, masked_m, 8, recipe_a=(1, 128), recipe_b=(1, 32))
    assert_close(out, x.float() @ weights.float().transpose(1, 2), ONE_FP4)


def test_direct_client_masked_bf16(direct):
    x, weights = _random(2, 8, 96, seed=8), _random(2, 64, 96, seed=9)
    out = _marked(2, 8, 64)
    direct.grouped_masked_bf16(x, weights, out, torch.tensor([8, 8], dtype=torch.int32), 8)
    assert_close(out, x.float() @ weights.float().transpose(1, 2), BF16)


def test_direct_client_is_enabled_and_starts(direct):
    assert direct.ENABLED
    assert direct.start() is True


def test_direct_client_limits_sms(direct):
    before = unikernels.get_num_sms()
    x, weight = _random(4, 128, seed=10), _random(8, 128, seed=11)
    a, b = per_token_cast_to_fp8(x, True), per_block_cast_to_fp8(weight, True)
    with direct.limited_sms(1):
        assert unikernels.get_num_sms() == 1
        out = _marked(4, 8)
        direct.gemm(a, b, out)
    assert unikernels.get_num_sms() == before
    with direct.limited_sms(None):
        again = _marked(4, 8)
        direct.gemm(a, b, again)
    assert_close(out, x.float() @ weight.float().t(), FP8)
    assert_close(again, out, 1e-6)


def test_direct_client_router_in_float32(direct):
    x, weight = _random(5, 256, seed=12), _random(16, 256, seed=13)
    assert_close(direct.router_gemm(x, weight), x.float() @ weight.float().t(), 1e-10)


def test_direct_client_aligned_scales(direct):
    aligned = direct.aligned_scales(torch.rand(2, 6, 3))
    assert aligned.stride() == (24, 1, 8)


@pytest.mark.parametrize("client", ["probing", "direct"])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_hyper_connection(client, num_splits, request):
    x = _random(13, 1024, seed=14)
    fn = torch.randn(24, 1024, generator=torch.Generator().manual_seed(15))
    out, squares = request.getfixturevalue(client).hyper_connection(x, fn, num_splits)
    assert_close(out, x.double() @ fn.double().t(), 1e-6)  # TF32 keeps 10 bits of fn
    assert_close(squares, x.double().square().sum(-1), 1e-10)


def test_training_client_forward_and_backward(training):
    x, weight, grad = _random(256, 384, seed=16), _random(128, 384, seed=17), _random(256, 128, seed=18)
    layer = training.Linear(weight)
    assert training.is_close(layer.forward(x), x.float() @ weight.float().t(), FP8)
    grad_x = layer.backward(x, grad)
    assert training.is_close(grad_x, grad.float() @ weight.float(), FP8)
    expected = grad.float().t() @ x.float()
    assert training.is_close(layer.main_grad, expected, FP8)
    layer.backward(x, grad)
    assert training.is_close(layer.main_grad, 2 * expected, FP8)
    assert not training.is_close(layer.main_grad, expected, FP8)


def test_clients_see_the_quantised_operands_only():
    """The tolerance above includes quantisation; against dequantised operands the result must be far closer."""
    x, weight = _random(16, 256, seed=19), _random(128, 256, seed=20)
    a, b = per_token_cast_to_fp8(x, True), per_block_cast_to_fp8(weight, True)
    out = _marked(16, 128)
    unikernels.fp8_gemm_nt(a, b, out)
    expected = cast_back_from_fp8(*a).double() @ (b[0].double() * b[1].double().repeat_interleave(128, 1)).t()
    assert calc_diff(out, expected) < 1e-5
    assert calc_diff(out, x.double() @ weight.double().t()) > 1e-5
