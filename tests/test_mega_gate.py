"""Expert routing: each rule of the contract on its own, ties, randomness by its properties, refused arguments."""

from __future__ import annotations

import math

import pytest
import torch

import unikernels as uk
from unikernels.errors import ArgumentTypeError, InvalidArgumentError
from unikernels.operations.mega_gate_cases import mega_gate_cases
from unikernels.testing import assert_bitwise_equal, calc_diff

BACKENDS = ("cpu", "reference")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=BACKENDS)
def backend(request):
    with uk.use_backend(request.param):
        yield request.param


def _one_hot(scores):
    """Return x, weight whose logits are exactly `scores` [t, e] (bf16 values): row t of x selects column t of weight."""
    t, e = scores.shape
    x, weight = torch.zeros(t, 256).bfloat16(), torch.zeros(e, 256).bfloat16()
    x[torch.arange(t), torch.arange(t)] = 1.0
    weight[:, :t] = scores.T.bfloat16()
    return x, weight


def _gate(scores, k=2, shared=0, factor=1.0, ep_rank=0, scoring_func="identity", **options):
    x, weight = _one_hot(torch.as_tensor(scores, dtype=torch.float32))
    return uk.bf16_mega_gate(x, weight, k, shared > 0, shared, factor, ep_rank, scoring_func, **options)


@pytest.mark.parametrize(
    ("scoring_func", "function"),
    [
        ("sqrtsoftplus", lambda v: math.sqrt(v if v > 20 else math.log1p(math.exp(v)))),
        ("sigmoid", lambda v: 1 / (1 + math.exp(-v))),
        ("identity", lambda v: v),
    ],
)
def test_weights_are_normalised_unbiased_scores(backend, scoring_func, function):
    row = [1.0, -2.0, 30.0, 4.5]
    bias = torch.tensor([0.0, 1000.0, 0.0, 0.0])  # enough to choose expert 1, never seen in its weight
    idx, weights = _gate([row], k=3, factor=2.5, scoring_func=scoring_func, bias=bias)
    assert idx.tolist() == [[1, 2, 3]]
    chosen = [function(row[e]) for e in (1, 2, 3)]
    expected = torch.tensor([[v / (sum(chosen) + 1e-20) * 2.5 for v in chosen]])
    assert calc_diff(weights, expected) < 1e-11


def test_default_scoring_function_is_sqrtsoftplus(backend):
    x, weight = _one_hot(torch.randn(3, 8))
    default = uk.bf16_mega_gate(x, weight, 2, False, 0, 1.0, 0)
    named = uk.bf16_mega_gate(x, weight, 2, False, 0, 1.0, 0, "sqrtsoftplus")
    assert_bitwise_equal(default[1], named[1])


def test_ties_go_to_the_smaller_index(backend):
    idx, _ = _gate([[3.0, 5.0, 5.0, 3.0, 5.0, 1.0, 3.0, 5.0]], k=6)
    assert idx.tolist() == [[1, 2, 4, 7, 0, 3]]


def test_zeros_of_both_signs_are_ties(backend):
    idx, weights = _gate([[-0.0, 0.0, -0.0, 0.0]], k=3)
    assert idx.tolist() == [[0, 1, 2]]
    assert weights.tolist() == [[0.0, 0.0, 0.0]]  # 0 / (0 + 1e-20)


def test_zero_input_gives_the_first_experts(backend):
    x, weight = torch.zeros(5, 256).bfloat16(), torch.randn(128, 256).bfloat16()
    idx, weights = uk.bf16_mega_gate(x, weight, 6, False, 0, 1.0, 0)
    assert idx.tolist() == [list(range(6))] * 5
    torch.testing.assert_close(weights, torch.full((5, 6), 1 / 6))


def test_inactive_tokens(backend):
    mask = torch.tensor([True, False])
    unmapped = torch.full((2, 2), 7)
    options = {"force_random": torch.tensor([False, True]), "fix_routing_mask": torch.tensor([False, True])}
    idx, weights = _gate(torch.randn(2, 8), shared=2, mask=mask, unmapped_topk_idx=unmapped, **options)
    assert idx[1].tolist() == [-1] * 4
    assert unmapped[1].tolist() == [-1] * 2
    assert weights[1].tolist() == [0.0] * 4
    assert (idx[0] >= 0).all()
    assert weights[0, 2:].tolist() == [1.0, 1.0]


def test_image_tokens_have_their_own_bias(backend):
    scores = [[1.0, 2.0, 3.0, 4.0]] * 2
    image_bias, is_image = torch.tensor([100.0, 0, 0, 0]), torch.tensor([True, False])
    options = {"image_bias": image_bias, "image_token_mask": is_image}
    assert _gate(scores, k=1, **options)[0].tolist() == [[0], [3]]
    assert _gate(scores, k=1, **options, bias=torch.tensor([0, 100.0, 0, 0]))[0].tolist() == [[0], [1]]


def test_fixed_tokens_take_their_experts_from_unmapped(backend):
    scores = torch.tensor([[1.0, 2.0, 3.0, 6.0]] * 2)
    wide = torch.tensor([[2, 0, 9], [-5, 77, 9]])
    unmapped = wide[:, :2]  # strided rows; what stands in a row that is not fixed does not matter
    idx, weights = _gate(scores, fix_routing_mask=torch.tensor([True, False]), unmapped_topk_idx=unmapped)
    assert idx.tolist() == [[2, 0], [3, 2]]
    torch.testing.assert_close(weights, torch.tensor([[3 / 4, 1 / 4], [6 / 9, 3 / 9]]))
    assert wide.tolist() == [[2, 0, 9], [3, 2, 9]]


@pytest.mark.parametrize("ep_rank", [0, 5, 2**32 - 1])
def test_replicas_follow_rank_and_token_in_32_bits(backend, ep_rank):
    t, experts, shared, dup = 200, 8, 2, 3
    count = torch.tensor([1, 2, 3, 3, 1, 2, 3, 2, 3, 2], dtype=torch.int32)
    table = torch.arange(10 * dup, dtype=torch.int32).view(10, dup)
    unmapped = torch.empty(t, 4, dtype=torch.int64)
    idx, _ = _gate(
        torch.randn(t, experts), 4, shared, ep_rank=ep_rank, to_physical_map=table, logical_count=count,
        unmapped_topk_idx=unmapped,
    )  # fmt: skip
    for token in range(t):
        logical = [*unmapped[token].tolist(), experts, experts + 1]
        draw = (ep_rank + 23333 * token) % 2**32
        assert idx[token].tolist() == [int(table[e, draw % int(count[e])]) for e in logical]


@pytest.mark.slow
def test_replicas_wrap_around_at_32_bits():
    t = 200_000  # 23333 * t passes 2^32 at t = 184072
    x, weight = torch.zeros(1, 256).bfloat16().expand(t, -1).contiguous(), torch.zeros(4, 256).bfloat16()
    table = torch.arange(12, dtype=torch.int32).view(4, 3)
    count = torch.full((4,), 3, dtype=torch.int32)
    idx, _ = uk.bf16_mega_gate(x, weight, 1, False, 0, 1.0, 0, to_physical_map=table, logical_count=count)
    for token in (184_071, 184_072, 199_999):
        assert idx[token].item() == (23333 * token) % 2**32 % 3
    assert (23333 * 199_999) % 2**32 % 3 != (23333 * 199_999) % 3


def test_random_tokens(backend):
    t, k, shared = 4000, 6, 1
    x, weight = torch.randn(t, 256).bfloat16(), torch.randn(12, 256).bfloat16()
    unmapped, force = torch.full((t, k), 7), torch.ones(t, dtype=torch.bool)
    count = torch.tensor([1, 2] * 6 + [2], dtype=torch.int32)
    options = {
        "to_physical_map": torch.zeros(13, 2).int(), "logical_count": count, "unmapped_topk_idx": unmapped,
        "force_random": force,
    }  # fmt: skip
    idx, weights = uk.bf16_mega_gate(x, weight, k, True, shared, 2.5, 1, **options)
    num_physical = int(count.sum())
    assert (unmapped == -1).all()
    assert (idx.sort(dim=1).values.diff(dim=1) > 0).all()
    assert idx.min() == 0
    assert idx.max() == num_physical - 1
    assert (weights > 0).all()
    assert (weights <= 1).all()
    # Uniform in every slot: 4000 draws over 20 experts, 200 expected each, six standard deviations allowed.
    for slot in range(k + shared):
        counts = torch.bincount(idx[:, slot], minlength=num_physical)
        assert (counts - t / num_physical).abs().max() < 6 * (t / num_physical) ** 0.5
    assert abs(weights.mean().item() - 0.5) < 0.01
    assert abs(weights.var().item() - 1 / 12) < 0.005
    again = uk.bf16_mega_gate(x, weight, k, True, shared, 2.5, 1, **options)
    assert_bitwise_equal(again[0], idx)
    assert_bitwise_equal(again[1], weights)
    other_rank = uk.bf16_mega_gate(x, weight, k, True, shared, 2.5, 2, **options)
    assert (other_rank[0] != idx).any(1).float().mean() > 0.99


def test_random_tokens_without_a_map_include_shared_experts(backend):
    idx, _ = _gate(torch.randn(200, 4), 4, 1, force_random=torch.ones(200, dtype=torch.bool))
    assert (idx.sort(dim=1).values == torch.arange(5)).all()  # all five of five, in random order
    assert len(idx.unique(dim=0)) > 60


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_scores_are_refused_before_anything_is_written(backend, bad):
    x, weight = torch.ones(3, 256).bfloat16(), torch.ones(4, 256).bfloat16()
    x[1, 5] = bad
    out = (torch.full((3, 2), 7), torch.full((3, 2), 7.0))
    unmapped = torch.full((3, 2), 7)
    mask = torch.tensor([True, False, True])
    with pytest.raises(InvalidArgumentError, match=r"score of token 1 for expert 0 is (nan|inf).*Clear the rows"):
        uk.bf16_mega_gate(x, weight, 2, False, 0, 1.0, 0, mask=mask, unmapped_topk_idx=unmapped, out=out)
    assert all((one == 7).all() for one in (*out, unmapped))


def test_bad_tables_are_refused_before_anything_is_written(backend):
    out = (torch.full((1, 2), 7), torch.full((1, 2), 7.0))
    table = torch.zeros(4, 2).int()
    for count in (0, 3):
        counts = torch.tensor([1, 2, count, 1]).int()
        with pytest.raises(InvalidArgumentError, match=rf"logical_count\[2\] is {count}, expected 1 to 2"):
            _gate([[1.0, 2, 3, 4]], to_physical_map=table, logical_count=counts, out=out)
    for expert in (-1, 4):
        unmapped = torch.tensor([[0, expert]])
        fixed = torch.tensor([True])
        with pytest.raises(
            InvalidArgumentError, match=rf"unmapped_topk_idx\[0, 1\] is {expert}, expected an expert in 0..3"
        ):
            _gate([[1.0, 2, 3, 4]], fix_routing_mask=fixed, unmapped_topk_idx=unmapped, out=out)
    assert all((one == 7).all() for one in out)


def test_out_is_returned_and_zero_tokens_are_empty(backend):
    out = (torch.empty(2, 2, dtype=torch.int64), torch.empty(2, 2))
    idx, weights = _gate(torch.randn(2, 8), out=out)
    assert idx is out[0]
    assert weights is out[1]
    x, weight = torch.empty(0, 256).bfloat16(), torch.zeros(8, 256).bfloat16()
    idx, weights = uk.bf16_mega_gate(x, weight, 2, True, 1, 1.0, 0)
    assert idx.shape == weights.shape == (0, 3)
    assert (idx.dtype, weights.dtype) == (torch.int64, torch.float32)


def test_cpu_chooses_the_set_float64_would():
    x, weight = torch.randn(300, 4096).bfloat16(), (torch.randn(256, 4096) / 64).bfloat16()
    idx, _ = uk.bf16_mega_gate(x, weight, 6, False, 0, 1.0, 0)
    scores = torch.nn.functional.softplus(x.double() @ weight.double().T).sqrt()
    chosen = scores.gather(1, idx)
    threshold = scores.topk(6, dim=1).values[:, -1:]
    assert (chosen >= threshold - 1e-5 - 1e-5 * scores.abs().amax(1, keepdim=True)).all()
    assert (chosen.diff(dim=1) <= 1e-5).all()


@pytest.mark.parametrize("t", [2, 7, 48, 49, 130])
def test_tokens_do_not_depend_on_their_place(t):
    x, weight = torch.randn(1, 4096).bfloat16(), (torch.randn(108, 4096) / 64).bfloat16()
    alone = uk.bf16_mega_gate(x, weight, 6, False, 0, 2.5, 0)
    many = uk.bf16_mega_gate(x.repeat(t, 1), weight, 6, False, 0, 2.5, 0)
    for one, expected in zip(many, alone, strict=True):
        assert_bitwise_equal(one, expected.expand(t, -1).contiguous())


def test_huge_biases_do_not_reach_the_weights(backend):
    bias = torch.tensor([1e30, -1e30, 1e30, 0.0])
    idx, weights = _gate([[1.0, 2.0, 3.0, 4.0]], k=3, bias=bias)
    assert idx.tolist() == [[0, 2, 3]]
    torch.testing.assert_close(weights, torch.tensor([[1 / 8, 3 / 8, 4 / 8]]))


def test_ranks_in_cases_are_either_equal_or_clearly_apart():
    """Otherwise a backend could be failed for rounding float32 its own way."""
    for case in mega_gate_cases():
        if "smoke" in case.levels:
            t = case.tensors()
            logits = t["x"].double() @ t["weight"].double().T
            assert (logits == logits.float()).all()
            function = case.id.split("-")[0]
            scores = logits if function == "identity" else logits.sigmoid()
            if function == "sqrtsoftplus":
                scores = torch.nn.functional.softplus(logits).sqrt()
            rank = scores + t.get("bias", torch.zeros(1))
            if "image_bias" in t:
                rank = torch.where(t["image_token_mask"].unsqueeze(1), scores + t["image_bias"], rank)
            k = t["unmapped_topk_idx"].shape[1] if "unmapped_topk_idx" in t else 6
            gaps = -rank.sort(dim=1, descending=True).values[:, : k + 1].diff(dim=1)
            assert ((gaps == 0) | (gaps > 1e-6)).all(), case.id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_topk": 0}, r"num_topk is 0, expected 1 to 8"),
        ({"num_topk": 9}, r"num_topk is 9, expected 1 to 8"),
        ({"num_topk": 2.0}, r"num_topk is 2.0 \(float\)"),
        (
            {"weight": torch.zeros(64, 256).bfloat16(), "num_topk": 33},
            r"num_topk \+ num_shared_experts is 33.*at most 32",
        ),
        ({"ep_rank": -1}, r"ep_rank is -1, expected at least 0"),
        ({"routed_scaling_factor": math.inf}, r"routed_scaling_factor is inf, expected a finite number"),
        (
            {"scoring_func": "softmax"},
            r"scoring_func is 'softmax', expected one of 'sqrtsoftplus', 'sigmoid', 'identity'",
        ),
        ({"use_shared_as_routed": True}, r"num_shared_experts is 0 with use_shared_as_routed=True, expected 1 or 2"),
        ({"use_shared_as_routed": True, "num_shared_experts": 3}, r"num_shared_experts is 3 with .*expected 1 or 2"),
        ({"use_shared_as_routed": True, "num_shared_experts": 2, "num_topk": 3}, r"num_topk is 3 with 2 shared"),
        ({"use_shared_as_routed": True, "num_shared_experts": 1, "num_topk": 3}, r"num_topk is 3 with 1 shared"),
        ({"use_shared_as_routed": 1}, r"use_shared_as_routed is 1 \(int\), expected True or False"),
        (
            {"x": torch.zeros(2, 128).bfloat16(), "weight": torch.zeros(8, 128).bfloat16()},
            r"hidden is 128 .*multiple of 256",
        ),
        ({"weight": torch.zeros(6, 256).bfloat16()}, r"number of experts is 6 .*multiple of 4"),
        ({"weight": torch.zeros(516, 256).bfloat16()}, r"number of experts is 516, expected 4 to 512"),
        ({"weight": torch.zeros(8, 512).bfloat16()}, r"weight has shape \(8, 512\), expected \(8, 256\)"),
        ({"x": torch.zeros(2, 256)}, r"x has dtype torch.float32, expected bfloat16"),
        ({"mask": torch.ones(2)}, r"mask has dtype torch.float32, expected bool"),
        ({"bias": torch.ones(4)}, r"bias has shape \(4,\), expected \(8,\)"),
        ({"image_bias": torch.ones(8)}, r"image_bias given without image_token_mask"),
        ({"image_token_mask": torch.ones(2).bool()}, r"image_token_mask given without image_bias"),
        ({"to_physical_map": torch.ones(8, 1).int()}, r"to_physical_map given without logical_count"),
        ({"logical_count": torch.ones(8).int()}, r"logical_count given without to_physical_map"),
        (
            {"to_physical_map": torch.ones(7, 1).int(), "logical_count": torch.ones(8).int()},
            r"to_physical_map has shape \(7, 1\), expected \(8, 1\)",
        ),
        (
            {"to_physical_map": torch.ones(8, 0).int(), "logical_count": torch.ones(8).int()},
            r"to_physical_map has shape \(8, 0\), expected \(8, 1\)",
        ),
        ({"fix_routing_mask": torch.ones(2).bool()}, r"fix_routing_mask given without unmapped_topk_idx"),
        ({"unmapped_topk_idx": torch.ones(2, 2).int()}, r"unmapped_topk_idx has dtype torch.int32, expected int64"),
        ({"unmapped_topk_idx": torch.ones(2, 3).long()}, r"unmapped_topk_idx has shape \(2, 3\), expected \(2, 2\)"),
        ({"out": torch.ones(2, 2)}, r"out is a Tensor, expected a pair"),
        ({"out": (torch.ones(2, 2).int(), torch.ones(2, 2))}, r"out\[0\] has dtype torch.int32, expected int64"),
        ({"out": (torch.ones(2, 2).long(), torch.ones(2, 3))}, r"out\[1\] has shape \(2, 3\), expected \(2, 2\)"),
    ],
)
def test_refuses(change, message):
    arguments = {
        "x": torch.zeros(2, 256).bfloat16(), "weight": torch.zeros(8, 256).bfloat16(), "num_topk": 2,
        "use_shared_as_routed": False, "num_shared_experts": 0, "routed_scaling_factor": 1.0, "ep_rank": 0,
    }  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=f"bf16_mega_gate: {message}"):
        uk.bf16_mega_gate(**{**arguments, **change})


def test_refuses_outputs_that_overlap():
    idx = torch.empty(2, 2, dtype=torch.int64)
    with pytest.raises(InvalidArgumentError, match=r"unmapped_topk_idx shares memory with out\[0\]"):
        _gate(torch.randn(2, 8), unmapped_topk_idx=idx, out=(idx, torch.empty(2, 2)))


def test_wrong_kind_of_argument_is_a_type_error():
    with pytest.raises(ArgumentTypeError, match=r"x is a float, expected a torch\.Tensor"):
        uk.bf16_mega_gate(1.0, torch.zeros(8, 256).bfloat16(), 2, False, 0, 1.0, 0)
