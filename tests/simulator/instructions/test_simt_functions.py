"""SIMT threads: barriers, warp functions, atomics, math names, mixed types, vector structs (reference e.1)."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

from unikernels.backends.ascend.simulator.errors import BarrierError, RaceError

Run = Callable[..., torch.Tensor]


def tensor(a: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(a).view(np.uint8).flatten().copy())


def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.uint8)


def test_shuffles(run_simt: Run) -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, 64).astype(np.int32)
    calls = [
        "asc_shfl(v, 5)", "asc_shfl(v, 3, 8)", "asc_shfl(v, t % 7)", "asc_shfl_up(v, 3)", "asc_shfl_up(v, 1, 8)",
        "asc_shfl_down(v, 3)", "asc_shfl_down(v, 2, 16)", "asc_shfl_xor(v, 9)", "asc_shfl_xor(v, 12, 8)",
        "int32_t(asc_shfl_xor(int64_t(v) << 20, 1) >> 20)", "int32_t(float(asc_shfl(half(v), 2)))",
    ]  # fmt: skip
    body = ["int t = threadIdx.x; int32_t v = ((int32_t*)in)[t]; int32_t r;"]
    body += [f"r = {c};\n((int32_t*)out)[{64 * i} + t] = r;" for i, c in enumerate(calls)]
    out = (
        run_simt("\n".join(body), [tensor(x)], zeros(256 * len(calls)), threads="64")
        .numpy()
        .view(np.int32)
        .reshape(-1, 64)
    )
    t = np.arange(64)
    base = t // 32 * 32
    lane = t % 32

    def at(source: np.ndarray) -> np.ndarray:
        return x[base + source]

    want = [
        at(np.full(64, 5)), at(lane // 8 * 8 + 3), at(t % 7), np.where(lane >= 3, at(np.maximum(lane - 3, 0)), x),
        np.where(lane % 8 >= 1, at(np.maximum(lane - 1, 0)), x), np.where(lane + 3 < 32, at(np.minimum(lane + 3, 31)), x),
        np.where(lane % 16 + 2 < 16, at(np.minimum(lane + 2, 31)), x), at(lane ^ 9),
        np.where((lane ^ 12) < (lane // 8 + 1) * 8, at(lane ^ 12), x), at(lane ^ 1), at(np.full(64, 2)),
    ]  # fmt: skip
    for name, got, expected in zip(calls, out, want, strict=True):
        assert (got == expected).all(), name


def test_votes_and_warp_reductions(run_simt: Run) -> None:
    x = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    body = """
  int t = threadIdx.x; float v = ((float*)in)[t]; uint32_t* u = (uint32_t*)out; float* f = (float*)(out + 1024);
  u[t] = asc_ballot(v > 0); u[64 + t] = asc_activemask(); u[128 + t] = asc_any(v > 100) * 2 + asc_any(v > 0);
  u[192 + t] = asc_all(v > 0) * 2 + asc_all(v > -100);
  f[t] = asc_reduce_add(v);
  f[64 + t] = asc_reduce_max(v);
  f[128 + t] = float(asc_reduce_min(half(v)));
  if (t % 32 < 5) { f[192 + t] = float(asc_reduce_add(int32_t(t))); u[512 + t] = asc_ballot(1); } else { f[192 + t] = -1; u[512 + t] = 0; }
"""
    out = run_simt(body, [tensor(x)], zeros(3072), threads="64").numpy()
    u, f = out.view(np.uint32), out[1024:].view(np.float32)
    for w in range(2):
        v, lanes = x[32 * w : 32 * w + 32], slice(32 * w, 32 * w + 32)
        assert (u[lanes] == sum(1 << i for i in range(32) if v[i] > 0)).all()
        assert (u[64:128][lanes] == 0xFFFFFFFF).all()
        assert (u[128:192][lanes] == 1).all()
        assert (u[192:256][lanes] == 1).all()
        level = v
        while level.size > 1:
            level = level[::2] + level[1::2]
        assert (f[lanes] == level[0]).all()
        assert (f[64:128][lanes] == v.max()).all()
        assert (f[128:192][lanes] == v.astype(np.float16).min()).all()
        some = np.arange(32) < 5
        assert (f[192:256][lanes] == np.where(some, sum(range(32 * w, 32 * w + 5)), -1)).all()
        assert (u[512:576][lanes] == np.where(some, 31, 0)).all()


@pytest.mark.parametrize("check", ["on", "off"])
def test_barrier_and_warp_barrier_order_memory(run_simt: Run, check: str) -> None:
    x = np.arange(128, dtype=np.int32)
    body = """
  int t = threadIdx.x; int32_t* s = (int32_t*)out;
  s[t] = ((int32_t*)in)[t] * 3;
  asc_syncthreads();
  int32_t other = s[127 - t];
  asc_syncthreads();
  s[128 + t] = other;
  cooperative_groups::coalesced_threads().sync();
  other = s[128 + (t ^ 1)];
  cooperative_groups::coalesced_threads().sync();
  s[128 + t] = other + 1;
"""
    out = run_simt(body, [tensor(x)], zeros(1024), threads="128", check=check).numpy().view(np.int32)
    assert (out[128:] == (127 - (x ^ 1)) * 3 + 1).all()


def test_missing_barrier_is_a_race_and_an_early_return_a_barrier_fault(run_simt: Run) -> None:
    x = tensor(np.arange(64, dtype=np.int32))
    with pytest.raises(RaceError, match="asc_syncthreads"):
        run_simt(
            "int t = threadIdx.x; ((int32_t*)out)[t] = t; ((int32_t*)out)[64 + t] = ((int32_t*)out)[63 - t];",
            [x],
            zeros(512),
            threads="64",
        )
    with pytest.raises(BarrierError, match="has returned"):
        run_simt("if (threadIdx.x > 3) return; asc_syncthreads();", [x], zeros(256), threads="64")


def test_atomics(run_simt: Run) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-50, 50, 64).astype(np.int32)
    body = """
  int t = threadIdx.x; int32_t v = ((int32_t*)in)[t]; int32_t* s = (int32_t*)out;
  asc_atomic_add(&s[t % 4], v);
  asc_atomic_max(&s[4], v);
  asc_atomic_min(&s[5], v);
  s[64 + t] = asc_atomic_add(&s[6], 1);
  asc_atomic_add((uint32_t*)&s[7], 2u);
  asc_atomic_add((float*)&s[8], float(v));
  asc_atomic_max((float*)&s[9], float(v) * 0.5f);
  asc_atomic_add((half*)&s[10], half(1));
  asc_atomic_min((bfloat16_t*)&s[11], bfloat16_t(float(v)));
  asc_atomic_add((uint64_t*)&s[12], uint64_t(1) << 33);
  half2 h; h.x = half(0.5f), h.y = half(2); asc_atomic_add((half2*)&s[14], h);
"""
    out = run_simt(body, [tensor(x)], zeros(512), threads="64").numpy()
    s = out.view(np.int32)
    assert (s[:4] == x.reshape(16, 4).sum(0)).all()
    assert s[4] == max(0, x.max())
    assert s[5] == min(0, x.min())
    assert s[6] == 64
    assert sorted(s[64:128]) == list(range(64))
    assert s[7] == 128
    assert out[32:36].view(np.float32)[0] == x.sum()
    assert out[36:40].view(np.float32)[0] == x.max() / 2
    assert out[40:42].view(np.float16)[0] == 64
    assert out[44:46].view(ml_dtypes.bfloat16)[0] == x.min()
    assert out[48:56].view(np.uint64)[0] == 64 << 33
    assert (out[56:60].view(np.float16) == [32, 128]).all()


MATH = ["sqrt", "rsqrt", "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "tanh", "tan", "sin", "cos", "atan", "erf",
        "floor", "ceil", "fabs", "round", "trunc"]  # fmt: skip


def test_math_names(run_simt: Run) -> None:
    x = np.linspace(0.1, 3.3, 32).astype(np.float32)
    body = ["int t = threadIdx.x; float v = ((float*)in)[t]; float* f = (float*)out; float s, c;"]
    for i, name in enumerate(MATH):
        body.append(f"f[{64 * i} + t] = {name}f(v); f[{64 * i + 32} + t] = float(h{name}(half(v)));")
    n = len(MATH)
    body.append(f"sincosf(v, &s, &c); f[{64 * n} + t] = s; f[{64 * n + 32} + t] = c;")
    body.append(f"f[{64 * n + 64} + t] = powf(v, 1.5f); f[{64 * n + 96} + t] = atan2f(v, 2.0f);")
    body.append(
        f"f[{64 * n + 128} + t] = max(v, 1.0f) + min(v, float(tl::limits::kFloatNaN)); f[{64 * n + 160} + t] = float(hatan2(half(v), half(2)));"
    )
    out = run_simt("\n".join(body), [tensor(x)], zeros(4 * (64 * n + 192))).numpy().view(np.float32)
    special = {"exp10": lambda v: 10.0**v, "fabs": torch.abs}
    for i, name in enumerate(MATH):
        function = special.get(name) or getattr(torch, name)
        for k, (v, tolerance) in enumerate(((x, 2e-6), (x.astype(np.float16), 2e-3))):
            want = function(torch.from_numpy(v.astype(np.float64))).numpy()
            np.testing.assert_allclose(out[64 * i + 32 * k : 64 * i + 32 * k + 32], want, rtol=tolerance, err_msg=name)
    rest = out[64 * n :].reshape(6, 32)
    wants = [np.sin(x), np.cos(x), x**1.5, np.arctan2(x, 2), np.maximum(x, 1) + x, np.arctan2(x.astype(np.float16), 2)]
    for got, want in zip(rest, wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3)


def test_vector_structs_and_mixed_types(run_simt: Run) -> None:
    x = np.random.default_rng(3).standard_normal(128).astype(np.float32)
    body = """
  int t = threadIdx.x; float2 v = *(float2*)((float*)in + 2 * t); float a = 3.0f;
  *(float2*)((float*)out + 2 * t) = v * make_float2(a, a) + make_float2(t, 1.0f);
  uint1 carrier; half h = half(v.x);
  ((half2*)(&carrier))[0].x = (h * 2) + 1; ((half2*)(&carrier))[0].y = half(h * 0.5f);
  *(uint1*)(out + 512 + 4 * t) = carrier;
  ushort2 p; p.x = (v.x > v.y); p.y = !p.x;
  *(ushort2*)(out + 768 + 4 * t) = p;
  bfloat16_t b = bfloat16_t(h); b += bfloat16_t(1.0f);
  ((bfloat16_t*)(out + 1024))[t] = b > 0 ? -b : b;
  int4 q = make_int4(t, t, t, t) * make_int4(1, 2, 3, 4); *(int4*)(out + 1280 + 16 * t) = q;
"""
    out = run_simt(body, [tensor(x)], zeros(2304), threads="64").numpy()
    pairs, t = x.reshape(64, 2), np.arange(64, dtype=np.float32)
    assert (
        out[:512].view(np.float32).reshape(64, 2) == pairs * np.float32(3) + np.stack([t, np.ones(64, np.float32)], 1)
    ).all()
    h = pairs[:, 0].astype(np.float16)
    assert (
        out[512:768].view(np.float16).reshape(64, 2) == np.stack([h * 2 + np.float16(1), h * np.float16(0.5)], 1)
    ).all()
    greater = pairs[:, 0] > pairs[:, 1]
    assert (out[768:1024].view(np.uint16).reshape(64, 2) == np.stack([greater, ~greater], 1)).all()
    b = (h.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32) + 1).astype(ml_dtypes.bfloat16)
    assert (out[1024:1152].view(np.uint16) == np.where(b > 0, -b, b).view(np.uint16)).all()
    assert (out[1280:].view(np.int32).reshape(64, 4) == np.arange(64)[:, None] * [1, 2, 3, 4]).all()


def test_thread_dimensions(run_simt: Run) -> None:
    body = """
  int linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  ((int32_t*)out)[linear] = threadIdx.x * 10000 + threadIdx.y * 100 + threadIdx.z + 1000000 * int(blockIdx.x) + 7 * gridDim.x;
  asc_syncthreads();
"""
    out = run_simt(body, [], zeros(4 * 60), threads="5, 4, 3").numpy().view(np.int32)
    z, y, x = np.meshgrid(np.arange(3), np.arange(4), np.arange(5), indexing="ij")
    assert (out == (x * 10000 + y * 100 + z + 7).flatten()).all()
