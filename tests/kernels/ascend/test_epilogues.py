"""Epilogues fused into the GEMM: the bits of the reference on sums that are exact, and nothing written beside the outputs."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.kernels.epilogues import run_of
from unikernels.epilogue import BF16StochasticRounding, FP8CastWithClamp, FP8Quantization
from unikernels.errors import UnsupportedOperationError


@pytest.fixture
def integers():
    """A function that returns bfloat16 integers up to 127: exact sums, whose 24 bits every rounding must cut."""
    generator = torch.Generator().manual_seed(5)

    def make(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(-127, 128, (rows, columns), generator=generator).bfloat16()

    return make


def _framed(rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rows, columns] view of a larger tensor of sevens, and that tensor as bytes."""
    frame = torch.full((rows + 3, columns + 64), 7.0).to(dtype)
    return frame[1 : 1 + rows, 32 : 32 + columns], frame.view(torch.uint8)


def _quantised(backend: str, a, b, word: torch.dtype, clamp: float | None) -> list[torch.Tensor]:
    """All bytes around D and around the scales, and the counter."""
    (m, _), (n, _) = a.shape, b.shape
    d, d_bytes = _framed(m, n, torch.float8_e4m3fn)
    pitch = m if word is torch.int16 else -(-m // 4) * 4 + 4
    memory = torch.full((n // (32 * word.itemsize) + 1, pitch), 7, dtype=word)
    count = torch.full((1,), 99, dtype=torch.uint32)
    epilogue = FP8CastWithClamp(memory[:-1].mT[:m], clamp, count) if clamp else FP8Quantization(memory[:-1].mT[:m])
    with uk.use_backend(backend):
        uk.bf16_gemm_nt(a, b, d, epilogue=epilogue)
    return [d_bytes, memory, count.view(torch.int32)]


@pytest.mark.parametrize(
    ("word", "clamp", "shapes"),
    [
        (torch.int16, 60000.0, [(70, 704, 200), (1, 64, 33)]),
        (torch.int32, 60000.0, [(70, 640, 200)]),
        (torch.int16, None, [(70, 704, 200)]),
    ],
    ids=str,
)
def test_fp8_output_has_the_bits_of_the_reference(ascend, integers, word, clamp, shapes):
    uk.set_num_sms(2)  # several tiles a core: buffers are used again
    for m, n, k in shapes:
        a, b = integers(m, k), integers(n, k)
        a[0] = 0  # a block of zeros takes the smallest scale
        found, expected = (_quantised(name, a, b, word, clamp) for name in ("ascend", "reference"))
        assert all(map(torch.equal, found, expected)), (m, n, k)
        assert (int(found[2]) == 99) == (clamp is None)


def test_fp8_output_of_huge_values_infinities_and_nan(ascend, integers):
    uk.set_num_sms(2)
    a, b = integers(70, 64), integers(704, 64)
    a[1, 3], a[2, 3] = float("inf"), float("nan")
    a[3] = 1e30
    b[7] = 0  # 0 times infinity
    found, expected = (_quantised(name, a, b, torch.int16, None) for name in ("ascend", "reference"))
    for codes in (found[0], expected[0]):
        codes[(codes & 0x7F) == 0x7F] = 0x7F  # the sign of a NaN means nothing
    assert all(map(torch.equal, found, expected))
    assert (found[0].view(torch.float8_e4m3fn)[1:71].float().isnan()).any(1)[1:3].all()


@pytest.mark.parametrize(("n", "clamp"), [(256, None), (64, 20.0)])
def test_scaled_operands_and_fp8_output(ascend, integers, n, clamp):
    """Tiles are filled up with products of scales that nobody wrote; those must not be counted."""
    a, b = (integers(rows, 96).clamp(-7, 7).to(torch.float8_e4m3fn) for rows in (34, n))
    sfa, sfb = (torch.full((rows, 3), 0.5) for rows in (34, n))
    results = []
    for backend in ("ascend", "reference"):
        d, sfd = torch.empty(34, n, dtype=torch.float8_e4m3fn), torch.empty(n // 64, 34, dtype=torch.int16).mT
        count = torch.full((1,), 99, dtype=torch.uint32)
        epilogue = FP8CastWithClamp(sfd, clamp, count) if clamp else FP8Quantization(sfd)
        with uk.use_backend(backend):
            uk.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, recipe=(1, 1, 32), epilogue=epilogue)
        results.append((d.view(torch.uint8), sfd, count.view(torch.int32)))
    assert all(map(torch.equal, *results))
    assert (int(results[0][2]) == 99) == (clamp is None)


def test_stochastic_rounding_has_the_bits_of_the_reference(ascend, integers):
    """Also in the last group of four columns, which D may cut short."""
    uk.set_num_sms(2)
    for m, n, k in ((70, 700, 200), (70, 701, 64)):
        a, b = integers(m, k), integers(n, k)
        frames = []
        for backend in ("ascend", "reference"):
            d, frame = _framed(m, n, torch.bfloat16)
            with uk.use_backend(backend):
                uk.bf16_gemm_nt(a, b, d, epilogue=BF16StochasticRounding())
            frames.append(frame)
        assert torch.equal(*frames), (m, n, k)


@pytest.mark.parametrize(("splits", "out"), [((128, 64, 128), torch.bfloat16), ((16, 5, 48), torch.float32)])
def test_middle_columns_of_heads_are_left_alone(ascend, integers, splits, out):
    left, middle, right = splits
    n = 3 * (left + right)
    a, b = integers(70, 256).clamp(-7, 7), integers(n, 256).clamp(-7, 7)
    frames = []
    for backend in ("ascend", "reference"):
        d, frame = _framed(70, n + 3 * middle, out)
        with uk.use_backend(backend):
            uk.fp8_gemm_nt_skip_head_mid(
                (a.to(torch.float8_e4m3fn), torch.full((70, 2), 0.5)),
                (b.to(torch.float8_e4m3fn), torch.full((-(-n // 128), 2), 2.0)),
                d,
                splits,
                recipe=(1, 128, 128),
            )
        frames.append(frame)
        assert (d.unflatten(1, (3, -1))[..., left : left + middle] == 7).all()
    assert torch.equal(*frames)


def test_heads_of_odd_runs_are_refused(ascend):
    a, b = torch.ones(4, 128).to(torch.float8_e4m3fn), torch.ones(36, 128).to(torch.float8_e4m3fn)
    d = torch.full((4, 60), 7.0)
    with pytest.raises(
        UnsupportedOperationError, match=r"left and right of head_splits=\(4, 8, 8\) are no multiples of 16"
    ):
        uk.fp8_gemm_nt_skip_head_mid((a, torch.ones(4, 1)), (b, torch.ones(1, 1)), d, (4, 8, 8), recipe=(1, 128, 128))
    assert (d == 7).all()


@pytest.mark.parametrize("groups", ["labels", "ends", "k"])
def test_groups_round_stochastically(ascend, integers, groups):
    """Rows between a group's end and the next start become zeros, the others behind the last end stay as they are."""
    results = []
    a, b = integers(512, 64), integers(512, 60)
    for backend in ("ascend", "reference"):
        with uk.use_backend(backend):
            uk.set_mk_alignment_for_contiguous_layout(256)
            if groups != "k":
                d = torch.full((512, 60), 7.0, dtype=torch.bfloat16)
                layout = torch.tensor([1] * 256 + [0] * 256 if groups == "labels" else [0, 3], dtype=torch.int32)
                weights = b[:128].view(2, 64, 60).mT.contiguous()
                uk.m_grouped_bf16_gemm_nt_contiguous(
                    a, weights, d, layout, use_psum_layout=groups == "ends", epilogue=BF16StochasticRounding()
                )
            else:
                ks = [128, 384]
                d = torch.empty(2, 64, 60, dtype=torch.bfloat16)
                uk.k_grouped_bf16_gemm_tn_contiguous(
                    a, b, d, ks, torch.tensor(ks, dtype=torch.int32), epilogue=BF16StochasticRounding()
                )
        results.append(d)
    assert torch.equal(*results)


@pytest.mark.parametrize("clamp", [None, 6.0])
def test_batches_share_scales_and_counter(ascend, integers, force_tiles, clamp):
    """Scales of all entries lie side by side; a tile wider than an entry must not reach its neighbour's."""
    batch, m, n, k = 3, 37, 192, 64
    force_tiles(64, 256, 256)
    a, b = (integers(batch * rows, k).clamp(-3, 3).to(torch.float8_e4m3fn).view(batch, rows, k) for rows in (m, n))
    results = []
    for backend in ("ascend", "reference"):
        d = torch.full((m, batch, n), 7.0).to(torch.float8_e4m3fn)
        memory = torch.full((batch * n // 64 + 1, m), 7, dtype=torch.int16)
        count = torch.full((1,), 99, dtype=torch.uint32)
        epilogue = FP8CastWithClamp(memory[:-1].mT, clamp, count) if clamp else FP8Quantization(memory[:-1].mT)
        left = (a.transpose(0, 1), torch.full((m, batch, k // 32), 0.25))
        with uk.use_backend(backend):
            uk.fp8_einsum(
                "bhr,hdr->bhd", left, (b, torch.ones(batch, n, k // 32)), d, recipe=(1, 1, 32), epilogue=epilogue
            )
        results.append((d.view(torch.uint8), memory, count.view(torch.int32)))
    assert all(map(torch.equal, *results))
    assert (int(results[0][2]) == 99) == (clamp is None)


def test_runs_of_heads():
    splits = [((128, 128), 128), ((256, 512), 128), ((128, 192), 64), ((0, 48), 16), ((16, 8), 0), ((24, 24), 0)]
    assert [run_of(*sizes) for sizes, _ in splits] == [run for _, run in splits]
