"""SIMD lane arithmetic, comparisons and predicate logic (reference e.2.6) against numpy, every lane and type."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np
import pytest
import torch

Run = Callable[..., torch.Tensor]

TYPES = {
    "float": np.float32, "half": np.float16, "bfloat16_t": ml_dtypes.bfloat16, "int8_t": np.int8, "uint8_t": np.uint8,
    "int16_t": np.int16, "uint16_t": np.uint16, "int32_t": np.int32, "uint32_t": np.uint32,
}  # fmt: skip
FLOATS = ("float", "half", "bfloat16_t")
MASK = {1: "b8", 2: "b16", 4: "b32"}


def mostly_slow(names: Iterable[str], *always: str) -> list[object]:
    """Every type is a compilation of its own; the named ones run by default."""
    return [n if n in always else pytest.param(n, marks=pytest.mark.slow) for n in names]


def values(ctype: str, seed: int) -> np.ndarray:
    """256 bytes of lanes: random ones, and for floats zeros, infinities and NaN among them."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(TYPES[ctype])
    n = 256 // dtype.itemsize
    if ctype in FLOATS:
        v = (rng.standard_normal(n) * 3).astype(np.float32)
        v[:8] = rng.permutation(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5], np.float32))
        return v.astype(dtype)
    info = np.iinfo(dtype)
    v = rng.integers(info.min, info.max, n, dtype=np.int64, endpoint=True)
    v[:3] = info.min, info.max, 0
    return v.astype(dtype)


def tensor(a: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(a.view(np.uint8).copy())


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Bit equality, except that any NaN equals any NaN."""
    with np.errstate(all="ignore"):
        want = want.astype(got.dtype)
        both_nan = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
    bits = np.dtype(f"u{got.dtype.itemsize}")
    wrong = (got.view(bits) != want.view(bits)) & ~both_nan
    assert not wrong.any(), (np.flatnonzero(wrong)[:5], got[wrong][:5], want[wrong][:5])


def pick(a: np.ndarray, b: np.ndarray, larger: bool) -> np.ndarray:
    x, y = a.astype(np.float64), b.astype(np.float64)
    first = (x > y) if larger else (x < y)
    r = np.where(first, a, b)
    zeros = (x == 0) & (y == 0)
    sign = np.signbit(x) & np.signbit(y) if larger else np.signbit(x) | np.signbit(y)
    r = np.where(zeros, np.where(sign, np.asarray(-0.0, a.dtype), np.asarray(0.0, a.dtype)), r)
    return np.where(np.isnan(x) | np.isnan(y), np.asarray(np.nan, a.dtype), r)


def wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32)


def expected(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    floating = a.dtype.kind == "f" or a.dtype == ml_dtypes.bfloat16
    bits = np.dtype(f"u{a.dtype.itemsize}")
    with np.errstate(all="ignore"):
        if op in ("and", "or", "xor"):
            f = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
            return f(a.view(bits), b.view(bits)).view(a.dtype)
        if op in ("max", "min"):
            return pick(a, b, op == "max") if floating else getattr(np, f"{op}imum")(a, b)
        if floating:
            f = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
            return f(wide(a), wide(b)).astype(a.dtype)
        x, y = a.astype(object), b.astype(object)
        if op == "div":
            r = np.array(
                [
                    0 if q == 0 else abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)
                    for p, q in zip(x, y, strict=True)
                ],
                object,
            )
        else:
            r = {"add": x + y, "sub": x - y, "mul": x * y}[op]
        return (r & (2 ** (8 * a.itemsize) - 1)).astype(np.uint64).astype(bits).view(a.dtype)


@pytest.mark.parametrize("ctype", mostly_slow(TYPES, "float", "bfloat16_t", "int8_t", "uint32_t"))
def test_binary_operations_of_all_lanes(run_simd: Run, ctype: str) -> None:
    a, b = values(ctype, 1), values(ctype, 2)
    if ctype not in FLOATS:
        b[b == 0] = 3  # division by zero is undefined
    operations = ["add", "sub", "max", "min", "and", "or", "xor", "mul", "div"]
    body = [f"simd_inst::vec_t<{ctype}> a, b, r; vector_bool m = asc_create_mask_{MASK[a.itemsize]}(PAT_ALL);"]
    body.append(f"asc_loadalign(a, ({ctype}*)in(0), 0); asc_loadalign(b, ({ctype}*)in(1), 0);")
    body += [f"asc_{op}(r, a, b, m); asc_storealign(({ctype}*)out({i}), r, 0, m);" for i, op in enumerate(operations)]
    out = run_simd("\n".join(body), [tensor(a), tensor(b)], torch.zeros(256 * len(operations), dtype=torch.uint8))
    for i, op in enumerate(operations):
        same(out[256 * i : 256 * (i + 1)].numpy().view(a.dtype), expected(op, a, b))


@pytest.mark.parametrize("ctype", mostly_slow(["float", "half", "int16_t", "uint32_t"], "half"))
def test_inactive_lanes_are_zero_or_keep_the_destination(run_simd: Run, ctype: str) -> None:
    a, b = values(ctype, 3), values(ctype, 4)
    width = MASK[a.itemsize]
    body = f"""
  simd_inst::vec_t<{ctype}> a, b, r, k; vector_bool all = asc_create_mask_{width}(PAT_ALL), m = asc_create_mask_{width}(PAT_M3);
  asc_loadalign(a, ({ctype}*)in(0), 0); asc_loadalign(b, ({ctype}*)in(1), 0);
  asc_add(r, a, b, m); asc_storealign(({ctype}*)out(0), r, 0, all);
  k = b; ::vadd(k, a, b, m, MODE_MERGING); asc_storealign(({ctype}*)out(1), k, 0, all);
  k = b; ::vadds(k, a, 2, m, MODE_MERGING); asc_storealign(({ctype}*)out(2), k, 0, all);
  k = b; ::vabs(k, a, m, MODE_MERGING); asc_storealign(({ctype}*)out(3), k, 0, all);
  k = simd_inst::vadd(b, a, b, m, MODE_MERGING); asc_storealign(({ctype}*)out(4), k, 0, all);
  asc_storealign(({ctype}*)out(5), a, 0, m);
"""
    before = torch.full((6 * 256,), 7, dtype=torch.uint8)
    out = run_simd(body, [tensor(a), tensor(b)], before.clone()).numpy()
    lanes = [out[256 * i : 256 * (i + 1)].view(a.dtype) for i in range(6)]
    active = np.arange(a.size) % 3 == 0
    total = expected("add", a, b)
    same(lanes[0], np.where(active, total, np.zeros_like(a)))
    same(lanes[1], np.where(active, total, b))
    same(lanes[2], np.where(active, expected("add", a, np.full_like(a, 2)), b))
    magnitude = np.abs(a.astype(np.int64)).astype(a.dtype) if a.dtype.kind in "iu" else np.abs(a)
    same(lanes[3], np.where(active, magnitude, b))
    same(lanes[4], np.where(active, total, b))
    same(lanes[5], np.where(active, a, before[:256].numpy().view(a.dtype)))


@pytest.mark.parametrize("ctype", mostly_slow(["float", "half", "int8_t", "uint16_t", "int32_t"], "float"))
def test_comparisons(run_simd: Run, ctype: str) -> None:
    a, b = values(ctype, 5), values(ctype, 6)
    b[::4] = a[::4]
    width, names = MASK[a.itemsize], ["eq", "ne", "gt", "ge", "lt", "le"]
    body = [
        f"simd_inst::vec_t<{ctype}> a, b; vector_bool p, m = asc_create_mask_{width}(PAT_M4), all = asc_create_mask_{width}(PAT_ALL);"
    ]
    body.append(f"asc_loadalign(a, ({ctype}*)in(0), 0); asc_loadalign(b, ({ctype}*)in(1), 0);")
    for i, name in enumerate(names):
        body.append(f"asc_{name}(p, a, b, all); asc_storealign((uint32_t*)out({i}), p, 0);")
        body.append(f"asc_{name}_scalar(p, a, 1, m); asc_storealign((uint32_t*)out({i}), p, 32);")
    out = run_simd("\n".join(body), [tensor(a), tensor(b)], torch.zeros(256 * len(names), dtype=torch.uint8)).numpy()
    operators = {
        "eq": np.equal,
        "ne": np.not_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "lt": np.less,
        "le": np.less_equal,
    }
    for i, name in enumerate(names):
        for k, (other, mask) in enumerate(((b, np.ones(a.size, bool)), (np.ones_like(a), np.arange(a.size) % 4 == 0))):
            bits = np.unpackbits(out[256 * i + 32 * k : 256 * i + 32 * (k + 1)], bitorder="little").reshape(
                a.size, a.itemsize
            )
            assert (bits[:, 1:] == 0).all()
            assert (bits[:, 0].astype(bool) == (operators[name](a, other) & mask)).all(), name


def test_unary_and_special_functions(run_simd: Run) -> None:
    a = values("float", 7)
    a[8] = 1e-40
    h = values("half", 8)
    names = ["neg", "abs", "relu", "exp", "ln", "sqrt", "not"]
    body = [
        "vector_f32 a, r; vector_f16 h, s; vector_bool m = asc_create_mask_b32(PAT_ALL), n = asc_create_mask_b16(PAT_ALL);"
    ]
    body.append("asc_loadalign(a, (float*)in(0), 0); asc_loadalign(h, (half*)in(1), 0);")
    for i, name in enumerate(names):
        body.append(f"asc_{name}(r, a, m); asc_storealign((float*)out({2 * i}), r, 0, m);")
        body.append(f"asc_{name}(s, h, n); asc_storealign((half*)out({2 * i + 1}), s, 0, n);")
    body.append("r = simd_inst::vdiv_0ulp_ftz_true(a, simd_inst::vdup<float>(3.0f, m, MODE_ZEROING), m, MODE_ZEROING);")
    body.append("asc_storealign((float*)out(14), r, 0, m);")
    body.append("r = simd_inst::vsqrt_0ulp_ftz_false(a, m, MODE_ZEROING); asc_storealign((float*)out(15), r, 0, m);")
    out = run_simd("\n".join(body), [tensor(a), tensor(h)], torch.zeros(256 * 16, dtype=torch.uint8)).numpy()
    flushed = np.where(np.abs(a) < 2.0**-126, np.copysign(np.float32(0), a), a)
    with np.errstate(all="ignore"):
        for k, x in enumerate((a, h)):
            f = flushed if k == 0 else wide(h)
            want = {
                "neg": -x, "abs": np.abs(x), "relu": np.where(np.isnan(x), x, np.where(x > 0, x, np.zeros_like(x))),
                "exp": torch.exp(torch.from_numpy(wide(x))).numpy(), "ln": torch.log(torch.from_numpy(f)).numpy(), "sqrt": np.sqrt(f),
                "not": (~x.view(f"u{x.itemsize}")).view(x.dtype),
            }  # fmt: skip
            for i, name in enumerate(names):
                got = out[256 * (2 * i + k) : 256 * (2 * i + k + 1)].view(x.dtype)
                if name in ("exp", "ln"):
                    tolerance = 2e-7 if k == 0 else 1e-3
                    np.testing.assert_allclose(wide(got), wide(want[name]), rtol=tolerance, atol=tolerance)
                else:
                    same(got, want[name])
        same(out[14 * 256 : 15 * 256].view(np.float32), flushed / np.float32(3))
        same(out[15 * 256 :].view(np.float32), np.sqrt(a))


def test_shifts_fused_products_and_rectifiers(run_simd: Run) -> None:
    s, u = values("int32_t", 9), values("uint32_t", 10)
    n = np.arange(64, dtype=np.int32) % 40
    a, b, d = (values("float", k) for k in (11, 12, 13))
    body = """
  vector_s32 s, n, r; vector_u32 u, q; vector_f32 a, b, d, f; vector_bool m = asc_create_mask_b32(PAT_ALL);
  asc_loadalign(s, (int32_t*)in(0), 0); asc_loadalign(u, (uint32_t*)in(1), 0); asc_loadalign(n, (int32_t*)in(2), 0);
  asc_loadalign(a, (float*)in(3), 0); asc_loadalign(b, (float*)in(4), 0); asc_loadalign(d, (float*)in(5), 0);
  asc_shiftleft(r, s, n, m); asc_storealign((int32_t*)out(0), r, 0, m);
  asc_shiftright(r, s, n, m); asc_storealign((int32_t*)out(1), r, 0, m);
  asc_shiftright(q, u, n, m); asc_storealign((uint32_t*)out(2), q, 0, m);
  asc_shiftleft_scalar(r, s, 3, m); asc_storealign((int32_t*)out(3), r, 0, m);
  asc_shiftright_scalar(r, s, 31, m); asc_storealign((int32_t*)out(4), r, 0, m);
  f = d; ::vmula(f, a, b, m, MODE_ZEROING); asc_storealign((float*)out(5), f, 0, m);
  f = d; ::vmadd(f, a, b, m, MODE_ZEROING); asc_storealign((float*)out(6), f, 0, m);
  f = d; asc_axpy(f, a, 1.25f, m); asc_storealign((float*)out(7), f, 0, m);
  asc_leakyrelu(f, a, 0.1f, m); asc_storealign((float*)out(8), f, 0, m);
  asc_prelu(f, a, b, m); asc_storealign((float*)out(9), f, 0, m);
  asc_abs_sub(f, a, b, m); asc_storealign((float*)out(10), f, 0, m);
  asc_exp_sub(f, a, b, m); asc_storealign((float*)out(11), f, 0, m);
"""
    out = run_simd(body, [tensor(x) for x in (s, u, n, a, b, d)], torch.zeros(256 * 12, dtype=torch.uint8)).numpy()
    lane = [out[256 * i : 256 * (i + 1)] for i in range(12)]
    short = n < 32
    same(lane[0].view(np.int32), np.where(short, (s.astype(np.int64) << np.minimum(n, 31)).astype(np.int32), 0))
    same(lane[1].view(np.int32), s >> np.minimum(n, 31))
    same(lane[2].view(np.uint32), np.where(short, u >> np.minimum(n, 31).astype(np.uint32), 0))
    same(lane[3].view(np.int32), (s.astype(np.int64) << 3).astype(np.int32))
    same(lane[4].view(np.int32), s >> 31)
    with np.errstate(all="ignore"):
        # 24-bit products are exact in double; the sum of the chosen values is too close to exact for a second rounding.
        x, y, z = (v.astype(np.float64) for v in (a, b, d))
        same(lane[5].view(np.float32), (x * y + z).astype(np.float32))
        same(lane[6].view(np.float32), (z * x + y).astype(np.float32))
        same(lane[7].view(np.float32), (x * 1.25 + z).astype(np.float32))
        same(lane[8].view(np.float32), np.where(a > 0, a, a * np.float32(0.1)))
        same(lane[9].view(np.float32), np.where(a > 0, a, a * b))
        same(lane[10].view(np.float32), np.abs(a - b))
        np.testing.assert_allclose(lane[11].view(np.float32), np.exp(a - b), rtol=3e-7)


def test_carries_and_long_products(run_simd: Run) -> None:
    a, b = values("uint32_t", 14), values("uint32_t", 15)
    body = """
  vector_u32 a, b; vector_bool all = asc_create_mask_b32(PAT_ALL), half = asc_create_mask_b32(PAT_H);
  asc_loadalign(a, (uint32_t*)in(0), 0); asc_loadalign(b, (uint32_t*)in(1), 0);
  auto c = simd_inst::vaddc(a, b, all); asc_storealign((uint32_t*)out(0), c.v1, 0, all); asc_storealign((uint32_t*)out(1), c.v0, 0);
  c = simd_inst::vsubc(a, b, all); asc_storealign((uint32_t*)out(2), c.v1, 0, all); asc_storealign((uint32_t*)out(1), c.v0, 32);
  c = simd_inst::vaddcs(a, b, half, all); asc_storealign((uint32_t*)out(3), c.v1, 0, all); asc_storealign((uint32_t*)out(1), c.v0, 64);
  c = simd_inst::vsubcs(a, b, half, all); asc_storealign((uint32_t*)out(4), c.v1, 0, all); asc_storealign((uint32_t*)out(1), c.v0, 96);
  auto l = simd_inst::vmull(a, b, all); asc_storealign((uint32_t*)out(5), l.v0, 0, all); asc_storealign((uint32_t*)out(6), l.v1, 0, all);
  auto s = simd_inst::vmull((vector_s32&)a, (vector_s32&)b, all); asc_storealign((int32_t*)out(7), s.v1, 0, all);
"""
    out = run_simd(body, [tensor(a), tensor(b)], torch.zeros(256 * 8, dtype=torch.uint8)).numpy()
    lane = [out[256 * i : 256 * (i + 1)].view(np.uint32) for i in range(8)]
    carry = [np.unpackbits(out[256 + 32 * i : 288 + 32 * i], bitorder="little")[::4] for i in range(4)]
    x, y, one = a.astype(np.uint64), b.astype(np.uint64), (np.arange(64) < 32).astype(np.uint64)
    for k, total in enumerate((x + y, None, x + y + one)):
        if total is not None:
            same(lane[(0, 2, 3)[k]], (total & 0xFFFFFFFF).astype(np.uint32))
            assert (carry[k] == (total >> 32)).all()
    for slot, which, borrow in ((2, 1, np.zeros(64, np.int64)), (4, 3, 1 - one.astype(np.int64))):
        difference = x.astype(np.int64) - y.astype(np.int64) - borrow
        same(lane[slot], (difference & 0xFFFFFFFF).astype(np.uint32))
        assert (carry[which] == (difference >= 0)).all()
    same(lane[5], (x * y & 0xFFFFFFFF).astype(np.uint32))
    same(lane[6], (x * y >> 32).astype(np.uint32))
    product = a.view(np.int32).astype(np.int64) * b.view(np.int32).astype(np.int64)
    same(lane[7], (product >> 32).astype(np.int32).view(np.uint32))


def test_predicate_logic(run_simd: Run) -> None:
    rng = np.random.default_rng(16)
    p, q, m = (rng.integers(0, 256, 256, dtype=np.uint8) for _ in range(3))
    names = ["pand", "por", "pxor", "psel"]
    body = ["vector_bool p = simd_inst::plds_norm((uint32_t*)in(0), 0), q = simd_inst::plds_norm((uint32_t*)in(1), 0);"]
    body.append("vector_bool m = simd_inst::plds_norm((uint32_t*)in(2), 0);")
    body += [
        f"simd_inst::psts_norm(simd_inst::{n}(p, q, m), (uint32_t*)out(0), {32 * i});" for i, n in enumerate(names)
    ]
    body.append("simd_inst::psts_norm(simd_inst::pnot(p, m), (uint32_t*)out(0), 128);")
    out = run_simd("\n".join(body), [tensor(x) for x in (p, q, m)], torch.zeros(256, dtype=torch.uint8)).numpy()
    p, q, m = p[:32], q[:32], m[:32]
    for i, want in enumerate((p & q & m, (p | q) & m, (p ^ q) & m, (p & m) | (q & ~m), ~p & m)):
        assert (out[32 * i : 32 * (i + 1)] == want).all(), i
