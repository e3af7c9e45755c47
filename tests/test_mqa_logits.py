"""MQA logits on every backend against their definition: windows, page addressing, calling conventions of every generation."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.errors import InvalidArgumentError
from unikernels.testing import calc_diff

BACKENDS = [name for name in _registry.backends_with("mqa_logits") if _registry.available_backends()[name] is None]
E4M3 = torch.float8_e4m3fn
KINDS = [
    *(("fp8", "plain", dim) for dim in (32, 64, 128)),
    *(("fp8", "mx", dim) for dim in (32, 64, 128)),
    *(("fp4", "mx", dim) for dim in (64, 128)),
    *((kind, "mx16", dim) for kind in ("fp8", "fp4") for dim in (64, 128)),
]


@pytest.fixture(params=BACKENDS)
def backend(request):
    with uk.use_backend(request.param):
        yield request.param


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def quantise(x, kind, mode):
    """Return data, scales and what they stand for, of float32 [n, dim]; scales without the word axis except for int16."""
    if mode == "plain":
        data, sf = uk.per_token_cast_to_fp8(x, False, x.shape[1])
        return data, sf.squeeze(1), data.float() * sf
    if kind == "fp4":
        data, sf = uk.per_token_cast_to_fp4(x, True, 32)
        values = uk.cast_back_from_fp4(data, sf, 32)
    else:
        data, sf = uk.per_token_cast_to_fp8(x, True, 32)
        values = data.float() * sf.repeat_interleave(32, 1)
    exponents = (sf.view(torch.int32) >> 23).to(torch.uint8)
    if mode == "mx16":
        return data, exponents.view(torch.int16), values
    # Unused bytes of a word are junk on purpose: nobody may look at them.
    word = torch.full((len(x), 4), 0xEE, dtype=torch.uint8)
    word[:, : exponents.shape[1]] = exponents
    return data, word.view(torch.int32).squeeze(1), values


def make_queries(kind, mode, leading, heads, dim, seed=1):
    x = torch.randn(*leading, heads, dim, generator=generator(seed))
    if mode == "plain":
        data = x.to(E4M3)
        return (data, None), data.float()
    data, sf, values = quantise(x.flatten(0, -2), kind, mode)
    shape = (*leading, heads)
    return (data.unflatten(0, shape), sf.unflatten(0, shape)), values.unflatten(0, shape)


def make_keys(kind, mode, n, dim, seed=2):
    return quantise(torch.randn(n, dim, generator=generator(seed)), kind, mode)


def pack_pages(data, sf, page_kv):
    """Planar pages, written byte by byte: the data of all keys of a page, then their scales."""
    data_bytes = data.view(torch.uint8).reshape(len(data), -1)
    scale_bytes = sf.reshape(len(sf), -1).contiguous().view(torch.uint8)
    pages = []
    for first in range(0, len(data), page_kv):
        rows = slice(first, first + page_kv)
        pages.append(torch.cat([data_bytes[rows].flatten(), scale_bytes[rows].flatten()]))
    return torch.stack(pages).view(len(pages), page_kv, 1, -1)


def make_weights(rows, heads, dtype=torch.float32):
    per_16_bytes = 16 // dtype.itemsize
    pitch = -(-heads // per_16_bytes) * per_16_bytes
    return torch.randn(rows, pitch, generator=generator(3)).to(dtype)[:, :heads]


def definition(q, keys, weights):
    """All pairs: float64 [rows, keys]."""
    scores = torch.einsum("qhd,kd->qhk", q.double(), keys.double()).relu()
    return torch.einsum("qh,qhk->qk", weights.double(), scores)


def assert_close(actual, expected, tolerance):
    assert torch.isfinite(actual).all()
    assert float(calc_diff(actual.double(), expected)) <= tolerance
    assert actual.double().allclose(expected, rtol=2e-2 if actual.dtype is torch.bfloat16 else 1e-3, atol=1e-2)


def dense(kind="fp8", mode="plain", s=4, n=70, heads=32, dim=64, dtype=torch.float32):
    """Return (q, kv, weights) and the definition's logits of all pairs."""
    q, q_values = make_queries(kind, mode, (s,), heads, dim)
    data, sf, k_values = make_keys(kind, mode, n, dim)
    weights = make_weights(s, heads, dtype)
    return (q, (data, sf), weights), definition(q_values, k_values, weights)


@pytest.mark.parametrize(("kind", "mode", "dim"), KINDS)
@pytest.mark.parametrize("heads", [4, 8, 12, 16, 32, 64, 128])
def test_every_kind_dim_and_number_of_heads(backend, kind, mode, dim, heads):
    # FC-32: logits were wrong for some dims only, so each is compared with the definition, not with itself.
    args, expected = dense(kind, mode, 3, 67, heads, dim)
    logits = uk.fp8_fp4_mqa_logits(*args, int32([0, 0, 0]), int32([67, 67, 67]), 67)
    assert_close(logits, expected, 5e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_full_clean_and_compressed(backend, dtype):
    args, expected = dense(s=6, n=200, dtype=dtype)
    starts, ends = [0, 3, 64, 130, 199, 10], [200, 5, 129, 130, 200, 150]
    clean = uk.fp8_fp4_mqa_logits(*args, int32(starts), int32(ends))
    compressed = uk.fp8_fp4_mqa_logits(*args, int32(starts), int32(ends), 200)
    assert clean.dtype == compressed.dtype == dtype
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        inside = clean[i, start:end]
        if start < end:
            assert_close(inside, expected[i, start:end], 5e-6 if dtype is torch.float32 else 3e-5)
        assert (clean[i, :start] == -torch.inf).all()
        assert (clean[i, end:] == -torch.inf).all()
        assert torch.equal(compressed[i, : end - start], inside)


def test_a_full_form_without_clean_up_has_the_same_logits(backend):
    args, _ = dense(s=2, n=40)
    starts, ends = int32([5, 0]), int32([30, 12])
    clean = uk.fp8_fp4_mqa_logits(*args, starts, ends)
    raw = uk.fp8_fp4_mqa_logits(*args, starts, ends, clean_logits=False)
    assert raw.shape == (2, 40)
    inside = clean != -torch.inf
    assert torch.equal(raw[inside], clean[inside])


@pytest.mark.parametrize(("starts", "ends"), [([3, 0], [3, 4]), ([4, 0], [2, 4])])
def test_empty_windows_are_minus_infinity(backend, starts, ends):
    # FC-33
    args, expected = dense(s=2, n=4)
    logits = uk.fp8_fp4_mqa_logits(*args, int32(starts), int32(ends), clean_logits=True)
    assert (logits[0] == -torch.inf).all()
    assert_close(logits[1], expected[1], 5e-6)


def test_all_windows_empty(backend):
    args, _ = dense(s=2, n=4)
    assert (uk.fp8_fp4_mqa_logits(*args, int32([4, 3]), int32([0, 3])) == -torch.inf).all()


def test_nan_keys_outside_a_window_do_not_leak_in(backend):
    (q, (data, sf), weights), expected = dense(s=2, n=64)
    data = data.clone()
    data.view(torch.uint8)[20:] = 0x7F  # NaN
    logits = uk.fp8_fp4_mqa_logits(q, (data, sf), weights, int32([0, 5]), int32([20, 20]))
    assert_close(logits[0, :20], expected[0, :20], 5e-6)
    assert_close(logits[1, 5:20], expected[1, 5:20], 5e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 255, 256, 257, 513])
def test_rows_start_at_multiples_of_1024_bytes(backend, columns, dtype):
    args, _ = dense(s=2, n=16, dtype=dtype)
    logits = uk.fp8_fp4_mqa_logits(*args, int32([0, 0]), int32([1, 1]), columns)
    assert logits.shape == (2, columns)
    assert logits.stride(1) == 1
    pitch = logits.stride(0) * dtype.itemsize
    assert pitch % 1024 == 0
    assert 0 <= pitch - columns * dtype.itemsize < 1024


@pytest.mark.parametrize(
    ("weights", "asked", "got"), [("f", None, "f"), ("b", None, "b"), ("f", "b", "b"), ("b", "f", "f")]
)
def test_logits_dtype(backend, weights, asked, got):
    of = {"f": torch.float32, "b": torch.bfloat16, None: None}
    args, expected = dense(s=2, n=16, dtype=of[weights])
    logits = uk.fp8_fp4_mqa_logits(*args, int32([0, 0]), int32([16, 16]), 16, logits_dtype=of[asked])
    assert logits.dtype is of[got]
    assert_close(logits, expected, 3e-5)


def test_calling_forms_of_all_generations_agree(backend):
    (q, kv, weights), _ = dense(s=3, n=50)
    starts, ends = int32([0, 7, 20]), int32([50, 9, 20])
    clean = uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends)
    assert torch.equal(clean, uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends, True))
    assert torch.equal(clean, uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends, True, 0, logits_dtype=torch.float32))
    assert torch.equal(clean, uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends, clean_logits=True, max_seqlen_k=0))
    assert torch.equal(clean, uk.fp8_fp4_mqa_logits(list(q), list(kv), weights, starts, ends, 0))
    assert torch.equal(clean, uk.fp8_mqa_logits(q[0], kv, weights, starts, ends))
    assert torch.equal(clean, uk.fp8_mqa_logits(q[0], (kv[0], kv[1].unsqueeze(1)), weights, starts, ends, True, 0))
    compressed = uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends, 50)
    schedule = uk.get_mqa_logits_metadata(starts, ends, 50, 32)
    assert schedule.dtype is torch.int32
    others = [
        uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends, 50, schedule),
        uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends, False, 50),
        uk.fp8_fp4_mqa_logits(q, kv, weights, starts, ends, max_seqlen_k=50, clean_logits=False),
        uk.fp8_mqa_logits(q[0], kv, weights, starts, ends, clean_logits=False, max_seqlen_k=50),
    ]
    for other in others:
        assert other.shape == (3, 50)
        assert torch.equal(compressed[0], other[0])
        assert torch.equal(compressed[1, :2], other[1, :2])


def test_clean_logits_twice_or_with_the_compressed_form(backend):
    args, _ = dense(s=1, n=4)
    windows = (int32([0]), int32([4]))
    with pytest.raises(InvalidArgumentError, match="sixth argument is a bool, which means clean_logits"):
        uk.fp8_fp4_mqa_logits(*args, *windows, True, clean_logits=False)
    for call in (uk.fp8_fp4_mqa_logits, lambda q, *rest, **more: uk.fp8_mqa_logits(q[0], *rest, **more)):
        with pytest.raises(InvalidArgumentError, match="clean_logits=True with max_seqlen_k=4: the compressed form"):
            call(*args, *windows, clean_logits=True, max_seqlen_k=4)


@pytest.mark.parametrize(("s", "n"), [(0, 5), (3, 0), (0, 0)])
def test_zero_queries_or_keys(backend, s, n):
    # FC-34
    q = (torch.empty(s, 64, 128, dtype=E4M3), None)
    kv = (torch.empty(n, 128, dtype=E4M3), torch.empty(n))
    windows = (torch.zeros(s, dtype=torch.int32),) * 2
    full = uk.fp8_fp4_mqa_logits(q, kv, make_weights(s, 64), *windows)
    assert (full.shape, full.dtype) == ((s, n), torch.float32)
    compressed = uk.fp8_fp4_mqa_logits(q, kv, make_weights(s, 64, torch.bfloat16), *windows, 7)
    assert (compressed.shape, compressed.dtype) == ((s, 7), torch.bfloat16)


def test_windows_beyond_the_keys_and_columns_are_cut(backend):
    # Never a read or write out of bounds, whatever the caller guarantees.
    args, expected = dense(s=3, n=20)
    logits = uk.fp8_fp4_mqa_logits(*args, int32([0, 15, -4]), int32([100, 100, 10]))
    assert_close(logits[0], expected[0], 5e-6)
    assert_close(logits[1, 15:], expected[1, 15:], 5e-6)
    assert_close(logits[2, :10], expected[2, :10], 5e-6)
    compressed = uk.fp8_fp4_mqa_logits(*args, int32([0, 15, 3]), int32([20, 100, 20]), 8)
    assert_close(compressed[0], expected[0, :8], 5e-6)
    assert_close(compressed[1, :5], expected[1, 15:], 5e-6)
    assert_close(compressed[2], expected[2, 3:11], 5e-6)


def test_results_repeat_bit_for_bit(backend):
    args, _ = dense("fp8", "mx", 9, 700, 16, 128, torch.bfloat16)
    windows = (int32([0] * 9), int32([700] * 9))
    first = uk.fp8_fp4_mqa_logits(*args, *windows, 700)
    for _ in range(3 if backend == "reference" else 20):
        assert torch.equal(first, uk.fp8_fp4_mqa_logits(*args, *windows, 700))


def test_a_logit_does_not_depend_on_its_neighbours(backend):
    # The sparse functions promise the bits of the dense one; that needs logits independent of their place.
    (q, (data, sf), weights), _ = dense("fp8", "mx", 40, 900, 32, 128)
    starts, ends = [0] * 40, [900] * 40
    whole = uk.fp8_fp4_mqa_logits(q, (data, sf), weights, int32(starts), int32(ends), 900)
    for i, start, end in ((0, 0, 900), (17, 31, 32), (39, 777, 900), (5, 100, 163)):
        part = slice(start, end)
        alone = uk.fp8_fp4_mqa_logits(
            (q[0][i : i + 1], q[1][i : i + 1]),
            (data[part], sf[part]),
            weights[i : i + 1],
            int32([0]),
            int32([end - start]),
        )
        assert torch.equal(alone[0], whole[i, part])


@pytest.mark.parametrize("function", ["get_mqa_logits_metadata", "fp8_fp4_mqa_logits"])
def test_strided_positions_are_read_correctly(backend, function):
    args, _ = dense(s=3, n=30)
    starts, ends = int32([0, 5, 9]), int32([30, 6, 20])
    strided = [torch.stack([one, one + 1000], 1).flatten()[::2] for one in (starts, ends)]
    if function == "get_mqa_logits_metadata":
        assert torch.equal(
            uk.get_mqa_logits_metadata(*strided, 30, 32), uk.get_mqa_logits_metadata(starts, ends, 30, 32)
        )
    else:
        assert torch.equal(uk.fp8_fp4_mqa_logits(*args, *strided), uk.fp8_fp4_mqa_logits(*args, starts, ends))


def test_meta_tensors_give_the_shape():
    args, _ = dense(s=2, n=300)
    (q, scale), (data, sf), weights = args
    assert scale is None
    moved = ((q.to("meta"), None), (data.to("meta"), sf.to("meta")), weights.to("meta"))
    logits = uk.fp8_fp4_mqa_logits(*moved, int32([0, 0]).to("meta"), int32([1, 1]).to("meta"))
    assert (logits.device.type, logits.shape, logits.stride()) == ("meta", (2, 300), (512, 1))
