"""Argument rules of the MQA logits functions and their schedules: every refusal and its words."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.errors import ArgumentTypeError, InvalidArgumentError


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def blank(shape, kind):
    return torch.zeros(shape, dtype=torch.float8_e4m3fn if kind == "fp8" else torch.int8)


def dense(kind="fp8", mode="plain", s=2, n=8, heads=8, dim=64):
    """Return q, kv and weights of zeros."""
    columns = dim if kind == "fp8" else dim // 2
    word = torch.float32 if mode == "plain" else torch.int32
    scale = None if mode == "plain" else torch.zeros(s, heads, dtype=word)
    weights = torch.zeros(s, -(-heads // 4) * 4)[:, :heads]
    return (blank((s, heads, columns), kind), scale), (blank((n, columns), kind), torch.zeros(n, dtype=word)), weights


class Paged:
    """Arguments of a paged call with 16 heads of 64 over pages of 64 zero keys."""

    def __init__(self, lens):
        batch, next_n = len(lens), len(lens[0])
        self.q = (blank((batch, next_n, 16, 64), "fp8"), None)
        self.kv_cache = torch.zeros(5, 64, 1, 68, dtype=torch.uint8)
        self.weights = torch.zeros(batch * next_n, 16)
        self.context_lens = int32(lens)
        self.block_table = torch.zeros(batch, 2, dtype=torch.int32)

    def call(self, **changed):
        arguments = {
            "q": self.q,
            "kv_cache": self.kv_cache,
            "weights": self.weights,
            "context_lens": self.context_lens,
            "block_table": self.block_table,
            "schedule_meta": None,
            "max_context_len": 70,
        }
        return uk.fp8_fp4_paged_mqa_logits(**{**arguments, **changed})


def test_the_unchanged_arguments_are_accepted():
    # Else the refusals below could have another reason than the one they name.
    assert uk.fp8_fp4_mqa_logits(**_arguments()).shape == (2, 8)
    assert Paged([[70], [12]]).call().shape == (2, 70)


BROKEN = {
    "heads": ({"heads": 6}, "6 heads, expected a multiple of 4 from 4 to 128"),
    "heads above": ({"heads": 132}, "132 heads, expected a multiple of 4"),
    "dim": ({"dim": 96}, "head_dim is 96 .*expected 32 or 64 or 128 for fp8"),
    "fp4 dim": ({"kind": "fp4", "mode": "mx", "dim": 32}, "head_dim is 32 .*expected 64 or 128 for fp4"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unsupported_sizes(name):
    # FC-32: an unsupported pair raises, it does not compute.
    sizes, text = BROKEN[name]
    args = dense(s=2, n=8, **sizes)
    with pytest.raises(InvalidArgumentError, match=text):
        uk.fp8_fp4_mqa_logits(*args, int32([0, 0]), int32([8, 8]))


def _arguments():
    q, kv, weights = dense("fp8", "mx", 2, 8, 8, 64)
    return {
        "q": q,
        "kv": kv,
        "weights": weights,
        "cu_seq_len_k_start": int32([0, 0]),
        "cu_seq_len_k_end": int32([8, 8]),
    }


WRONG_DENSE = [
    (lambda a: {"q": a["q"][0]}, "q is a Tensor, expected a pair"),
    (lambda a: {"q": (a["q"][0].float(), None)}, "q\\[0\\] is torch.float32, expected float8_e4m3fn, or packed FP4"),
    (
        lambda a: {"q": (a["q"][0][:, 0], a["q"][1])},
        "q\\[0\\] has shape \\(2, 64\\), expected \\(queries, heads, head_dim\\)",
    ),
    (lambda a: {"q": (a["q"][0].transpose(0, 1), a["q"][1])}, "q\\[0\\] has strides .*Pass q\\[0\\].contiguous"),
    (lambda a: {"q": (a["q"][0], a["q"][1][:, :4])}, "q\\[1\\] has shape \\(2, 4\\), expected \\(2, 8\\)"),
    (
        lambda a: {"q": (a["q"][0], a["q"][1].float())},
        "q\\[1\\] has dtype torch.float32, expected None, int32 or int16",
    ),
    (
        lambda a: {"q": (a["q"][0], None)},
        "kv\\[1\\] has dtype torch.int32, expected torch.float32 because q scales are None",
    ),
    (lambda a: {"q": (a["q"][0].view(torch.int8), None)}, "q\\[1\\] is None but q\\[0\\] is packed FP4"),
    (
        lambda a: {"kv": (a["kv"][0], a["kv"][1].float())},
        "kv\\[1\\] has dtype torch.float32, expected torch.int32 because q",
    ),
    (lambda a: {"kv": (a["kv"][0].view(torch.int8), a["kv"][1])}, "kv\\[0\\] is fp4 but q\\[0\\] is fp8"),
    (
        lambda a: {"kv": (a["kv"][0][:, :32], a["kv"][1])},
        "kv\\[0\\] has shape \\(8, 32\\), expected \\(num_keys, 64\\)",
    ),
    (lambda a: {"kv": (a["kv"][0], a["kv"][1][:4])}, "kv\\[1\\] has shape \\(4,\\), expected \\(8, 1\\)"),
    (lambda a: {"weights": a["weights"].half()}, "weights has dtype torch.float16, expected float32 or bfloat16"),
    (lambda a: {"weights": a["weights"][:1]}, "weights has shape \\(1, 8\\), expected \\(2, 8\\)"),
    (lambda a: {"weights": torch.ones(8, 2).T}, "weights has strides .*unit stride along heads"),
    (
        lambda a: {"weights": torch.ones(2, 9)[:, :8]},
        "weights has rows 36 bytes apart, expected a multiple of 16 bytes",
    ),
    (
        lambda a: {"cu_seq_len_k_start": torch.zeros(2).long()},
        "cu_seq_len_k_start has dtype torch.int64, expected int32. Pass",
    ),
    (lambda a: {"cu_seq_len_k_end": int32([8])}, "cu_seq_len_k_end has shape \\(1,\\), expected \\(2,\\)"),
    (lambda a: {"max_seqlen_k": -1}, "max_seqlen_k is -1, expected at least 0"),
    (lambda a: {"max_seqlen_k": 8.0}, r"max_seqlen_k is 8.0 \(float\), expected a Python int"),
    (lambda a: {"schedule_meta": torch.zeros(4)}, "schedule_meta has dtype torch.float32, expected int32"),
    (
        lambda a: {"logits_dtype": torch.float16},
        "logits_dtype is torch.float16, expected torch.float32 or torch.bfloat16",
    ),
    (lambda a: {"clean_logits": 1}, "clean_logits is 1, expected a bool"),
]


@pytest.mark.parametrize(("change", "text"), WRONG_DENSE, ids=[text[:40] for _, text in WRONG_DENSE])
def test_broken_arguments_of_the_dense_function(change, text):
    arguments = _arguments()
    with pytest.raises(InvalidArgumentError, match=f"^fp8_fp4_mqa_logits: {text}"):
        uk.fp8_fp4_mqa_logits(**{**arguments, **change(arguments)})


def test_legacy_name_takes_a_tensor():
    args = dense(s=1, n=4)
    with pytest.raises(
        ArgumentTypeError, match=r"q is a tuple, expected a float8_e4m3fn tensor\. With scales call fp8_fp4_mqa"
    ):
        uk.fp8_mqa_logits(*args, int32([0]), int32([4]))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((int32([]), int32([]), 8, 8), "expected \\(queries,\\) with at least one query"),
        ((int32([0]), int32([8]), 0, 8), "num_kv_tokens is 0, expected at least 1"),
        ((int32([0]), int32([8]), 8, 6), "6 heads, expected a multiple of 4"),
        ((int32([0]), int32([8, 8]), 8, 8), "cu_seq_len_k_end has shape \\(2,\\), expected \\(1,\\)"),
    ],
)
def test_broken_arguments_of_the_dense_schedule(arguments, text):
    with pytest.raises(InvalidArgumentError, match=f"^get_mqa_logits_metadata: .*{text}"):
        uk.get_mqa_logits_metadata(*arguments)


WRONG_PAGED = [
    (
        lambda one: {"q": (one.q[0][0], None)},
        "q\\[0\\] has shape \\(1, 16, 64\\), expected \\(batch, next_n, heads, head_dim\\)",
    ),
    (lambda one: {"kv_cache": one.kv_cache.view(torch.int8)}, "kv_cache has dtype torch.int8, expected uint8"),
    (
        lambda one: {"kv_cache": one.kv_cache[..., :66]},
        "kv_cache has shape .*expected \\(pages, page_kv, 1, 68\\): 64 data and 4",
    ),
    (
        lambda one: {"kv_cache": torch.zeros(9, 48, 1, 68, dtype=torch.uint8)},
        "kv_cache has pages of 48 keys, expected 32, 64",
    ),
    (lambda one: {"kv_cache": torch.zeros(9, 68, 1, 64, dtype=torch.uint8).mT}, "kv_cache has shape"),
    (
        lambda one: {"kv_cache": torch.zeros(9, 64, 1, 70, dtype=torch.uint8)[..., :68]},
        "kv_cache has strides .*the bytes of a page are dense",
    ),
    (
        lambda one: {
            "kv_cache": torch.zeros(9 * 4353, dtype=torch.uint8).as_strided((9, 64, 1, 68), (4353, 68, 68, 1))
        },
        "kv_cache has a page pitch of 4353 bytes, expected a multiple of 4",
    ),
    (
        lambda one: {"block_table": one.block_table[:1]},
        "block_table has shape \\(1, 2\\), expected \\(2, pages per sequence\\)",
    ),
    (lambda one: {"block_table": one.block_table.long()}, "block_table has dtype torch.int64, expected int32"),
    (lambda one: {"block_table": one.block_table.T.contiguous().T}, "block_table has strides .*unit stride"),
    (lambda one: {"context_lens": int32([[5]])}, "context_lens has shape \\(1, 1\\), expected \\(2, 1\\)"),
    (
        lambda one: {"context_lens": one.context_lens.long()},
        "context_lens has dtype torch.int64, expected int32. Pass",
    ),
    (lambda one: {"schedule_meta": torch.zeros(3, 2)}, "schedule_meta has dtype torch.float32, expected int32"),
    (
        lambda one: {"schedule_meta": int32([1, 2])},
        "schedule_meta has shape \\(2,\\), expected what get_paged_mqa_logits_meta",
    ),
    (lambda one: {"schedule_meta": torch.zeros(99, 2).int()}, "schedule_meta has shape \\(99, 2\\), .*get_num_sms"),
    (lambda one: {"max_context_len": -1}, "max_context_len is -1, expected at least 0"),
    (lambda one: {"indices": int32([0])}, "indices has shape \\(1,\\), expected \\(2,\\)"),
    (lambda one: {"indices": True, "clean_logits": True}, "the eighth argument is a bool, which means clean_logits"),
    (lambda one: {"use_ascend_kv_layout": True}, "use_ascend_kv_layout is True, expected False: pages are planar"),
    (lambda one: {"fused_kv_cache": one.kv_cache}, "give kv_cache or fused_kv_cache"),
]


@pytest.mark.parametrize(("change", "text"), WRONG_PAGED, ids=[text[:40] for _, text in WRONG_PAGED])
def test_broken_arguments_of_the_paged_function(change, text):
    one = Paged([[70], [12]])
    with pytest.raises(InvalidArgumentError, match=f"^fp8_fp4_paged_mqa_logits: {text}"):
        one.call(**change(one))


def test_lengths_without_next_n_need_one_token_per_row():
    one = Paged([[5, 6], [7, 8]])
    with pytest.raises(InvalidArgumentError, match=r"context_lens has shape \(2,\), expected \(2, 2\).*every token"):
        one.call(context_lens=int32([6, 8]))
    with pytest.raises(InvalidArgumentError, match="indices given with next_n=2, expected next_n=1"):
        one.call(indices=int32([0, 1]))


@pytest.mark.parametrize(
    ("arguments", "named", "error", "text"),
    [
        (
            (int32([]).view(0, 1), 64, 1),
            {},
            InvalidArgumentError,
            "expected at least one query token.*pass schedule_meta=None",
        ),
        ((int32([[1]]), 48, 1), {}, InvalidArgumentError, "block_kv is 48, expected 32, 64, 128 keys per page"),
        ((int32([[1]]), 64, 9999), {}, InvalidArgumentError, "num_sms is 9999, expected get_num_sms\\(\\) = "),
        ((int32([[1]]), 64, None), {"num_heads": 3}, InvalidArgumentError, "3 heads, expected a multiple of 4"),
        (
            (int32([[[1]]]), 64, None),
            {},
            InvalidArgumentError,
            "context_lens has shape \\(1, 1, 1\\), expected \\(batch, next_n\\)",
        ),
        ((int32([[1, 2]]), 64, None, int32([0])), {}, InvalidArgumentError, "indices given with next_n=2"),
        ((int32([[1]]), 16, int32([0])), {"num_heads": 16}, ArgumentTypeError, "num_sms is a tensor, which means"),
        (
            (torch.ones(1, 1), 64, None),
            {},
            InvalidArgumentError,
            "context_lens has dtype torch.float32, expected int32",
        ),
    ],
)
def test_broken_arguments_of_the_paged_schedule(arguments, named, error, text):
    with pytest.raises(error, match=f"^get_paged_mqa_logits_metadata: .*{text}"):
        uk.get_paged_mqa_logits_metadata(*arguments, **named)
