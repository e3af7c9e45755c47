"""Conversions between element types: every 8- and 16-bit input, all roundings and both saturations (e.1.5, e.2.8)."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

Run = Callable[..., torch.Tensor]

BF16, E4M3, E5M2, E2M1 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
C_NAMES = {
    "float": np.float32, "half": np.float16, "bfloat16_t": BF16, "int8_t": np.int8, "uint8_t": np.uint8, "int16_t": np.int16,
    "uint16_t": np.uint16, "int32_t": np.int32, "uint32_t": np.uint32, "int64_t": np.int64, "float8_e4m3_t": E4M3,
    "float8_e5m2_t": E5M2,
}  # fmt: skip
MAXIMUM = {np.float16: 65504.0, BF16: float(ml_dtypes.finfo(BF16).max), E4M3: 448.0, E5M2: 57344.0}
MASK = {1: "b8", 2: "b16", 4: "b32", 8: "b32"}


def all_inputs(ctype: str) -> np.ndarray:
    dtype = np.dtype(C_NAMES[ctype])
    return np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype)


def round_whole(x: np.ndarray, mode: str) -> np.ndarray:
    if mode == "A":
        return np.copysign(np.floor(np.abs(x) + 0.5), x)
    return {"R": np.rint, "F": np.floor, "C": np.ceil, "Z": np.trunc}[mode](x)


def to_integer(x: np.ndarray, dtype: type, mode: str, saturate: bool) -> np.ndarray:
    info = np.iinfo(dtype)
    finite = np.isfinite(x)
    whole = [int(v) for v in round_whole(np.where(finite, x, 0), mode)]
    if saturate:
        kept = [min(max(v, info.min), info.max) for v in whole]
    else:
        kept = [(v - info.min) % 2**info.bits + info.min for v in whole]
    r = np.array(kept, dtype=object)
    r[x == np.inf], r[x == -np.inf], r[np.isnan(x)] = info.max, info.min, 0
    return r.astype(dtype)


def to_float(x: np.ndarray, dtype: type, saturate: bool) -> np.ndarray:
    if saturate and dtype in MAXIMUM:
        x = np.nan_to_num(np.clip(x, -MAXIMUM[dtype], MAXIMUM[dtype]), nan=0.0)
    return x.astype(dtype)


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    with np.errstate(all="ignore"):
        both_nan = np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
    bits = f"u{got.dtype.itemsize}"
    wrong = (got.view(bits) != want.view(bits)) & ~both_nan
    assert got.dtype == want.dtype
    assert not wrong.any(), (what, int(wrong.sum()), np.flatnonzero(wrong)[:4], got[wrong][:4], want[wrong][:4])


def expected(x: np.ndarray, target: str, mode: str, saturate: bool) -> np.ndarray:
    dtype = C_NAMES[target]
    with np.errstate(all="ignore"):
        if x.dtype.kind in "iu" and np.dtype(dtype).kind in "iu":
            if x.dtype == np.int16 and dtype is np.uint32:
                return np.maximum(x, 0).astype(dtype)
            return np.clip(x, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype) if saturate else x.astype(dtype)
        wide = x.astype(np.float32)
        if np.dtype(dtype).kind in "iu":
            return to_integer(wide.astype(np.float64), dtype, mode, saturate)
        return to_float(wide, dtype, saturate)


# (source, [(target, controls before part and mode, rounding, saturation)])
SR = [(f"ROUND_{m}, RS_{s}", m, s == "ENABLE") for m in "RAFCZ" for s in ("ENABLE", "DISABLE")]
CASES = {
    "half": [("float", "", "R", False), ("bfloat16_t", "ROUND_R", "R", False)]
    + [("int16_t", *c) for c in SR]
    + [("int8_t", *c) for c in SR[:4]]
    + [("uint8_t", *c) for c in SR[:4]]
    + [("int32_t", f"ROUND_{m}", m, False) for m in "RAFCZ"]
    + [(t, *c) for t in ("float8_e4m3_t", "float8_e5m2_t") for c in SR[:2]],
    "bfloat16_t": [("float", "", "R", False), ("half", "RS_ENABLE, ROUND_R", "R", True), ("half", "RS_DISABLE, ROUND_R", "R", False)]
    + [("int32_t", *c) for c in SR]
    + [(t, *c) for t in ("float8_e4m3_t", "float8_e5m2_t") for c in SR[:2]],
    "int16_t": [("half", "ROUND_R", "R", False), ("float", "", "R", False), ("int32_t", "", "R", False), ("uint32_t", "", "R", False),
                ("uint8_t", "RS_ENABLE", "R", True), ("uint8_t", "RS_DISABLE", "R", False)],
    "uint16_t": [("uint32_t", "", "R", False), ("uint8_t", "RS_ENABLE", "R", True), ("uint8_t", "RS_DISABLE", "R", False)],
    "int8_t": [("half", "", "R", False), ("int16_t", "", "R", False), ("int32_t", "", "R", False)],
    "uint8_t": [("half", "", "R", False), ("uint16_t", "", "R", False), ("uint32_t", "", "R", False)],
    "float8_e4m3_t": [("float", "", "R", False)],
    "float8_e5m2_t": [("float", "", "R", False)],
}  # fmt: skip
CHUNK = 2048  # inputs per run, so that every result fits UB


@pytest.mark.parametrize("source", CASES)
def test_vcvt_of_every_input(run_simd: Run, source: str) -> None:
    x = all_inputs(source)
    width, cases = x.itemsize, CASES[source]
    chunk = min(CHUNK, x.size)
    lanes, body, offset, places = 256 // width, [], 0, []
    body.append(f"for (int i = 0; i < {chunk // lanes}; ++i) {{ auto s = simd_inst::vlds_norm(({source}*)in(i), 0);")
    for target, controls, _, _ in cases:
        ratio = max(np.dtype(C_NAMES[target]).itemsize // width, 1)
        places.append((offset, ratio))
        narrow = min(width, np.dtype(C_NAMES[target]).itemsize)
        for part in range(ratio):
            part_name = "" if ratio == width / np.dtype(C_NAMES[target]).itemsize == 1 else f"PART_P{part},"
            extra = controls + ", " if controls else ""
            body.append(
                f"{{ auto r = simd_inst::vcvt<{target}>(s, asc_create_mask_{MASK[narrow]}(PAT_ALL), {extra}{part_name} MODE_ZEROING);"
            )
            body.append(
                f"simd_inst::vsts_norm((vector_u8&)r, (uint8_t*)out({offset} + {ratio} * i + {part}), 0, asc_create_mask_b8(PAT_ALL)); }}"
            )
        offset += ratio * chunk // lanes
    body.append("}")
    results: list[list[np.ndarray]] = [[] for _ in cases]
    for start in range(0, x.size, chunk):
        part_of = torch.from_numpy(x[start : start + chunk].view(np.uint8).copy())
        out = run_simd("\n".join(body), [part_of], torch.zeros(256 * offset, dtype=torch.uint8), check="off").numpy()
        for k, (target, *_) in enumerate(cases):
            first, ratio = places[k]
            raw = out[256 * first : 256 * (first + ratio * chunk // lanes)]
            dtype = np.dtype(C_NAMES[target])
            if dtype.itemsize < width:  # results sit in the part's byte, the rest is zero
                pairs = raw.reshape(-1, width)
                assert (pairs[:, dtype.itemsize :] == 0).all()
                results[k].append(np.ascontiguousarray(pairs[:, : dtype.itemsize]).flatten().view(dtype))
            else:  # part p of register i holds source lanes ratio * j + p
                results[k].append(raw.view(dtype).reshape(-1, ratio, lanes // ratio).swapaxes(1, 2).flatten())
    for k, (target, controls, mode, saturate) in enumerate(cases):
        same(np.concatenate(results[k]), expected(x, target, mode, saturate), f"{source} to {target} {controls}")


def test_vcvt_between_bfloat16_and_fp4(run_simd: Run) -> None:
    x = all_inputs("bfloat16_t")
    body = """
  for (int i = 0; i < 32; ++i) { auto s = simd_inst::vlds_norm((bfloat16_t*)in(i), 0); auto m = asc_create_mask_b8(PAT_ALL);
    auto r = simd_inst::vcvt<float4_e2m1x2_t>(s, m, ROUND_R, PART_P2, MODE_ZEROING);
    simd_inst::vsts_norm((vector_u8&)r, (uint8_t*)out(i), 0, m);
    auto b = simd_inst::vcvt<bfloat16_t>(r, m, PART_P2, MODE_ZEROING);
    simd_inst::vsts_norm((vector_u8&)b, (uint8_t*)out(32 + i), 0, m); }
"""
    with np.errstate(all="ignore"):
        clipped = np.nan_to_num(np.clip(x.astype(np.float32), -6, 6), nan=0.0).astype(E2M1)
    for start in range(0, x.size, 4096):
        part = torch.from_numpy(x[start : start + 4096].view(np.uint8).copy())
        out = run_simd(body, [part], torch.zeros(256 * 64, dtype=torch.uint8), check="off").numpy()
        packed = out[: 256 * 32].reshape(-1, 4)
        want = clipped[start : start + 4096]
        codes = want.view(np.uint8)
        assert (packed[:, 2] == (codes[::2] | codes[1::2] << 4)).all()
        assert (packed[:, [0, 1, 3]] == 0).all()
        same(out[256 * 32 :].view(BF16), want.astype(np.float32).astype(BF16), "e2m1 to bf16")


def test_vcvt_of_32_and_64_bit_inputs(run_simd: Run) -> None:
    rng = np.random.default_rng(0)
    f = (rng.standard_normal(64) * np.exp2(rng.integers(-20, 36, 64))).astype(np.float32)
    f[:6] = np.inf, -np.inf, np.nan, 2.5, -3.5, 70000.0
    s, q = rng.integers(-(2**31), 2**31, 64).astype(np.int32), rng.integers(-(2**62), 2**62, 32)
    roundings = "RAFCZ"
    body = [
        "auto f = simd_inst::vlds_norm((float*)in(0), 0); auto s = simd_inst::vlds_norm((int32_t*)in(1), 0); vector_s64 q; asc_loadalign(q, (int64_t*)in(2), 0);"
    ]
    body.append(
        "auto m = asc_create_mask_b32(PAT_ALL), n = asc_create_mask_b16(PAT_ALL), b = asc_create_mask_b8(PAT_ALL);\n#define PUT(N, R) { auto r = R; simd_inst::vsts_norm((vector_u8&)r, (uint8_t*)out(N), 0, b); }"
    )
    for i, m in enumerate(roundings):
        body.append(f"PUT({i}, simd_inst::vcvt<int32_t>(f, m, ROUND_{m}, RS_ENABLE, MODE_ZEROING))")
        body.append(f"PUT({5 + i}, simd_inst::vcvt<int16_t>(f, n, ROUND_{m}, RS_DISABLE, PART_ODD, MODE_ZEROING))")
        body.append(f"PUT({10 + i}, simd_inst::vcvt<float>(s, m, ROUND_{m}, MODE_ZEROING))")
        body.append(f"PUT({15 + i}, simd_inst::vcvt<float>(q, m, ROUND_{m}, PART_EVEN, MODE_ZEROING))")
    body.append("PUT(20, simd_inst::vcvt<int64_t>(f, m, ROUND_R, RS_ENABLE, PART_ODD, MODE_ZEROING))")
    body.append("PUT(21, simd_inst::vcvt<half>(f, n, ROUND_R, RS_ENABLE, PART_EVEN, MODE_ZEROING))")
    body.append("PUT(22, simd_inst::vcvt<half>(f, n, ROUND_O, RS_DISABLE, PART_EVEN, MODE_ZEROING))")
    body.append("PUT(23, simd_inst::vcvt<uint8_t>(s, b, RS_ENABLE, PART_P3, MODE_ZEROING))")
    body.append("PUT(24, simd_inst::vcvt<int32_t>(q, m, RS_ENABLE, PART_ODD, MODE_ZEROING))")
    body.append("PUT(25, simd_inst::vcvt<int64_t>(s, m, PART_ODD, MODE_ZEROING))")
    inputs = [torch.from_numpy(v.view(np.uint8).copy()) for v in (f, s, q)]
    out = run_simd("\n".join(body), inputs, torch.zeros(256 * 26, dtype=torch.uint8)).numpy().reshape(26, 256)
    wide = f.astype(np.float64)
    for i, m in enumerate(roundings):
        same(out[i].view(np.int32), to_integer(wide, np.int32, m, True), f"f32 to s32 {m}")
        same(out[5 + i].view(np.int16)[1::2].copy(), to_integer(wide, np.int16, m, False), f"f32 to s16 {m}")
        for row, values in ((10, s), (15, q)):
            got = out[row + i].view(np.float32)[:: 64 // values.size].copy()
            unit = np.exp2(np.maximum(np.floor(np.log2(np.abs(values.astype(np.longdouble)))) - 23, 0))
            scaled = values.astype(np.longdouble) / unit
            want = (round_whole(scaled, m) * unit).astype(np.float32)
            same(got, want, f"{values.dtype} to f32 {m}")
    same(out[20].view(np.int64), to_integer(wide[1::2], np.int64, "R", True), "f32 to s64")
    with np.errstate(all="ignore"):
        same(out[21].view(np.float16)[::2].copy(), to_float(f, np.float16, True), "f32 to f16")
        nearest = f.astype(np.float16)
    odd = out[22].view(np.float16)[::2].copy()
    inside = np.isfinite(nearest) & (np.abs(f) > 1e-4)
    exact = odd.astype(np.float32) == f
    assert (
        np.abs(odd[inside].astype(np.float32) - f[inside]) < np.spacing(np.abs(nearest[inside])).astype(np.float32)
    ).all()
    assert ((odd.view(np.uint16)[inside & ~exact] & 1) == 1).all()
    assert (out[23][3::4] == np.clip(s, 0, 255)).all()
    same(out[24].view(np.int32)[1::2].copy(), np.clip(q, -(2**31), 2**31 - 1).astype(np.int32), "s64 to s32")
    same(out[25].view(np.int64), s[1::2].astype(np.int64), "s32 to s64")


SIMT_16 = """
  const int n = 2048; float2 a;
  for (int i = threadIdx.x; i < n; i += 64) {{
    a.x = float((({source}*)in)[i]), a.y = a.x;
    ((half2*)out)[i] = __float22half2_rn(a);
    ((bfloat16x2_t*)(out + 4 * n))[i] = __float22bfloat162_rn(a);
    ((uint16_t*)(out + 8 * n))[i] = __asc_cvt_float2_to_fp8x2(a, __ASC_SATFINITE, __ASC_E4M3);
    ((uint16_t*)(out + 10 * n))[i] = __asc_cvt_float2_to_fp8x2(a, __ASC_NOSAT, __ASC_E4M3);
    ((uint16_t*)(out + 12 * n))[i] = __asc_cvt_float2_to_fp8x2(a, __ASC_SATFINITE, __ASC_E5M2);
    ((uint16_t*)(out + 14 * n))[i] = __asc_cvt_float2_to_fp8x2(a, __ASC_NOSAT, __ASC_E5M2);
    ((float*)(out + 16 * n))[i] = a.x;
    ((half*)(out + 20 * n))[i] = half((({source}*)in)[i]);
    ((bfloat16_t*)(out + 22 * n))[i] = __float2bfloat16_rn(a.x);
  }}
"""


@pytest.mark.parametrize(
    ("source", "saturate"),
    [
        ("half", False),
        ("bfloat16_t", True),
        pytest.param("half", True, marks=pytest.mark.slow),
        pytest.param("bfloat16_t", False, marks=pytest.mark.slow),
    ],
)
def test_simt_conversions_of_every_16_bit_input(run_simt: Run, source: str, saturate: bool) -> None:
    x, n = all_inputs(source), 2048
    for start in range(0, x.size, n):
        values = x[start : start + n]
        part = torch.from_numpy(values.view(np.uint8).copy())
        output = torch.zeros(24 * n, dtype=torch.uint8)
        out = run_simt(
            SIMT_16.format(source=source), [part], output, threads="64", check="off", saturate=saturate
        ).numpy()
        with np.errstate(all="ignore"):
            f = values.astype(np.float32)
            pairs = [
                (0, np.float16, saturate),
                (4, BF16, saturate),
                (8, E4M3, True),
                (10, E4M3, False),
                (12, E5M2, True),
                (14, E5M2, False),
            ]
            for place, dtype, clamp in pairs:
                size = 2 * np.dtype(dtype).itemsize
                same(
                    out[place * n : (place + size) * n].view(dtype),
                    np.repeat(to_float(f, dtype, clamp), 2),
                    f"{dtype} {clamp}",
                )
            same(out[16 * n : 20 * n].view(np.float32), f, "widening")
            if source != "half":  # half(half) copies
                same(out[20 * n : 22 * n].view(np.float16), to_float(f, np.float16, saturate), "scalar half")
            same(out[22 * n :].view(BF16), to_float(f, BF16, saturate), "scalar bfloat16")


def test_simt_conversions_of_every_8_bit_input(run_simt: Run) -> None:
    codes = np.arange(256, dtype=np.uint8)
    body = """
  const int i = threadIdx.x; uint16_t pair = uint16_t(in[i] | in[i] << 8);
  ((float2*)out)[i] = __e4m3x22float2(*(float8_e4m3x2_t*)&pair);
  ((float2*)(out + 2048))[i] = __e5m2x22float2(*(float8_e5m2x2_t*)&pair);
  ((float*)(out + 4096))[i] = float(tl::float_e4m3_t::from_bits(in[i]));
  ((tl::float_e5m2_t*)(out + 5120))[i] = tl::float_e5m2_t(float(tl::float_e5m2_t::from_bits(in[i])));
  ((half2*)(out + 5376))[i] = tl::detail::cast_fp8_e4m3x2_to_half2(*(float8_e4m3x2_t*)&pair);
"""
    out = run_simt(body, [torch.from_numpy(codes.copy())], torch.zeros(6400, dtype=torch.uint8), threads="256").numpy()
    with np.errstate(all="ignore"):
        e4, e5 = codes.view(E4M3).astype(np.float32), codes.view(E5M2).astype(np.float32)
        same(out[:2048].view(np.float32), np.repeat(e4, 2), "e4m3")
        same(out[2048:4096].view(np.float32), np.repeat(e5, 2), "e5m2")
        same(out[4096:5120].view(np.float32), e4, "float_e4m3_t")
        same(out[5120:5376].view(E5M2), to_float(e5, E5M2, True), "float_e5m2_t")
        same(out[5376:].view(np.float16), np.repeat(e4, 2).astype(np.float16), "e4m3 to half2")
