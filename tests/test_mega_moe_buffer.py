"""Mega MoE without its arithmetic: the buffer and its views, argument rules of every function, the token tile."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import environment
from unikernels.errors import ArgumentTypeError, InvalidArgumentError
from unikernels.mega_moe.layout import VIEWS, get_symm_buffer_size_for_mega_moe, get_token_alignment_for_mega_moe

EXPERTS, TOPK, HIDDEN, WIDTH = 4, 3, 256, 128


@pytest.fixture(params=["cpu", "reference"])
def backend(request):
    with uk.use_backend(request.param):
        yield request.param


def raw_weights():
    """Return random FP4 (l1, l2) with packed MN-major scales."""
    generator = torch.Generator().manual_seed(0)
    layers = []
    for num_rows, num_columns in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH)):
        values = torch.randn(EXPERTS * num_rows, num_columns, generator=generator) / num_columns**0.5
        data, sf = uk.per_token_cast_to_fp4(values, True, 32)
        words = uk.pack_ue8m0_to_int(sf).view(EXPERTS, num_rows, -1)
        layers.append((data.view(EXPERTS, num_rows, -1), words.mT.contiguous().mT))
    return tuple(layers)


def make_buffer(num_tokens=8, num_shared=0, mma_type="fp8xfp4", **sizes):
    arguments = {"num_experts": EXPERTS, "num_topk": TOPK, "hidden": HIDDEN, "intermediate_hidden": WIDTH, **sizes}
    return uk.SymmBuffer(
        None, num_max_tokens_per_rank=num_tokens, num_shared_experts=num_shared, mma_type=mma_type, **arguments
    )


def fill(buffer, x, topk_idx, topk_weights):
    """Write the inputs of a call and return its number of tokens."""
    count = len(x)
    buffer.x[:count], buffer.x_sf[:count] = uk.per_token_cast_to_fp8(x, True, 32, use_packed_ue8m0=True)
    buffer.topk_idx[:count], buffer.topk_weights[:count] = topk_idx, topk_weights
    return count


def random_inputs(num_tokens):
    """Return x, expert ids (some -1), weights."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_tokens, HIDDEN, generator=generator)
    topk_idx = torch.randint(-1, EXPERTS, (num_tokens, TOPK), generator=generator)
    return x, topk_idx, torch.rand(num_tokens, TOPK, generator=generator)


def call(buffer, weights, count, **options):
    """Call with raw weights; returns y."""
    y = torch.full((count, buffer.hidden), 7.0, dtype=torch.bfloat16)
    uk.fp8_fp4_mega_moe(y, *uk.transform_weights_for_mega_moe(*weights), buffer, **options)
    return y


# ---- buffer ----


@pytest.mark.parametrize("mma_type", ["fp8xfp4", "fp8xfp8", "bf16xbf16"])
def test_views(backend, mma_type):
    buffer = make_buffer(17, 2, mma_type, activation="swiglu")
    acts = torch.bfloat16 if mma_type == "bf16xbf16" else torch.float8_e4m3fn
    tokens, rows = 24, 0 if mma_type == "bf16xbf16" else 3 * 128
    scales = 0 if mma_type == "bf16xbf16" else tokens
    expected = {
        "x": ((tokens, HIDDEN), acts),
        "x_sf": ((scales, HIDDEN // 128), torch.int32),
        "topk_idx": ((tokens, TOPK), torch.int64),
        "topk_weights": ((tokens, TOPK), torch.float32),
        "shared_l1_acts": ((tokens, HIDDEN), acts),
        "shared_l1_acts_sf": ((rows, HIDDEN // 128), torch.int32),
        "shared_l2_acts": ((tokens, 2 * WIDTH), acts),
        "shared_l2_acts_sf": ((rows, 2 * WIDTH // 128), torch.int32),
    }
    for name, (shape, dtype) in expected.items():
        view = getattr(buffer, name)
        assert (tuple(view.shape), view.dtype) == (shape, dtype), name
        assert view.is_contiguous() or view.numel() == 0 or view.stride() == (1, rows), name
        if view.numel():
            assert buffer.buffer.data_ptr() <= view.data_ptr() < buffer.buffer.data_ptr() + buffer.num_bytes
    if rows:
        assert buffer.shared_l1_acts_sf.stride() == buffer.shared_l2_acts_sf.stride() == (1, rows)
    assert buffer.shared_l1_acts.data_ptr() == buffer.x.data_ptr()
    assert (buffer.buffer.dtype, buffer.buffer.ndim) == (torch.int8, 1)
    assert not buffer.buffer.any()
    assert buffer.handle.buffer_ptrs == (buffer.buffer.data_ptr(),)
    names = "num_experts num_topk hidden intermediate_hidden num_shared_experts mma_type activation group base"
    values = [getattr(buffer, name) for name in names.split()]
    assert values == [EXPERTS, TOPK, HIDDEN, WIDTH, 2, mma_type, "swiglu", None, None]
    assert (buffer.num_max_tokens_per_rank, get_token_alignment_for_mega_moe()) == (24, 8)
    size, slicer = get_symm_buffer_size_for_mega_moe(1, EXPERTS, 24, TOPK, HIDDEN, WIDTH, mma_type, "swiglu", 2)
    assert size == buffer.num_bytes
    for name, view in zip(VIEWS, slicer(buffer.buffer), strict=True):
        ours = getattr(buffer, name)
        described = [(one.shape, one.stride(), one.dtype, one.data_ptr()) for one in (view, ours)]
        assert described[0] == described[1], name


def test_views_do_not_overlap():
    buffer = make_buffer(8, 1)
    views = {name: getattr(buffer, name) for name in (*VIEWS, "combine_slots") if name != "shared_l1_acts"}
    views = {name: view if view.is_contiguous() else view.mT for name, view in views.items() if view.numel()}
    views["shared_l2_acts_sf"] = buffer.shared_l2_acts_sf.squeeze(1)  # one column: unit stride is its other dimension
    for value, view in enumerate(views.values(), 1):
        view.view(torch.uint8).fill_(value)
    for value, (name, view) in enumerate(views.items(), 1):
        assert bool((view.view(torch.uint8) == value).all()), name


def test_base_shares_memory():
    large = make_buffer(16, 1)
    small = uk.SymmBuffer(None, EXPERTS, 8, TOPK, HIDDEN, WIDTH, base=large)
    assert small.x.data_ptr() == large.x.data_ptr()
    assert small.buffer.numel() == small.num_bytes < large.num_bytes
    own = make_buffer(8)
    count = fill(own, *random_inputs(5))
    expected = call(own, raw_weights(), count)
    large.destroy()
    assert torch.equal(call(small, raw_weights(), fill(small, *random_inputs(5))), expected)
    with pytest.raises(InvalidArgumentError, match=rf"base has {small.num_bytes} bytes, this buffer needs"):
        uk.SymmBuffer(None, EXPERTS, 16, TOPK, HIDDEN, WIDTH, base=small)
    with pytest.raises(InvalidArgumentError, match="base has been destroyed"):
        uk.SymmBuffer(None, EXPERTS, 8, TOPK, HIDDEN, WIDTH, base=large)
    with pytest.raises(ArgumentTypeError, match="base is a int"):
        uk.SymmBuffer(None, EXPERTS, 8, TOPK, HIDDEN, WIDTH, base=3)


def test_destroy():
    buffer = make_buffer()
    buffer.destroy()
    buffer.destroy()
    assert all(getattr(buffer, name) is None for name in ("buffer", "handle", "group", *VIEWS))
    weights = uk.transform_weights_for_mega_moe(*raw_weights())
    with pytest.raises(InvalidArgumentError, match="sym_buffer has been destroyed"):
        uk.fp8_fp4_mega_moe(torch.empty(1, HIDDEN, dtype=torch.bfloat16), *weights, buffer)


def test_debug_variable_zeroes_the_buffer(backend, monkeypatch):
    buffer = make_buffer()
    count = fill(buffer, *random_inputs(3))
    expected = call(buffer, raw_weights(), count)
    assert buffer.buffer.any()
    monkeypatch.setenv("DG_COMM_KERNEL_DEBUG", "1")
    environment.forget()
    try:
        assert torch.equal(call(buffer, raw_weights(), count), expected)
        assert not buffer.buffer.any()
    finally:
        monkeypatch.undo()
        environment.forget()


GOOD_SIZES = {
    "group": None, "num_experts": 8, "num_max_tokens_per_rank": 8, "num_topk": 2, "hidden": 128, "intermediate_hidden": 128
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 192}, "hidden is 192, expected a multiple of 128"),
        ({"intermediate_hidden": 64}, "intermediate_hidden is 64, expected a multiple of 128"),
        ({"num_experts": 2049}, "num_experts is 2049, expected 1 to 2048"),
        ({"num_experts": 513}, "513 experts on each, expected at most 512"),
        ({"num_topk": 33}, "num_topk is 33, expected at most 32"),
        (
            {"num_topk": 32, "num_shared_experts": 1},
            "num_topk is 32 plus one slot for shared experts, expected at most 32",
        ),
        ({"num_topk": 0}, "num_topk is 0, expected at least 1"),
        ({"num_max_tokens_per_rank": 0}, "num_max_tokens_per_rank is 0, expected at least 1"),
        ({"num_shared_experts": -1}, "num_shared_experts is -1, expected at least 0"),
        ({"hidden": 128.0}, r"hidden is 128.0 \(float\), expected a Python int"),
        ({"mma_type": "fp4xfp4"}, "mma_type is 'fp4xfp4', expected one of 'fp8xfp4', 'fp8xfp8', 'bf16xbf16'"),
        ({"activation": "gelu"}, "activation is 'gelu', expected 'swiglu'"),
        ({"group": "world"}, "group is a str, expected a torch.distributed.ProcessGroup, or None"),
    ],
)
def test_sizes_are_checked(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        uk.get_symm_buffer_for_mega_moe(**{**GOOD_SIZES, **changes})


def test_use_fp8_dispatch_is_deprecated():
    with pytest.warns(DeprecationWarning, match="use_fp8_dispatch is deprecated"):
        assert uk.get_symm_buffer_for_mega_moe(**GOOD_SIZES, use_fp8_dispatch=True).num_shared_experts == 0
    with pytest.warns(DeprecationWarning, match="use_fp8_dispatch"):  # the position of DeepGEMM 2.6.1
        assert uk.get_symm_buffer_for_mega_moe(*GOOD_SIZES.values(), True).num_shared_experts == 0
    with pytest.raises(InvalidArgumentError, match="use_fp8_dispatch=False contradicts mma_type='fp8xfp4'"):
        uk.get_symm_buffer_for_mega_moe(**GOOD_SIZES, use_fp8_dispatch=False)


# ---- arguments of a call ----


def good_call(**changes):
    """Make a right call, or the same with changed arguments."""
    buffer = changes.pop("buffer", None) or make_buffer(num_shared=changes.pop("num_shared", 0))
    count = fill(buffer, *random_inputs(2))
    l1, l2 = uk.transform_weights_for_mega_moe(*raw_weights())
    y = torch.empty(count, HIDDEN, dtype=torch.bfloat16)
    arguments = {"y": y, "l1_weights": l1, "l2_weights": l2, "sym_buffer": buffer}
    getattr(uk, changes.pop("function", "fp8_fp4_mega_moe"))(**{**arguments, **changes})


def test_good_call():
    good_call(recipe=[1, 1, 32], fast_math=False, activation="swiglu", activation_clamp=2)


SHARED = {
    "shared_l1_weights": (
        torch.zeros(2, WIDTH, HIDDEN).to(torch.float8_e4m3fn),
        torch.zeros(2, WIDTH, 2, dtype=torch.int32),
    ),
    "shared_l2_weights": (
        torch.zeros(1, HIDDEN, WIDTH).to(torch.float8_e4m3fn),
        torch.zeros(1, HIDDEN, 1, dtype=torch.int32),
    ),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sym_buffer": None}, "sym_buffer is a NoneType, expected a SymmBuffer"),
        ({"recipe": (1, 1, 128)}, r"recipe is \(1, 1, 128\), expected \(1, 1, 32\)"),
        ({"activation": "silu"}, "activation is 'silu'"),
        ({"activation_clamp": "1"}, r"activation_clamp is '1' \(str\), expected a Python number"),
        ({"activation_clamp": True}, r"activation_clamp is True \(bool\), expected a Python number"),
        ({"fast_math": 1}, r"fast_math is 1 \(int\), expected True or False"),
        ({"y": torch.empty(2, HIDDEN)}, "y has dtype torch.float32, expected bfloat16"),
        ({"y": torch.empty(2, 128, dtype=torch.bfloat16)}, r"y has shape \(2, 128\), expected \(2, 256\)"),
        ({"y": None}, "y is a NoneType, expected a torch.Tensor"),
        ({"cumulative_local_expert_recv_stats": torch.zeros(4)}, "has dtype torch.float32, expected int32"),
        (
            {"cumulative_local_expert_recv_stats": torch.zeros(3, dtype=torch.int32)},
            r"has shape \(3,\), expected \(4,\)",
        ),
        (
            {"shared_l1_weights": torch.zeros(4, dtype=torch.int32)},
            "pass cumulative_local_expert_recv_stats by keyword",
        ),
        ({"shared_l1_weights": SHARED["shared_l1_weights"]}, "shared_l1_weights is given without shared_l2_weights"),
        (SHARED, "are given, but sym_buffer has num_shared_experts=0"),
        (
            {"num_shared": 1},
            "sym_buffer has num_shared_experts=1, but shared_l1_weights and shared_l2_weights are missing",
        ),
        ({"num_shared": 2, **SHARED}, r"shared_l1_weights\[0\] has shape \(2, 128, 256\).*expected \(2, 256, 256\)"),
        ({"function": "bf16_mega_moe"}, "sym_buffer has mma_type 'fp8xfp4', expected bf16xbf16"),
    ],
)
def test_arguments_are_checked(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        good_call(**changes)


def test_y_inside_the_buffer_is_refused():
    buffer = make_buffer()
    with pytest.raises(InvalidArgumentError, match="y shares memory with sym_buffer"):
        good_call(buffer=buffer, y=buffer.combine_slots[0, :2])


def test_expert_ids_are_checked(backend):
    for bad in (-2, EXPERTS):
        buffer = make_buffer()
        count = fill(buffer, *random_inputs(3))
        buffer.topk_idx[2, 1] = bad
        buffer.topk_idx[5, 0] = 99  # behind the tokens: not looked at
        with pytest.raises(
            InvalidArgumentError, match=rf"topk_idx\[2, 1\] is {bad}, expected -1 \(no expert\) or an expert 0..3"
        ):
            call(buffer, raw_weights(), count)


# ---- token tile ----


@pytest.mark.parametrize(
    ("num_tokens", "num_ranks", "num_experts", "num_topk", "expected"),
    [
        # With as many slots as experts, num_tokens is the mean number of tokens per expert.
        (0, 1, 8, 8, 16), (10, 1, 8, 8, 16), (11, 1, 8, 8, 32), (24, 1, 8, 8, 32), (25, 1, 8, 8, 64), (56, 1, 8, 8, 64),
        (57, 1, 8, 8, 128), (117, 1, 8, 8, 128), (118, 1, 8, 8, 192), (178, 1, 8, 8, 192), (179, 1, 8, 8, 128),
        (226, 1, 8, 8, 128), (179, 1, 14, 14, 240), (400, 1, 14, 14, 240), (480, 1, 14, 14, 192),
        (1024, 8, 384, 6, 192), (8192, 8, 384, 6, 240),
    ],
)  # fmt: skip
def test_block_m(num_tokens, num_ranks, num_experts, num_topk, expected):
    assert uk.get_block_m_for_mega_moe(num_ranks, num_experts, 8192, num_tokens, num_topk, "fp8xfp4") == expected


def test_block_m_arguments_are_checked():
    with pytest.raises(InvalidArgumentError, match="num_experts is 0, expected at least 1"):
        uk.get_block_m_for_mega_moe(1, 0, 8, 8, 2, "fp8xfp4")
    with pytest.raises(InvalidArgumentError, match="mma_type is 'x'"):
        uk.get_block_m_for_mega_moe(1, 8, 8, 8, 2, "x")
