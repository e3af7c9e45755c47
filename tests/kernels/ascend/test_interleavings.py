"""Cores that take several tiles of every kind of GEMM: no interleaving of pipes and cores breaks a rule or changes a bit."""

from __future__ import annotations

import functools

import pytest
import torch

import unikernels as uk
from unikernels import legacy
from unikernels.backends.ascend.runtime import simulated

M, N = 100, 150  # four by three tiles for two cores


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def check(ascend, monkeypatch, force_tiles):
    """A function that makes a call into a prefilled output under several interleavings and compares with what is expected."""
    force_tiles(32, 64, 512)
    uk.set_num_sms(2)
    simulate = simulated.simulate

    def run(call, expected, dtype=torch.float32):
        for seed in (None, 1, 2, 3):
            monkeypatch.setattr(simulated, "simulate", functools.partial(simulate, seed=seed))
            d = torch.full(expected.shape, 7.0, dtype=dtype)
            call(d)
            assert torch.equal(d, expected.to(dtype)), seed

    return run


def test_dense(check, small_integers):
    a, b = small_integers(M, 600), small_integers(N, 600)
    check(lambda d: uk.bf16_gemm_nt(a.bfloat16(), b.bfloat16(), d), a @ b.T)


def test_groups_of_rows(check, small_integers, quantised):
    generator = torch.Generator().manual_seed(9)
    a, sfa, a_values = quantised(small_integers(600, 608), "fp8", True, generator)
    parts = [quantised(small_integers(N, 608), "fp8", True, generator) for _ in range(4)]
    b, sfb = torch.stack([data for data, _, _ in parts]), torch.stack([words.mT for _, words, _ in parts]).mT
    expected = torch.full((600, N), 7.0)
    for group, (start, stop) in enumerate(((0, 70), (256, 256), (256, 400), (512, 600))):
        expected[start:stop] = a_values[start:stop] @ parts[group][2].T
    options = {"use_psum_layout": True, "ensure_zero_padding": False, "recipe": (1, 1, 32)}
    ends = int32(70, 256, 400, 600)
    check(lambda d: uk.m_grouped_fp8_gemm_nt_contiguous((a, sfa), (b, sfb), d, ends, **options), expected)


def test_groups_along_k_with_an_addend(check, small_integers):
    a, b, sizes = small_integers(768, M), small_integers(768, N), [128, 0, 640]
    expected = torch.stack([a[rows].T @ b[rows] for rows in (slice(0, 128), slice(0, 0), slice(128, 768))]) + 7
    call = uk.k_grouped_bf16_gemm_tn_contiguous
    check(lambda d: call(a.bfloat16(), b.bfloat16(), d, sizes, int32(*sizes), d), expected)


def test_batches_with_a_factor(check, small_integers):
    a, b = small_integers(2 * M, 600).view(M, 2, 600), small_integers(2 * N, 600).view(2, N, 600)
    expected = -0.375 * torch.einsum("bhr,hdr->bhd", a, b)
    alpha = uk.epilogue.Alpha(-0.375)
    check(lambda d: uk.einsum("bhr,hdr->bhd", a.bfloat16(), b.bfloat16(), d, epilogue=alpha), expected, torch.bfloat16)


def test_gathered_k(check, small_integers):
    a, b, indices = small_integers(30, M), small_integers(700, N), torch.arange(700, dtype=torch.int32) % 30
    ranges = ((3, 650), (50, 50), (699, 700))
    expected = torch.stack([a[indices[start:stop].long()].T @ b[start:stop] for start, stop in ranges])
    handle = (indices, int32(3, 50, 699), int32(650, 50, 700))
    call = legacy.a_fused_k_grouped_bf16_gemm_tn_contiguous_tl
    check(lambda d: call(a.bfloat16(), b.bfloat16(), d, handle, False), expected)
