"""MQA logits over paged keys on every backend: page addressing, lengths, varlen batches, calling forms."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.testing import calc_diff

BACKENDS = [
    name for name in _registry.backends_with("paged_mqa_logits") if _registry.available_backends()[name] is None
]
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


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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
    word = torch.full((len(x), 4), 0xEE, dtype=torch.uint8)
    word[:, : exponents.shape[1]] = exponents
    return data, word.view(torch.int32).squeeze(1), values


def make_queries(kind, mode, leading, heads, dim):
    x = random(*leading, heads, dim, seed=1)
    if mode == "plain":
        data = x.to(E4M3)
        return (data, None), data.float()
    data, sf, values = quantise(x.flatten(0, -2), kind, mode)
    shape = (*leading, heads)
    return (data.unflatten(0, shape), sf.unflatten(0, shape)), values.unflatten(0, shape)


def pack_pages(data, sf, page_kv):
    """Planar pages, written byte by byte: the data of all keys of a page, then their scales."""
    data_bytes = data.view(torch.uint8).reshape(len(data), -1)
    scale_bytes = sf.reshape(len(sf), -1).contiguous().view(torch.uint8).reshape(len(sf), -1)
    pages = []
    for first in range(0, len(data), page_kv):
        rows = slice(first, first + page_kv)
        pages.append(torch.cat([data_bytes[rows].flatten(), scale_bytes[rows].flatten()]))
    return torch.stack(pages).view(len(pages), page_kv, 1, -1)


class Paged:
    """Arguments of a paged call, and the logits of every token against every key of its sequence by the definition."""

    def __init__(
        self,
        lens,
        *,
        kind="fp8",
        mode="plain",
        heads=16,
        dim=64,
        page_kv=64,
        width=None,
        rows=None,
        dtype=torch.float32,
    ):
        lens = torch.tensor(lens)
        batch, next_n = lens.shape
        requests = list(range(batch)) if rows is None else rows
        num_requests = max(requests, default=0) + 1
        width = width or max(1, -(-int(lens.max()) // page_kv))
        num_pages = num_requests * width + 2
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(5))[: num_requests * width]
        self.q, q_values = make_queries(kind, mode, (batch, next_n), heads, dim)
        data, sf, key_values = quantise(random(num_pages * page_kv, dim, seed=2), kind, mode)
        self.kv_cache = pack_pages(data, sf, page_kv)
        pitch = -(-heads // 8) * 8
        self.weights = random(batch * next_n, pitch, seed=3).to(dtype)[:, :heads]
        self.context_lens = lens.int()
        self.block_table = order.int().view(num_requests, width)[requests]
        self.indices = None if rows is None else int32(rows)
        self.page_kv = page_kv
        self.max_context_len = max(int(lens.max()), 1)
        self.next_n, self.q_values, self.key_values = next_n, q_values.flatten(0, 1), key_values

    def expected(self, row, length):
        """Logits of one token against the first `length` keys of its sequence."""
        table, j = self.block_table[row // self.next_n].long(), torch.arange(length)
        keys = self.key_values[table[j // self.page_kv] * self.page_kv + j % self.page_kv]
        return self.weights[row].double() @ (self.q_values[row].double() @ keys.double().T).relu()

    def schedule(self):
        return uk.get_paged_mqa_logits_metadata(self.context_lens, self.page_kv, uk.get_num_sms(), self.indices)

    def call(self, **changed):
        arguments = {
            "q": self.q,
            "kv_cache": self.kv_cache,
            "weights": self.weights,
            "context_lens": self.context_lens,
            "block_table": self.block_table,
            "schedule_meta": self.schedule(),
            "max_context_len": self.max_context_len,
            "indices": self.indices,
        }
        return uk.fp8_fp4_paged_mqa_logits(**{**arguments, **changed})

    def assert_right(self, logits, tolerance=5e-6):
        for row, length in enumerate(self.context_lens.flatten().tolist()):
            if length:
                got, expected = logits[row, :length].double(), self.expected(row, length)
                assert got.isfinite().all()
                assert float(calc_diff(got, expected)) <= tolerance
                assert got.allclose(expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(("kind", "mode", "dim"), KINDS)
@pytest.mark.parametrize("heads", [4, 8, 12, 16, 32, 64, 128])
def test_every_kind_dim_and_number_of_heads(backend, kind, mode, dim, heads):
    one = Paged([[70], [3]], kind=kind, mode=mode, dim=dim, heads=heads)
    one.assert_right(one.call())


@pytest.mark.parametrize("page_kv", [32, 64, 128])
def test_every_key_comes_from_its_page_and_slot(backend, page_kv):
    # FC-30: key j has value (j mod 7) / 8, so a wrong page or slot shows.
    length, dim, heads = 130, 64, 8
    width = -(-length // page_kv)
    table = torch.randperm(width + 3, generator=torch.Generator().manual_seed(1))[:width]
    keys = torch.full(((width + 3) * page_kv, dim), 5.0)
    for j in range(length):
        keys[int(table[j // page_kv]) * page_kv + j % page_kv] = (j % 7) / 8
    cache = pack_pages(keys.to(E4M3), torch.ones(len(keys)), page_kv)
    lens = int32([[length]])
    schedule = uk.get_paged_mqa_logits_metadata(lens, page_kv, uk.get_num_sms())
    q = torch.ones(1, 1, heads, dim).to(E4M3)
    logits = uk.fp8_fp4_paged_mqa_logits(
        (q, None), cache, torch.ones(1, heads), lens, table.int()[None], schedule, length
    )
    expected = heads * dim * (torch.arange(length) % 7) / 8
    assert torch.equal(logits[0], expected)


@pytest.mark.parametrize("filling", [-1, 2**30, -(2**31)])
def test_dead_table_columns_are_never_followed(backend, filling):
    # FC-31
    one = Paged([[65], [0], [64]], width=6)
    one.block_table[0, 2:] = filling
    one.block_table[1] = filling
    one.block_table[2, 1:] = filling
    one.assert_right(one.call())
    one.assert_right(one.call(max_context_len=6 * 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_tokens_per_row_see_their_own_lengths(backend, dtype):
    one = Paged([[5, 130, 0], [200, 199, 64]], dtype=dtype)
    logits = one.call()
    assert (logits.shape, logits.dtype) == ((6, 200), dtype)
    assert logits.stride(0) * dtype.itemsize % 1024 == 0
    one.assert_right(logits, 5e-6 if dtype is torch.float32 else 3e-5)


def test_varlen_rows_of_one_request_equal_single_rows(backend):
    one = Paged([[60], [61], [62], [3], [150], [151]], rows=[0, 0, 0, 1, 2, 2])
    varlen = one.call()
    one.assert_right(varlen)
    plain = one.call(indices=None, schedule_meta=None)
    for row, length in enumerate(one.context_lens[:, 0].tolist()):
        assert torch.equal(varlen[row, :length], plain[row, :length])


def test_pages_at_a_pitch_and_a_cache_that_starts_inside_its_storage(backend):
    one = Paged([[130], [40]], kind="fp4", mode="mx")
    pages, page_kv, _, row = one.kv_cache.shape
    storage = torch.full((pages + 1, page_kv * row + 64), 255, dtype=torch.uint8)
    storage[1:, : page_kv * row] = one.kv_cache.reshape(pages, -1)
    pitched = storage[1:, : page_kv * row].unflatten(1, (page_kv, 1, row))
    assert pitched.stride(0) == page_kv * row + 64
    one.assert_right(one.call(kv_cache=pitched))


@pytest.mark.parametrize("batch", [1, 32, 33, 64, 256])
def test_all_lengths_zero(backend, batch):
    # FC-27
    one = Paged([[0]] * batch, heads=4, dim=32, width=1)
    schedule = one.schedule()
    assert (schedule.shape, schedule.dtype) == ((uk.get_num_sms() + 1, 2), torch.int32)
    assert (one.call(max_context_len=8, clean_logits=True) == -torch.inf).all()


def test_clean_up_writes_minus_infinity_after_each_length(backend):
    # FC-29
    one = Paged([[3], [0]])
    q = one.q[0]
    args = (one.kv_cache, one.weights, one.context_lens, one.block_table, one.schedule(), 8)
    logits = uk.fp8_paged_mqa_logits(q, *args, clean_logits=True)
    assert logits[0, :3].isfinite().all()
    assert (logits[0, 3:] == -torch.inf).all()
    assert (logits[1] == -torch.inf).all()
    assert torch.equal(logits, uk.fp8_fp4_paged_mqa_logits((q, None), *args, clean_logits=True))
    # 2.6.1's eighth position, and the legacy function all positional as serving engines call it.
    assert torch.equal(logits, uk.fp8_fp4_paged_mqa_logits((q, None), *args, True))
    assert torch.equal(logits, uk.fp8_paged_mqa_logits(q, *args, True))
    assert torch.equal(logits[0, :3], uk.fp8_paged_mqa_logits(q, *args, False)[0, :3])


def test_strided_lengths_are_read_correctly(backend):
    # FC-28
    base = int32([[5, 900], [70, 901], [130, 902], [1, 903]])
    one = Paged([[5], [70], [130], [1]])
    assert torch.equal(one.schedule(), uk.get_paged_mqa_logits_metadata(base[:, :1], 64, uk.get_num_sms()))
    one.assert_right(one.call(context_lens=base[:, :1]))
    every_other = torch.stack([one.context_lens, one.context_lens + 900], 1).flatten(0, 1)[::2]
    assert not every_other.is_contiguous()
    one.assert_right(one.call(context_lens=every_other))


def test_calling_forms_of_all_generations_agree(backend):
    one = Paged([[70], [12]])
    expected = one.call(clean_logits=True)
    lens = one.context_lens.squeeze(1)
    schedules = [
        uk.get_paged_mqa_logits_metadata(lens, 64, uk.get_num_sms()),
        uk.get_paged_mqa_logits_metadata(lens.unsqueeze(1), block_kv=64, num_sms=uk.get_num_sms(), indices=None),
        uk.get_paged_mqa_logits_metadata(lens, 16, int32([0, 1])),  # Ascend: context_lens, num_heads, indices
        uk.get_paged_mqa_logits_metadata(lens, 64, uk.get_num_sms(), num_heads=16),
    ]
    for schedule in schedules:
        assert (schedule.shape, schedule.dtype) == ((uk.get_num_sms() + 1, 2), torch.int32)
        arguments = (one.weights, lens, one.block_table, schedule, 70)
        for logits in (
            uk.fp8_fp4_paged_mqa_logits(one.q, one.kv_cache, *arguments, clean_logits=True),
            uk.fp8_fp4_paged_mqa_logits(one.q, one.kv_cache, *arguments, int32([0, 1]), clean_logits=True),
            uk.fp8_paged_mqa_logits(one.q[0], one.kv_cache, *arguments, True, int32([0, 1])),
        ):
            assert torch.equal(logits, expected)
    named = {
        "q": one.q,
        "weights": one.weights,
        "context_lens": lens,
        "block_table": one.block_table,
        "schedule_meta": None,
        "max_context_len": 70,
    }
    assert torch.equal(uk.fp8_fp4_paged_mqa_logits(**named, fused_kv_cache=one.kv_cache, clean_logits=True), expected)
    named["q"] = one.q[0]
    assert torch.equal(uk.fp8_paged_mqa_logits(**named, fused_kv_cache=one.kv_cache, clean_logits=True), expected)


def test_empty_batch_and_no_columns(backend):
    # FC-34
    q = torch.empty(0, 1, 64, 128, dtype=E4M3)
    cache = torch.zeros(2, 64, 1, 132, dtype=torch.uint8)
    table = torch.zeros(0, 3, dtype=torch.int32)
    logits = uk.fp8_fp4_paged_mqa_logits((q, None), cache, torch.empty(0, 64), int32([]).view(0, 1), table, None, 9)
    assert (logits.shape, logits.dtype) == ((0, 9), torch.float32)
    one = Paged([[3], [0]])
    assert one.call(max_context_len=0).shape == (2, 0)
    no_pages = one.call(kv_cache=one.kv_cache[:0], context_lens=int32([0, 0]), clean_logits=True)
    assert (no_pages == -torch.inf).all()


def test_lengths_beyond_the_columns_and_the_table_are_cut(backend):
    one = Paged([[64], [20]], width=1)
    expected = one.call()
    logits = one.call(context_lens=int32([[500], [20]]))
    assert torch.equal(logits[0], expected[0])
    assert torch.equal(one.call(max_context_len=10)[0], expected[0, :10])


def test_results_repeat_bit_for_bit_with_and_without_a_schedule(backend):
    one = Paged([[500], [333]], kind="fp8", mode="mx", dim=128, dtype=torch.bfloat16)
    first = one.call(clean_logits=True)
    for _ in range(3):
        assert torch.equal(first, one.call(clean_logits=True))
    assert torch.equal(first, one.call(clean_logits=True, schedule_meta=None))


def test_paged_equals_contiguous_bit_for_bit(backend):
    one = Paged([[150]], kind="fp8", mode="mx", dim=128, heads=32)
    ids = one.block_table[0].long()
    data = one.kv_cache.flatten(1)[ids][:, : 64 * 128].reshape(-1, 128).view(E4M3)
    sf = one.kv_cache.flatten(1)[ids][:, 64 * 128 :].contiguous().view(torch.int32).flatten()
    q = (one.q[0].flatten(0, 1), one.q[1].flatten(0, 1))
    dense = uk.fp8_fp4_mqa_logits(q, (data, sf), one.weights, int32([0]), int32([150]), 150)
    assert torch.equal(one.call(), dense)
