"""Mega MoE in one process: equality with the chain it fuses, field cases, and weights in both forms."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.errors import InvalidArgumentError
from unikernels.operations.mega_mhc import shared_scale_rows
from unikernels.testing import calc_diff

EXPERTS, TOPK, HIDDEN, WIDTH = 4, 3, 256, 128
FP4_DTYPES = [torch.int8, torch.uint8]
if hasattr(torch, "float4_e2m1fn_x2"):
    FP4_DTYPES.append(torch.float4_e2m1fn_x2)


@pytest.fixture(params=["cpu", "reference"])
def backend(request):
    with uk.use_backend(request.param):
        yield request.param


def stored(values, kind):
    """Return values as (data, packed MN-major scales), or in bf16."""
    if kind == "bf16":
        return values.bfloat16()
    cast = uk.per_token_cast_to_fp4 if kind == "fp4" else uk.per_token_cast_to_fp8
    data, sf = cast(values.flatten(0, -2), True, 32)
    words = uk.pack_ue8m0_to_int(sf).view(*values.shape[:-1], -1)
    return data.view(*values.shape[:-1], -1), words.mT.contiguous().mT


def raw_weights(kind="fp4", num_experts=EXPERTS, hidden=HIDDEN, width=WIDTH, seed=0):
    """Return random (l1, l2)."""
    generator = torch.Generator().manual_seed(seed)
    leading = () if num_experts is None else (num_experts,)
    l1 = torch.randn(*leading, 2 * width, hidden, generator=generator) / hidden**0.5
    l2 = torch.randn(*leading, hidden, width, generator=generator) / width**0.5
    return stored(l1, kind), stored(l2, kind)


def make_buffer(num_tokens=8, num_shared=0, mma_type="fp8xfp4", **sizes):
    arguments = {"num_experts": EXPERTS, "num_topk": TOPK, "hidden": HIDDEN, "intermediate_hidden": WIDTH, **sizes}
    return uk.SymmBuffer(
        None, num_max_tokens_per_rank=num_tokens, num_shared_experts=num_shared, mma_type=mma_type, **arguments
    )


def fill(buffer, x, topk_idx, topk_weights):
    """Write the inputs of a call and return its number of tokens."""
    count = len(x)
    if buffer.mma_type == "bf16xbf16":
        buffer.x[:count] = x
    else:
        buffer.x[:count], buffer.x_sf[:count] = uk.per_token_cast_to_fp8(x, True, 32, use_packed_ue8m0=True)
        if buffer.num_shared_experts:
            block_m = uk.get_block_m_for_mega_moe(
                1, buffer.num_experts, buffer.num_max_tokens_per_rank, count, buffer.num_topk, buffer.mma_type
            )
            buffer.shared_l1_acts_sf[shared_scale_rows(count, block_m, x.device)] = buffer.x_sf[:count]
    buffer.topk_idx[:count], buffer.topk_weights[:count] = topk_idx, topk_weights
    return count


def random_inputs(num_tokens, num_topk=TOPK, num_experts=EXPERTS, hidden=HIDDEN, seed=1):
    """Return x, expert ids (some -1), weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, hidden, generator=generator)
    topk_idx = torch.randint(-1, num_experts, (num_tokens, num_topk), generator=generator)
    return x, topk_idx, torch.rand(num_tokens, num_topk, generator=generator)


def call(buffer, weights, count, **options):
    """Call with raw weights; returns y."""
    y = torch.full((count, buffer.hidden), 7.0, dtype=torch.bfloat16)
    if "shared" in options:
        options["shared_l1_weights"], options["shared_l2_weights"] = uk.transform_weights_for_mega_moe(
            *options.pop("shared")
        )
    function = uk.bf16_mega_moe if buffer.mma_type == "bf16xbf16" else uk.fp8_fp4_mega_moe
    function(y, *uk.transform_weights_for_mega_moe(*weights), buffer, **options)
    return y


# ---- the chain it fuses ----


def mlp(x, l1, l2, factors, clamp, kind):
    """Unfused: public GEMM, SwiGLU, cast, public GEMM; x is (data, scales) or bf16."""
    num_rows = len(factors)
    gate_up = torch.empty(num_rows, (l1[0] if isinstance(l1, tuple) else l1).shape[0], dtype=torch.bfloat16)
    gemm = (
        (lambda a, b, d: uk.bf16_gemm_nt(a, b, d))
        if kind == "bf16"
        else (lambda a, b, d: uk.fp8_fp4_gemm_nt(a, b, d, recipe=(1, 1, 32)))
    )
    gemm(x, l1, gate_up)
    gate, up = gate_up.float().chunk(2, 1)
    if clamp is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    acts = gate * torch.sigmoid(gate) * up * factors[:, None]
    acts = acts.bfloat16() if kind == "bf16" else uk.per_token_cast_to_fp8(acts, True, 32, use_packed_ue8m0=True)
    out = torch.empty(num_rows, (l2[0] if isinstance(l2, tuple) else l2).shape[0], dtype=torch.bfloat16)
    gemm(acts, l2, out)
    return out.float()


def pick(weights, index):
    return weights[index] if isinstance(weights, torch.Tensor) else tuple(one[index] for one in weights)


def unfused(buffer, count, weights, clamp, shared=None):
    kind = "bf16" if buffer.mma_type == "bf16xbf16" else "fp8"
    x = buffer.x[:count] if kind == "bf16" else (buffer.x[:count], buffer.x_sf[:count])
    partial = torch.zeros(TOPK, count, buffer.hidden)
    for expert in range(buffer.num_experts):
        tokens, slots = (buffer.topk_idx[:count] == expert).nonzero(as_tuple=True)
        if len(tokens):
            factors = buffer.topk_weights[tokens, slots]
            partial[slots, tokens] = mlp(
                pick(x, tokens), pick(weights[0], expert), pick(weights[1], expert), factors, clamp, kind
            )
    total = torch.zeros(count, buffer.hidden)
    if shared is not None:
        total = mlp(x, *shared, torch.ones(count), clamp, kind)
    for one in partial:
        total = total + one
    return total.bfloat16()


@pytest.mark.parametrize("clamp", [None, 0.75])
@pytest.mark.parametrize("num_shared", [0, 2])
@pytest.mark.parametrize(
    ("mma_type", "kinds"), [("fp8xfp4", "fp8 fp4"), ("fp8xfp8", "fp8 fp8"), ("bf16xbf16", "bf16 bf16")]
)
def test_equal_to_the_unfused_chain(mma_type, kinds, num_shared, clamp):
    act_kind, weight_kind = kinds.split()
    buffer = make_buffer(70, num_shared, mma_type)
    count = fill(buffer, *random_inputs(69))
    weights = raw_weights(weight_kind)
    options = {"shared": raw_weights(act_kind, None, width=2 * WIDTH, seed=9)} if num_shared else {}
    stats = torch.tensor([5, 6, 7, 8], dtype=torch.int32)
    expected = unfused(buffer, count, weights, clamp, options.get("shared"))
    y = call(buffer, weights, count, activation_clamp=clamp, cumulative_local_expert_recv_stats=stats, **options)
    if num_shared:
        assert calc_diff(y, expected) < 1e-8
    else:
        assert torch.equal(y, expected)
    received = torch.bincount(buffer.topk_idx[:count].flatten() + 1, minlength=EXPERTS + 1)[1:]
    assert stats.tolist() == (torch.tensor([5, 6, 7, 8]) + received).tolist()
    if num_shared and act_kind == "fp8":  # the views the contract says a call writes
        block_m = uk.get_block_m_for_mega_moe(1, EXPERTS, 72, count, TOPK, mma_type)
        words = buffer.shared_l2_acts_sf[shared_scale_rows(count, block_m, y.device)]
        middle = uk.cast_back_from_fp8(buffer.shared_l2_acts[:count], words.contiguous(), 32, use_packed_ue8m0=True)
        assert middle.abs().max() > 0.1
        last = torch.empty(count, HIDDEN, dtype=torch.bfloat16)
        shared_l2 = options["shared"][1]
        uk.fp8_fp4_gemm_nt((buffer.shared_l2_acts[:count], words), shared_l2, last, recipe=(1, 1, 32))
        assert torch.equal(last, buffer.combine_slots[TOPK, :count])


def test_long_groups_are_split_into_passes(monkeypatch):
    from unikernels.backends.cpu.kernels import mega_moe as kernel

    assert list(kernel._passes([3, 0, 2, 9, 1])) == [[(0, 0, 3), (2, 3, 5), (3, 5, 14), (4, 14, 15)]]
    buffer = make_buffer(70)
    count = fill(buffer, *random_inputs(69))
    whole = call(buffer, raw_weights(), count)
    monkeypatch.setattr(kernel, "_ROWS_PER_PASS", 4)
    passes = list(kernel._passes([3, 0, 2, 9, 1]))
    assert passes == [[(0, 0, 3)], [(2, 3, 5)], [(3, 5, 9)], [(3, 9, 13)], [(3, 13, 14), (4, 14, 15)]]
    assert calc_diff(call(buffer, raw_weights(), count), whole) < 1e-8


def test_repeats_are_bitwise_equal_and_stale_memory_has_no_effect():
    buffer = make_buffer(24, num_shared=1)
    count = fill(buffer, *random_inputs(20))
    options = {"shared": raw_weights("fp8", None, seed=3)}
    first = call(buffer, raw_weights(), count, **options)
    for _ in range(3):
        buffer.combine_slots.fill_(float("nan"))
        buffer.shared_l2_acts.fill_(float("nan"))
        assert torch.equal(call(buffer, raw_weights(), count, **options), first)


def test_a_token_without_experts_gives_zeros(backend):
    buffer = make_buffer()
    x, topk_idx, topk_weights = random_inputs(5)
    topk_idx[2] = -1
    y = call(buffer, raw_weights(), fill(buffer, x, topk_idx, topk_weights))
    assert torch.equal(y[2], torch.zeros(HIDDEN).bfloat16())
    assert y[[0, 1, 3, 4]].float().abs().amax(1).min() > 0


def test_more_rows_than_tokens_may_be_passed_with_masked_slots(backend):
    buffer = make_buffer()
    buffer.topk_idx.fill_(-1)
    assert torch.equal(call(buffer, raw_weights(), 1), torch.zeros(1, HIDDEN).bfloat16())


# ---- field cases ----


def test_fc37_size_is_linear_and_too_many_tokens_are_refused(backend):
    sizes = {"num_experts": 8, "num_topk": 2, "hidden": 128, "intermediate_hidden": 128}
    one, two = make_buffer(64, **sizes), make_buffer(128, **sizes)
    # x, x_sf, topk_idx, topk_weights, combine slots, each a multiple of 128 bytes here.
    assert one.num_bytes == 64 * (128 + 4 + 16 + 8 + 2 * 2 * 128) == one.buffer.numel()
    assert two.num_bytes == 2 * one.num_bytes
    weights = uk.transform_weights_for_mega_moe(*raw_weights(num_experts=8, hidden=128))
    y = torch.full((65, 128), 7.0, dtype=torch.bfloat16)
    with pytest.raises(InvalidArgumentError, match=r"y has 65 rows \(tokens\), sym_buffer holds at most 64 per rank"):
        uk.fp8_fp4_mega_moe(y, *weights, one)
    assert bool((y == 7).all())


@pytest.mark.parametrize(
    ("clamp", "expected"), [(1.0, -0.7311), (None, -100.0 * 100.0), (0.0, 0.0), (float("inf"), -1e4)]
)
def test_fc38_clamp(backend, clamp, expected):
    sizes = {"num_experts": 1, "num_topk": 1, "hidden": 128, "intermediate_hidden": 128}
    buffer = make_buffer(1, mma_type="bf16xbf16", **sizes)
    l1 = torch.zeros(1, 256, 128)
    l1[0, 5, 0], l1[0, 128 + 5, 0] = 100.0, -100.0
    l2 = torch.zeros(1, 128, 128)
    l2[0, 3, 5] = 1.0
    x = torch.zeros(1, 128)
    x[0, 0] = 1.0
    count = fill(buffer, x, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1))
    y = call(buffer, (l1.bfloat16(), l2.bfloat16()), count, activation_clamp=clamp)
    assert y[0, 3].item() == pytest.approx(expected, rel=4e-3)
    assert y.float().count_nonzero() == (1 if expected else 0)


@pytest.mark.parametrize("clamp", [-0.5, float("nan"), float("-inf")])
def test_fc38_negative_clamp_is_refused(backend, clamp):
    buffer = make_buffer()
    with pytest.raises(InvalidArgumentError, match=r"activation_clamp is .* expected a number >= 0"):
        call(buffer, raw_weights(), fill(buffer, *random_inputs(2)), activation_clamp=clamp)


def test_fc39_a_byte_is_a_byte(backend):
    buffer = make_buffer()
    count = fill(buffer, *random_inputs(6))
    weights = raw_weights()
    expected = call(buffer, weights, count)
    transformed = uk.transform_weights_for_mega_moe(*weights)
    for dtype in FP4_DTYPES:
        relabelled = tuple((data.view(dtype), sf) for data, sf in weights)
        assert torch.equal(call(buffer, relabelled, count), expected)
        y = torch.empty_like(expected)
        uk.fp8_fp4_mega_moe(y, *((data.view(dtype), sf) for data, sf in transformed), buffer)
        assert torch.equal(y, expected)
    (data, sf), l2 = transformed
    with pytest.raises(InvalidArgumentError, match=r"dtype torch.int32.*int8 or uint8"):
        uk.fp8_fp4_mega_moe(torch.empty_like(expected), (data.int(), sf), l2, buffer)


def test_fc41_an_expert_named_twice_counts_twice(backend):
    sizes = {"num_topk": 2}
    buffer = make_buffer(1, mma_type="bf16xbf16", **sizes)
    x = random_inputs(1)[0]
    weights = raw_weights("bf16")
    outputs = []
    for idx, factors in (([1, 1], [0.25, 0.5]), ([1, -1], [0.25, 0.5]), ([-1, 1], [0.25, 0.5])):
        stats = torch.zeros(EXPERTS, dtype=torch.int32)
        count = fill(buffer, x, torch.tensor([idx]), torch.tensor([factors]))
        outputs.append(call(buffer, weights, count, cumulative_local_expert_recv_stats=stats).float())
        assert stats.tolist() == [0, sum(one == 1 for one in idx), 0, 0]
    assert torch.equal(outputs[0], (outputs[1] + outputs[2]).bfloat16().float())
    assert calc_diff(outputs[0], 3 * outputs[1]) < 1e-5
    assert outputs[1].std() > 0.01


def test_fc42_weights_that_skipped_the_transformation(backend):
    buffer = make_buffer()
    count = fill(buffer, *random_inputs(2))
    y = torch.full((count, HIDDEN), 7.0, dtype=torch.bfloat16)
    raw, good = raw_weights(), uk.transform_weights_for_mega_moe(*raw_weights())
    with_floats = [(data, torch.ones(*data.shape[:2], data.shape[2] // 16)) for data, _ in raw]
    other = uk.transform_weights_for_mega_moe(*raw_weights(hidden=2 * HIDDEN))
    wrong = [
        (
            raw,
            r"l1_weights\[0\] has shape \(4, 256, 128\) and dtype torch.int8, expected \(4, 2, 128, 128\).*untransformed",
        ),
        (with_floats, r"l1_weights\[0\].*untransformed"),
        (other, r"l1_weights\[0\] has shape \(4, 2, 128, 256\).*another shape or backend"),
        ((good[0], raw[1]), r"l2_weights\[0\] has shape \(4, 256, 64\).*expected \(4, 1, 256, 64\).*untransformed"),
        (
            ((good[0][0], raw[0][1]), good[1]),
            r"l1_weights\[1\] has shape \(4, 256, 2\) and dtype torch.int32.*untransformed",
        ),
        (
            ((good[0][0], good[0][1].float()), good[1]),
            r"l1_weights\[1\].*dtype torch.float32, expected.*int32 or int16",
        ),
        (good[::-1], r"l1_weights\[0\] has shape \(4, 1, 256, 64\)"),
    ]
    for weights, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message) as info:
            uk.fp8_fp4_mega_moe(y, *weights, buffer)
        assert "have to go through transform_weights_for_mega_moe" in str(info.value)
    assert bool((y == 7).all())
    uk.fp8_fp4_mega_moe(y, *good, buffer)
    assert not (y == 7).any()


# ---- weights ----


@pytest.mark.parametrize("kind", ["fp4", "fp8", "bf16"])
def test_transformed_weights_survive_what_callers_do_with_tensors(kind, tmp_path):
    mma_type = {"fp4": "fp8xfp4", "fp8": "fp8xfp8", "bf16": "bf16xbf16"}[kind]
    buffer = make_buffer(mma_type=mma_type)
    count = fill(buffer, *random_inputs(6))
    weights = raw_weights(kind)
    expected = call(buffer, weights, count)
    transformed = uk.transform_weights_for_mega_moe(*weights)
    tensors = [one for part in transformed for one in ((part,) if kind == "bf16" else part)]
    torch.save(tensors, tmp_path / "weights.pt")
    loaded = torch.load(tmp_path / "weights.pt")
    kept = [torch.nn.Parameter(one, requires_grad=False) for one in tensors]
    for copies in (loaded, kept, [one.contiguous().clone().to("cpu") for one in tensors]):
        l1, l2 = copies if kind == "bf16" else (tuple(copies[:2]), list(copies[2:]))
        y = torch.empty_like(expected)
        (uk.bf16_mega_moe if kind == "bf16" else uk.fp8_fp4_mega_moe)(y, l1, l2, buffer)
        assert torch.equal(y, expected)


def test_int16_scales_give_the_same_result():
    buffer = make_buffer()
    count = fill(buffer, *random_inputs(6))
    weights = raw_weights()
    as_int16 = [(data, sf.contiguous().view(torch.int16)) for data, sf in weights]
    assert torch.equal(call(buffer, as_int16, count), call(buffer, weights, count))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda l1, l2: ((l1[0], torch.ones(4, 256, 8)), l2),
            r"l1_weights\[1\] has dtype torch.float32.*transform_sf_into",
        ),
        (
            lambda l1, l2: ((l1[0], l1[1][:, :, :1]), l2),
            r"l1_weights\[1\] has shape \(4, 256, 1\), expected \(4, 256, 2\)",
        ),
        (lambda l1, l2: (l1, raw_weights(num_experts=3)[1]), "expected equally many experts in both"),
        (lambda l1, l2: (l1, raw_weights("fp8")[1]), "l1_weights holds fp4, l2_weights fp8"),
        (
            lambda l1, l2: (l1, raw_weights(hidden=128)[1]),
            r"\[experts, 2 \* intermediate, hidden\] and \[experts, hidden",
        ),
        (lambda l1, l2: (tuple(one[:, :192] for one in l1), l2), r"\[4, 192, 256\].*multiples of 128"),
        (lambda l1, l2: (l1[0], l2), "l1_weights is a tensor of dtype torch.int8, expected bfloat16, or a pair"),
        (lambda l1, l2: (None, l2), "l1_weights is a NoneType, expected a pair"),
        (lambda l1, l2: uk.transform_weights_for_mega_moe(l1, l2), "looks transformed already"),
        (lambda l1, l2: (tuple(t.mT.contiguous().mT for t in l1), l2), "expected a unit stride in the last dimension"),
    ],
)
def test_raw_weights_are_checked(change, message):
    with pytest.raises(InvalidArgumentError, match=message):
        uk.transform_weights_for_mega_moe(*change(*raw_weights()))


def test_only_swiglu():
    with pytest.raises(InvalidArgumentError, match="activation is 'gelu', expected 'swiglu'"):
        uk.transform_weights_for_mega_moe(*raw_weights(), "gelu")
