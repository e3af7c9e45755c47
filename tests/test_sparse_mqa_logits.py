"""Sparse MQA logits on every backend: the bits of the dense function at the selected keys, metadata, argument rules."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.errors import ArgumentTypeError, InvalidArgumentError

BACKENDS = [
    name for name in _registry.backends_with("sparse_mqa_logits") if _registry.available_backends()[name] is None
]
E4M3 = torch.float8_e4m3fn
DTYPES = {"fp8": E4M3, "fp4": torch.int8}
DIM = 128


@pytest.fixture(params=BACKENDS)
def backend(request):
    with uk.use_backend(request.param):
        yield request.param


def generator(seed):
    return torch.Generator().manual_seed(seed)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def quantise(n, kind, wide, seed):
    """Return random data [n, dim or dim/2] and scales int32 [n], or int16 [n, 2] unless wide."""
    x = torch.randn(n, DIM, generator=generator(seed))
    data, sf = (uk.per_token_cast_to_fp8 if kind == "fp8" else uk.per_token_cast_to_fp4)(x, True, 32)
    exponents = (sf.view(torch.int32) >> 23).to(torch.uint8)
    return data, exponents.view(torch.int32).squeeze(1) if wide else exponents.view(torch.int16)


def make_queries(t, heads, kind, wide=True):
    data, sf = quantise(t * heads, kind, wide, 1)
    pitch = -(-heads // 8) * 8
    weights = torch.randn(t, pitch, generator=generator(3)).bfloat16()[:, :heads]
    return (data.view(t, heads, -1), sf.unflatten(0, (t, heads))), weights


def select(starts, ends, sb, nb, first_blocks):
    """Random increasing blocks of each window; tails repeat the last block, rows without any hold nonsense."""
    rows = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        available = -(-max(end - start, 0) // sb)
        used = min(nb, available)
        chosen = sorted((torch.randperm(available, generator=generator(i))[:used] + first_blocks[i]).tolist())
        rows.append(chosen + [chosen[-1] if chosen else (-7, 2**30)[i % 2]] * (nb - used))
    return int32(rows)


def assert_same_bits(logits, dense, blocks, starts, ends, sb, shifted):
    """Compare every specified column with the dense logits (column = key) and count them."""
    num_compared = 0
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        shift = start % sb if shifted else 0
        used = min(blocks.shape[1], -(-max(end - start, 0) // sb))
        keys = ((blocks[i, :used].long() * sb + shift)[:, None] + torch.arange(sb)).flatten()
        inside = (keys >= start) & (keys < end)
        got, expected = logits[i, : used * sb][inside], dense[i, keys[inside]]
        assert torch.equal(got, expected), (i, keys[inside][got != expected], got[got != expected])
        assert got.isfinite().all()
        num_compared += len(got)
    return num_compared


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize("wide", [True, False], ids=["int32", "int16"])
@pytest.mark.parametrize("heads", [4, 12, 32])
@pytest.mark.parametrize(("sb", "shifted"), [(8, False), (16, False), (8, True), (16, True)])
def test_contiguous_equals_dense_bit_for_bit(backend, kind, wide, heads, sb, shifted):
    n, nb = 333, 8
    starts, ends = [0, 32, 48, 5, 320, 7, 0], [333, 40, 333, 5, 100, 8, 61]
    if not shifted:
        starts = [start // sb * sb for start in starts]
    q, weights = make_queries(len(starts), heads, kind, wide)
    kv = quantise(n, kind, wide, 2)
    blocks = select(starts, ends, sb, nb, [start // sb for start in starts])
    metadata = uk.get_sparse_mqa_logits_metadata(int32(starts), int32(ends), n, blocks, DTYPES[kind], sb, shifted)
    assert (metadata.dtype, metadata.ndim) == (torch.uint8, 1)
    logits = uk.fp8_fp4_sparse_mqa_logits(q, kv, weights, metadata, nb, sb, shifted)
    assert (logits.dtype, logits.shape) == (torch.bfloat16, (len(starts), nb * sb))
    assert logits.stride(0) % 512 == 0
    dense = uk.fp8_fp4_mqa_logits(q, kv, weights, int32(starts), int32(ends), 0)
    assert assert_same_bits(logits, dense, blocks, starts, ends, sb, shifted) > 100


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize(("page_kv", "sb"), [(32, 16), (64, 8), (64, 16), (128, 8)])
def test_paged_equals_dense_bit_for_bit(backend, kind, page_kv, sb):
    nb, requests = 8, [0, 0, 0, 1, 2, 2]
    lens = [300, 299, 1, 0, 17, 130]
    width = -(-300 // page_kv) + 1
    num_pages = 3 * width + 2
    table = torch.randperm(num_pages, generator=generator(4))[: 3 * width].int().view(3, width)[requests].clone()
    for row, length in enumerate(lens):
        table[row, -(-max(lens[other] for other in range(6) if requests[other] == requests[row]) // page_kv) :] = -1
        assert length <= width * page_kv
    data, sf = quantise(num_pages * page_kv, kind, True, 2)
    pages = [
        torch.cat([part[i : i + page_kv].flatten().view(torch.uint8) for part in (data, sf)])
        for i in range(0, len(data), page_kv)
    ]
    cache = torch.stack(pages).view(num_pages, page_kv, 1, -1)
    (q, q_scale), weights = make_queries(6, 16, kind)
    q, q_scale = q.unsqueeze(1), q_scale.unsqueeze(1)
    blocks = select([0] * 6, lens, sb, nb, [0] * 6)
    indices = int32(requests)
    metadata = uk.get_paged_sparse_mqa_logits_metadata(int32(lens), table, indices, page_kv, blocks, DTYPES[kind], sb)
    logits = uk.fp8_fp4_paged_sparse_mqa_logits((q, q_scale), cache, weights, metadata, nb, sb)
    schedule = uk.get_paged_mqa_logits_metadata(int32(lens), page_kv, uk.get_num_sms(), indices)
    dense = uk.fp8_fp4_paged_mqa_logits((q, q_scale), cache, weights, int32(lens), table, schedule, 300, indices)
    assert (logits.dtype, logits.shape) == (torch.bfloat16, (6, nb * sb))
    assert assert_same_bits(logits, dense, blocks, [0] * 6, lens, sb, False) > 100
    named = {
        "q": (q, q_scale),
        "weights": weights,
        "metadata": metadata,
        "num_max_sparse_blocks": nb,
        "sparse_block_kv": sb,
    }
    again = uk.fp8_fp4_paged_sparse_mqa_logits(**named, fused_kv_cache=cache)
    assert assert_same_bits(again, dense, blocks, [0] * 6, lens, sb, False) > 100


def test_many_tokens_in_several_groups_equal_dense(backend):
    # More selected keys than the CPU decodes together, so that groups meet.
    t, n, sb, nb = (90, 2200, 8, 256) if backend != "reference" else (3, 2200, 8, 256)
    starts, ends = [0] * t, [n - 8 * i for i in range(t)]
    q, weights = make_queries(t, 8, "fp8")
    kv = quantise(n, "fp8", True, 2)
    blocks = select(starts, ends, sb, nb, [0] * t)
    metadata = uk.get_sparse_mqa_logits_metadata(int32(starts), int32(ends), n, blocks, E4M3, sb)
    first = uk.fp8_fp4_sparse_mqa_logits(q, kv, weights, metadata, nb, sb)
    dense = uk.fp8_fp4_mqa_logits(q, kv, weights, int32(starts), int32(ends), 0)
    assert assert_same_bits(first, dense, blocks, starts, ends, sb, False) > 5000
    again = uk.fp8_fp4_sparse_mqa_logits(q, kv, weights, metadata.clone(), nb, sb)
    assert assert_same_bits(again, dense, blocks, starts, ends, sb, False) > 5000


def test_metadata_owns_what_it_needs(backend):
    # The compute call gets no indices again: changing them afterwards must not matter.
    starts, ends, blocks = int32([0, 0]), int32([64, 40]), int32([[0, 2, 4, 6], [0, 1, 2, 4]])
    q, weights = make_queries(2, 8, "fp8")
    kv = quantise(64, "fp8", True, 2)
    metadata = uk.get_sparse_mqa_logits_metadata(starts, ends, 64, blocks, E4M3, 8)
    expected = uk.fp8_fp4_sparse_mqa_logits(q, kv, weights, metadata, 4, 8)
    for tensor in (starts, ends, blocks):
        tensor.fill_(3)
    assert torch.equal(uk.fp8_fp4_sparse_mqa_logits(q, kv, weights, metadata, 4, 8), expected)


def test_zero_tokens_need_no_metadata(backend):
    q = (torch.empty(0, 8, DIM, dtype=E4M3), torch.empty(0, 8, dtype=torch.int32))
    kv = quantise(64, "fp8", True, 2)
    logits = uk.fp8_fp4_sparse_mqa_logits(q, kv, torch.empty(0, 8).bfloat16(), None, 4, 8)
    assert (logits.shape, logits.dtype) == ((0, 32), torch.bfloat16)


class Contiguous:
    """Arguments of the two contiguous functions, two tokens and 64 keys."""

    def __init__(self):
        self.made = {
            "cu_seq_len_k_start": int32([0, 0]),
            "cu_seq_len_k_end": int32([64, 64]),
            "num_kv_tokens": 64,
            "sparse_kv_block_indices": int32([[0, 1, 2, 3]] * 2),
            "qk_dtype": E4M3,
            "sparse_block_kv": 8,
        }
        q, weights = make_queries(2, 8, "fp8")
        self.computed = {
            "q": q,
            "kv": quantise(64, "fp8", True, 2),
            "weights": weights,
            "num_max_sparse_blocks": 4,
            "sparse_block_kv": 8,
        }

    def metadata(self, **changed):
        return uk.get_sparse_mqa_logits_metadata(**{**self.made, **changed})

    def compute(self, **changed):
        arguments = {"metadata": None, **self.computed, **changed}
        if arguments["metadata"] is None:
            arguments["metadata"] = self.metadata()
        return uk.fp8_fp4_sparse_mqa_logits(**arguments)


MADE_FOR_ANOTHER_CALL = [
    ({"sparse_block_kv": 16}, "made with sparse_block_kv = 16, but this call has 8"),
    (
        {"sparse_kv_block_indices": int32([[0, 1, 2, 3, 4, 5, 6, 7]] * 2)},
        "made with num_max_sparse_blocks = 8, but this call has 4",
    ),
    ({"qk_dtype": torch.int8}, "made with packed FP4 .qk_dtype. = True, but this call has False"),
    ({"use_unaligned_ks": True}, "made with use_unaligned_ks = True, but this call has False"),
    ({"num_kv_tokens": 63}, "made with num_kv_tokens = 63, but this call has 64"),
    (
        {
            "cu_seq_len_k_start": int32([0]),
            "cu_seq_len_k_end": int32([64]),
            "sparse_kv_block_indices": int32([[0, 1, 2, 3]]),
        },
        "made with num_tokens = 1, but this call has 2",
    ),
]


@pytest.mark.parametrize(("changed", "text"), MADE_FOR_ANOTHER_CALL, ids=[text for _, text in MADE_FOR_ANOTHER_CALL])
def test_metadata_of_another_call_is_refused(changed, text):
    one = Contiguous()
    with pytest.raises(
        InvalidArgumentError, match=f"fp8_fp4_sparse_mqa_logits: metadata was {text}. Call get_sparse_mqa"
    ):
        one.compute(metadata=one.metadata(**changed))


def test_metadata_of_another_number_of_sms_is_refused():
    if uk.get_num_sms() < 2:
        pytest.skip("this machine has one worker thread, so the count cannot change")
    one = Contiguous()
    metadata = one.metadata()
    uk.set_num_sms(uk.get_num_sms() - 1)
    with pytest.raises(InvalidArgumentError, match=r"made with get_num_sms\(\) = \d+, but this call has \d+"):
        one.compute(metadata=metadata)


WRONG_METADATA = [
    (lambda good: good.int(), "metadata has dtype torch.int32, expected uint8"),
    (lambda good: good[:-4], "metadata has .* bytes, expected"),
    (lambda good: good[64:], "was not made by get_sparse_mqa_logits_metadata"),
    (lambda good: torch.zeros(10, dtype=torch.uint8), r"metadata \(10 bytes\) was not made by"),
    (lambda good: good.view(2, -1), "expected the 1-D tensor that get_sparse_mqa_logits_metadata returns"),
    (lambda good: [1, 2], "metadata is a list, expected a torch.Tensor"),
]


@pytest.mark.parametrize(("change", "text"), WRONG_METADATA, ids=[text[:30] for _, text in WRONG_METADATA])
def test_broken_metadata_is_refused(change, text):
    one = Contiguous()
    assert one.compute().shape == (2, 32)
    with pytest.raises(InvalidArgumentError, match=text):
        one.compute(metadata=change(one.metadata()))


WRONG_COMPUTE = [
    ({"sparse_block_kv": 4}, "sparse_block_kv is 4, expected 8 or 16 keys per block"),
    ({"num_max_sparse_blocks": 6}, "num_max_sparse_blocks is 6, expected a multiple of 4 up to 4096"),
    ({"weights": torch.zeros(2, 8)}, "weights has dtype torch.float32, expected bfloat16"),
    ({"use_unaligned_ks": 1}, "use_unaligned_ks is 1, expected a bool"),
    ({"q": (torch.zeros(2, 8, DIM).to(E4M3), None)}, r"q\[1\] is None, expected int32"),
    ({"q": (torch.zeros(2, 8, 64).to(E4M3), torch.zeros(2, 8).int())}, "head_dim is 64, expected 128"),
    (
        {"q": (torch.zeros(2, 36, DIM).to(E4M3), torch.zeros(2, 36).int())},
        "36 heads, expected a multiple of 4 from 4 to 32",
    ),
]


@pytest.mark.parametrize(("changed", "text"), WRONG_COMPUTE, ids=[text[:30] for _, text in WRONG_COMPUTE])
def test_broken_compute_arguments(changed, text):
    with pytest.raises(InvalidArgumentError, match=f"^fp8_fp4_sparse_mqa_logits: {text}"):
        Contiguous().compute(**changed)


WRONG_MADE = [
    ({"sparse_kv_block_indices": int32([[0, 1, 2]] * 2)}, r"shape\[1\] is 3, expected a multiple of 4"),
    (
        {"sparse_kv_block_indices": torch.zeros(2, 4).long()},
        "sparse_kv_block_indices has dtype torch.int64, expected int32",
    ),
    ({"sparse_kv_block_indices": torch.zeros(4, 2).int().T}, "sparse_kv_block_indices has strides .*contiguous"),
    ({"sparse_kv_block_indices": torch.zeros(0, 4).int()}, r"has shape \(0, 4\), expected .* with 1 to 1048576 tokens"),
    ({"cu_seq_len_k_end": int32([64])}, r"cu_seq_len_k_end has shape \(1,\), expected \(2,\)"),
    ({"num_kv_tokens": 0}, "num_kv_tokens is 0, expected at least 1"),
    ({"qk_dtype": torch.bfloat16}, "qk_dtype is torch.bfloat16, expected float8_e4m3fn, or packed FP4"),
    ({"sparse_block_kv": 32}, "sparse_block_kv is 32, expected 8 or 16"),
]


@pytest.mark.parametrize(("changed", "text"), WRONG_MADE, ids=[text[:30] for _, text in WRONG_MADE])
def test_broken_metadata_arguments(changed, text):
    with pytest.raises(InvalidArgumentError, match=f"^get_sparse_mqa_logits_metadata: .*{text}"):
        Contiguous().metadata(**changed)
    with pytest.raises(ArgumentTypeError, match=r"qk_dtype is 'fp8', expected torch\.float8_e4m3fn or torch\.int8"):
        Contiguous().metadata(qk_dtype="fp8")


def _paged():
    made = [int32([64, 3]), int32([[0], [1]]), int32([0, 1]), 64, int32([[0, 1, 2, 3]] * 2), E4M3, 8]
    (q, scale), weights = make_queries(2, 8, "fp8")
    return made, [(q.unsqueeze(1), scale.unsqueeze(1)), torch.zeros(2, 64, 1, 132, dtype=torch.uint8), weights]


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (0, int32([64]), r"context_lens has shape \(1,\), expected \(2,\)"),
        (1, int32([[0]]), r"block_table has shape \(1, 1\), expected \(2, pages per sequence\)"),
        (1, torch.zeros(2, 0).int(), "expected at least one column"),
        (2, None, "indices is a NoneType, expected a torch.Tensor"),
        (3, 48, "page_kv is 48, expected 32, 64, 128 keys per page"),
    ],
)
def test_broken_paged_metadata_arguments(place, value, text):
    made, _ = _paged()
    made[place] = value
    with pytest.raises(InvalidArgumentError, match=f"^get_paged_sparse_mqa_logits_metadata: .*{text}"):
        uk.get_paged_sparse_mqa_logits_metadata(*made)


def test_broken_paged_compute_arguments():
    made, (q, cache, weights) = _paged()
    metadata = uk.get_paged_sparse_mqa_logits_metadata(*made)
    function = uk.fp8_fp4_paged_sparse_mqa_logits
    assert function(q, cache, weights, metadata, 4, 8).shape == (2, 32)
    storage = torch.zeros(4 * 8452 + 16, dtype=torch.uint8)
    with pytest.raises(InvalidArgumentError, match="page pitch of 8452 bytes, expected a multiple of 128"):
        function(q, storage.as_strided((2, 64, 1, 132), (8452, 132, 132, 1)), weights, metadata, 4, 8)
    with pytest.raises(InvalidArgumentError, match="starts at an address that is no multiple of 16 bytes"):
        function(q, storage.as_strided((2, 64, 1, 132), (8448, 132, 132, 1), 4), weights, metadata, 4, 8)
    with pytest.raises(InvalidArgumentError, match="made with page_kv = 64, but this call has 32"):
        function(q, cache.view(4, 32, 1, 132), weights, metadata, 4, 8)
    with pytest.raises(InvalidArgumentError, match=r"made with paged keys = False, but this call has True"):
        function(q, cache, weights, Contiguous().metadata(), 4, 8)
    doubled = (q[0].expand(2, 2, 8, DIM).contiguous(), q[1].expand(2, 2, 8).contiguous())
    with pytest.raises(InvalidArgumentError, match=r"q\[0\] has 2 tokens per row, expected 1"):
        function(doubled, cache, weights, metadata, 4, 8)
