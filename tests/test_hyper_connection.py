"""Hyper-connection functions: formulas in another spelling, memory layouts, repeatability, refused arguments."""

from __future__ import annotations

import math

import pytest
import torch

import unikernels as uk
from unikernels.errors import ArgumentTypeError, InvalidArgumentError
from unikernels.operations.hc_prenorm import round_to_tf32
from unikernels.operations.mega_mhc import shared_scale_rows
from unikernels.testing import assert_bitwise_equal, calc_diff

BACKENDS = ("cpu", "reference")
N = 4
SCALARS = {
    "hc_mult": N,
    "hc_norm_eps": 1e-6,
    "hc_pre_eps": 1e-2,
    "hc_post_scale": 2.0,
    "sinkhorn_eps": 1e-3,
    "num_sinkhorn_iters": 5,
    "rmsnorm_eps": 1e-6,
    "rmsnorm_scale": 0.5,
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# tf32 rounding


def test_tf32_rounding_is_to_nearest_even():
    step = 2.0**-10
    values = torch.tensor([1.0, 1 + step / 2, 1 + 3 * step / 2, 1 + step * 0.49, 1 + step * 0.51, -(1 + 3 * step / 2)])
    expected = [1.0, 1.0, 1 + 2 * step, 1.0, 1 + step, -(1 + 2 * step)]
    assert round_to_tf32(values).tolist() == expected


def test_tf32_rounding_against_exact_arithmetic():
    values = torch.cat([torch.randn(5000), torch.randn(5000) * 2.0 ** torch.randint(-120, 120, (5000,)).float()])
    for value, rounded in zip(values.tolist(), round_to_tf32(values).tolist(), strict=True):
        mantissa, exponent = math.frexp(value)
        assert rounded == math.ldexp(round(mantissa * 2**11), exponent - 11)  # Python rounds halves to even


def test_tf32_rounding_keeps_special_values():
    values = torch.tensor([math.inf, -math.inf, 0.0, -0.0])
    assert_bitwise_equal(round_to_tf32(values), values)
    assert round_to_tf32(torch.tensor([math.nan])).isnan().all()
    assert round_to_tf32(torch.tensor([torch.finfo(torch.float32).max])).item() == math.inf


# tf32_hc_prenorm_gemm


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_splits", [None, 1, 16])
def test_prenorm_repeats_bitwise_and_is_accurate(backend, num_splits):
    """FC-35."""
    m, n, k = 37, 24, 7168
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k)
    slabs = () if num_splits is None else (num_splits,)
    first = None
    with uk.use_backend(backend):
        for _ in range(20):
            d, sqr_sum = torch.full((*slabs, m, n), math.nan), torch.full((*slabs, m), math.nan)
            uk.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)
            first = first or (d, sqr_sum)
            assert_bitwise_equal(d, first[0])
            assert_bitwise_equal(sqr_sum, first[1])
    if slabs:
        d, sqr_sum = d.sum(0), sqr_sum.sum(0)
    assert calc_diff(d, a.double() @ b.double().T) < 1e-6
    assert calc_diff(d, a.double() @ round_to_tf32(b).double().T) < 1e-8
    torch.testing.assert_close(sqr_sum, a.float().square().sum(-1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("m", [2, 5, 47, 48, 49, 137])
def test_prenorm_rows_do_not_depend_on_their_place(m):
    row, b = torch.randn(1, 7168).bfloat16(), torch.randn(24, 7168)
    alone, alone_sum = torch.empty(1, 24), torch.empty(1)
    uk.tf32_hc_prenorm_gemm(row, b, alone, alone_sum)
    d, sqr_sum = torch.empty(m, 24), torch.empty(m)
    uk.tf32_hc_prenorm_gemm(row.repeat(m, 1), b, d, sqr_sum)
    assert_bitwise_equal(d, alone.expand(m, -1).contiguous())
    assert_bitwise_equal(sqr_sum, alone_sum.expand(m).contiguous())


@pytest.mark.parametrize("backend", BACKENDS)
def test_prenorm_takes_padded_rows_and_zero_tokens(backend):
    wide, b = torch.randn(5, 512).bfloat16(), torch.randn(8, 256)
    d, sqr_sum = torch.empty(5, 8), torch.empty(5)
    with uk.use_backend(backend):
        uk.tf32_hc_prenorm_gemm(wide[:, :256], b, d, sqr_sum)
        uk.tf32_hc_prenorm_gemm(wide[:0, :256], b, torch.empty(0, 8), torch.empty(0))
    assert calc_diff(d, wide[:, :256].double() @ b.double().T) < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.ones(3, 256)}, r"a has dtype torch.float32, expected bfloat16"),
        ({"b": torch.ones(24, 128)}, r"a has k=256 but b has k=128"),
        ({"b": torch.ones(20, 256)}, r"n is 20 .*multiple of 8"),
        ({"b": torch.ones(136, 256)}, r"n is 136 .*at most 128"),
        ({"a": torch.ones(3, 96).bfloat16(), "b": torch.ones(24, 96)}, r"k is 96 .*multiple of 64"),
        ({"a": torch.ones(256, 3).bfloat16().T}, r"a has strides \(1, 3\), expected a unit stride along k"),
        ({"d": torch.ones(3, 16)}, r"d has shape \(3, 16\), expected \(3, 24\)"),
        ({"num_splits": 2}, r"d has shape \(3, 24\), expected \(2, 3, 24\)"),
        ({"num_splits": 0}, r"num_splits is 0, expected at least 1"),
        ({"num_splits": True}, r"num_splits is True"),
        ({"sqr_sum": torch.ones(6)[::2]}, r"sqr_sum has strides \(2,\)"),
        ({"sqr_sum": torch.ones(3).double()}, r"sqr_sum has dtype torch.float64, expected float32"),
    ],
)
def test_prenorm_refuses(change, message):
    arguments = {
        "a": torch.ones(3, 256).bfloat16(),
        "b": torch.ones(24, 256),
        "d": torch.full((3, 24), 7.0),
        "sqr_sum": torch.full((3,), 7.0),
    }
    with pytest.raises(InvalidArgumentError, match=f"tf32_hc_prenorm_gemm: {message}"):
        uk.tf32_hc_prenorm_gemm(**{**arguments, **change})
    assert (arguments["d"] == 7).all()
    assert (arguments["sqr_sum"] == 7).all()


# mega_mhc


def _arguments(t, h=1024, shifted=False):
    arguments = {
        "x": torch.randn(t, h).bfloat16(),
        "residual": torch.randn(t, N, h).bfloat16(),
        "shifted_prev_mix": torch.rand(t, N, 1) if shifted else None,
        "post_mix": torch.rand(t, N, 1) * 2,
        "comb_res_mix": torch.rand(t, N, N),
        "fn": torch.randn(N * (N + 2), N * h) / h**0.5,
        "mix_scales": torch.tensor([0.5, 0.75, 1.25]),
        "mix_bases": torch.randn(N * (N + 2)) / 2,
        "rmsnorm_weight": (1 + torch.randn(h) / 4).bfloat16(),
        "new_residual": torch.full((t, N, h), 7.0).bfloat16(),
        "new_prev_mix": torch.full((t, N, 1), 7.0) if shifted else None,
        "new_post_mix": torch.full((t, N, 1), 7.0),
        "new_comb_res_mix": torch.full((t, N, N), 7.0),
        "y_bf16": torch.full((t, h), 7.0).bfloat16(),
    }
    return {**arguments, **SCALARS}


def _formula(a, token):
    """The contract's formula for one token, in Python numbers where sizes allow; returns (R, pre, post, C, y)."""
    h = a["x"].shape[1]
    streams = []
    for j in range(N):
        total = a["x"][token].double() * a["post_mix"][token, j].double()
        for i in range(N):
            total += a["comb_res_mix"][token, i, j].double() * a["residual"][token, i].double()
        streams.append(total.bfloat16().double())
    concatenated = torch.cat(streams)
    norm = 1 / math.sqrt(float(concatenated.square().sum()) / (N * h) + SCALARS["hc_norm_eps"])
    z = [float(row.double() @ concatenated) * norm for row in round_to_tf32(a["fn"])]
    scales = a["mix_scales"].tolist()
    z = [v * scales[min(i // N, 2)] + base for i, (v, base) in enumerate(zip(z, a["mix_bases"].tolist(), strict=True))]
    pre = [1 / (1 + math.exp(-v)) + SCALARS["hc_pre_eps"] for v in z[:N]]
    post = [SCALARS["hc_post_scale"] / (1 + math.exp(-v)) for v in z[N : 2 * N]]
    rows = [z[2 * N + i * N : 2 * N + (i + 1) * N] for i in range(N)]
    eps = SCALARS["sinkhorn_eps"]
    rows = [[math.exp(v) / sum(map(math.exp, row)) + eps for v in row] for row in rows]

    def columns_normalised(rows):
        sums = [sum(column) + eps for column in zip(*rows, strict=True)]
        return [[v / s for v, s in zip(row, sums, strict=True)] for row in rows]

    rows = columns_normalised(rows)
    for _ in range(SCALARS["num_sinkhorn_iters"] - 1):
        rows = columns_normalised([[v / (sum(row) + eps) for v in row] for row in rows])
    mix = pre if a["shifted_prev_mix"] is None else a["shifted_prev_mix"][token].flatten().tolist()
    u = sum(m * stream for m, stream in zip(mix, streams, strict=True)).bfloat16().double()
    y = u / math.sqrt(float(u.square().mean()) + SCALARS["rmsnorm_eps"]) * a["rmsnorm_weight"].double()
    return torch.stack(streams), torch.tensor(pre), torch.tensor(post), torch.tensor(rows), y * SCALARS["rmsnorm_scale"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shifted", [False, True])
def test_mhc_formula(backend, shifted):
    arguments = _arguments(3, shifted=shifted)
    with uk.use_backend(backend):
        uk.mega_mhc(**arguments)
    for token in range(3):
        streams, pre, post, comb, y = _formula(arguments, token)
        assert calc_diff(arguments["new_residual"][token], streams) < 1e-7
        assert calc_diff(arguments["y_bf16"][token], y) < 1e-5
        torch.testing.assert_close(arguments["new_post_mix"][token].flatten(), post, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(arguments["new_comb_res_mix"][token], comb, rtol=1e-4, atol=1e-5)
        if shifted:
            torch.testing.assert_close(arguments["new_prev_mix"][token].flatten(), pre, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mhc_fp8_is_the_cast_of_the_bf16_output(backend):
    t, h, block = 300, 1024, 224
    arguments = _arguments(t, h, shifted=True)
    words = h // 128
    num_rows = 2 * 256
    with uk.use_backend(backend):
        gemm = {"y_fp8": torch.empty(t, h).to(torch.float8_e4m3fn), "y_gemm_sf": torch.zeros(words, 304).int().T[:t]}
        uk.mega_mhc(**arguments, **gemm)
        buffer = torch.full((words, num_rows), 7, dtype=torch.int32).T
        moe = {
            "y_fp8": torch.empty(t, h).to(torch.float8_e4m3fn),
            "y_routed_sf": torch.zeros(t, words).int(),
            "y_shared_sf": buffer[:t],
            "shared_sf_block_m": block,
        }
        uk.mega_mhc(**{**arguments, "y_bf16": None}, **moe)
    data, sf = uk.per_token_cast_to_fp8(arguments["y_bf16"], True, 32, True)
    assert_bitwise_equal(gemm["y_fp8"], data)
    assert_bitwise_equal(moe["y_fp8"], data)
    assert_bitwise_equal(gemm["y_gemm_sf"].contiguous(), sf)
    assert_bitwise_equal(moe["y_routed_sf"], sf)
    expected = torch.full((num_rows, words), 7, dtype=torch.int32)
    for token in range(t):
        i = token % block
        expected[(token // block) * 256 + (i // 128) * 128 + (i % 32) * 4 + (i % 128) // 32] = sf[token]
    assert_bitwise_equal(buffer.contiguous(), expected)


@pytest.mark.parametrize("block_m", [1, 32, 100, 128, 224, 256])
def test_shared_scale_rows_never_collide(block_m):
    rows = shared_scale_rows(700, block_m, torch.device("cpu"))
    assert len(rows.unique()) == 700
    aligned = -(-block_m // 128) * 128
    assert int(rows.max()) < -(-700 // block_m) * aligned


@pytest.mark.parametrize("t", [2, 7, 48, 49, 130])
def test_mhc_tokens_do_not_depend_on_their_place(t):
    single = _arguments(1, 2048, shifted=True)
    single["y_fp8"], single["y_gemm_sf"] = torch.zeros(1, 2048).to(torch.float8_e4m3fn), torch.zeros(16, 4).int().T[:1]
    many = _arguments(t, 2048, shifted=True)
    for name in ("x", "residual", "shifted_prev_mix", "post_mix", "comb_res_mix"):
        many[name] = single[name].expand(t, *single[name].shape[1:]).contiguous()
    for name in ("fn", "mix_scales", "mix_bases", "rmsnorm_weight"):
        many[name] = single[name]
    many["y_fp8"] = torch.zeros(t, 2048).to(torch.float8_e4m3fn)
    many["y_gemm_sf"] = torch.zeros(16, -(-t // 4) * 4).int().T[:t]
    uk.mega_mhc(**single)
    uk.mega_mhc(**many)
    for name in ("new_residual", "new_prev_mix", "new_post_mix", "new_comb_res_mix", "y_bf16", "y_fp8", "y_gemm_sf"):
        for token in (0, t // 2, t - 1):
            assert_bitwise_equal(many[name][token].contiguous(), single[name][0].contiguous())


def test_mhc_repeats_bitwise():
    first = _arguments(70, shifted=True)
    uk.mega_mhc(**first)
    outputs = [name for name, value in first.items() if name.startswith(("new_", "y_"))]
    for _ in range(10):
        again = {**first, **{name: torch.empty_like(first[name]) for name in outputs}}
        uk.mega_mhc(**again)
        for name in outputs:
            assert_bitwise_equal(again[name], first[name])


def test_mhc_zero_tokens():
    arguments = _arguments(0)
    arguments["y_fp8"], arguments["y_gemm_sf"] = torch.zeros(0, 1024).to(torch.float8_e4m3fn), torch.zeros(0, 8).int()
    uk.mega_mhc(**arguments)


def _sf(rows, words=8):
    return torch.zeros(words, rows).int().T


FP8 = torch.zeros(6, 1024).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hc_mult": 2}, r"hc_mult is 2, expected 4 to 4"),
        ({"num_sinkhorn_iters": 0}, r"num_sinkhorn_iters is 0, expected at least 1"),
        ({"rmsnorm_eps": math.nan}, r"rmsnorm_eps is nan, expected a finite number"),
        ({"shifted_prev_mix": torch.ones(6, 4, 1)}, r"shifted_prev_mix given without new_prev_mix"),
        ({"new_prev_mix": torch.ones(6, 4, 1)}, r"new_prev_mix given without shifted_prev_mix"),
        ({"y_bf16": None}, r"neither y_bf16 nor y_fp8 is given"),
        ({"y_fp8": FP8}, r"got y_fp8, expected y_fp8 with exactly one form"),
        ({"y_gemm_sf": _sf(8)[:6]}, r"got y_gemm_sf, expected y_fp8 with exactly one form"),
        ({"y_fp8": FP8, "y_routed_sf": torch.zeros(6, 8).int()}, r"y_routed_sf given without y_shared_sf"),
        (
            {"y_fp8": FP8, "y_routed_sf": torch.zeros(6, 8).int(), "y_shared_sf": _sf(128)[:6]},
            r"shared_sf_block_m is 0 with y_shared_sf",
        ),
        ({"shared_sf_block_m": 32}, r"shared_sf_block_m is 32 without y_shared_sf"),
        (
            {"y_fp8": FP8, "y_routed_sf": torch.zeros(6, 8).int(), "y_shared_sf": _sf(8)[:6], "shared_sf_block_m": 32},
            r"y_shared_sf has pitch 8 .* at least 128 rows",
        ),
        ({"y_fp8": FP8, "y_gemm_sf": _sf(6)}, r"y_gemm_sf has strides \(1, 6\).*multiple of 4"),
        ({"y_fp8": FP8, "y_gemm_sf": torch.zeros(6, 8).int()}, r"y_gemm_sf has strides \(8, 1\).*MN-major"),
        ({"residual": torch.ones(6, 4, 2048).bfloat16()}, r"residual has shape .*expected \(6, 4, 1024\)"),
        ({"fn": torch.ones(24, 4096).bfloat16()}, r"fn has dtype torch.bfloat16, expected float32"),
        ({"x": torch.ones(6, 512).bfloat16()}, r"hidden is 512 .*multiple of 1024"),
        (
            {"post_mix": torch.ones(6, 1, 4).mT[:, :, :1].expand(6, 4, 1)[:, :, :1].repeat(2, 1, 1)[::2]},
            r"post_mix has strides",
        ),
    ],
)
def test_mhc_refuses(change, message):
    arguments = _arguments(6)
    with pytest.raises(InvalidArgumentError, match=f"mega_mhc: {message}"):
        uk.mega_mhc(**{**arguments, **change})
    for name in ("new_residual", "new_post_mix", "new_comb_res_mix", "y_bf16"):
        assert (arguments[name] == 7).all()


def test_mhc_refuses_outputs_over_inputs():
    arguments = _arguments(2)
    arguments["new_residual"] = arguments["residual"]
    with pytest.raises(InvalidArgumentError, match="mega_mhc: new_residual shares memory with residual"):
        uk.mega_mhc(**arguments)


def test_mhc_refuses_other_types():
    with pytest.raises(ArgumentTypeError, match=r"mega_mhc: x is a list, expected a torch\.Tensor"):
        uk.mega_mhc(**{**_arguments(1), "x": [1.0]})
