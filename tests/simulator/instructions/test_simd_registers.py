"""SIMD masks, loads, stores, gathers, permutations, reductions and histograms (reference e.2.2 to e.2.7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from unikernels.backends.ascend.simulator.errors import MisalignedError, UnimplementedBuiltinError

Run = Callable[..., torch.Tensor]


def tensor(a: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(a).view(np.uint8).flatten().copy())


def zeros(blocks: int) -> torch.Tensor:
    return torch.zeros(256 * blocks, dtype=torch.uint8)


def block(out: torch.Tensor, i: int, dtype: type, n: int = 1) -> np.ndarray:
    return out[256 * i : 256 * (i + n)].numpy().view(dtype)


def bits(raw: np.ndarray) -> np.ndarray:
    return np.unpackbits(raw.view(np.uint8), bitorder="little")


def test_created_and_updated_masks(run_simd: Run) -> None:
    patterns = ["ALL", "ALLF", "VL1", "VL3", "VL16", "VL128", "M3", "M4", "H", "Q"]
    body = []
    for i, p in enumerate(patterns):
        body += [
            f"simd_inst::psts_norm(asc_create_mask_b{w}(PAT_{p}), (uint32_t*)out({i}), {32 * k});"
            for k, w in enumerate((8, 16, 32))
        ]
    body.append("uint32_t n = 150;")
    body += [
        f"simd_inst::psts_norm(asc_update_mask_b32(n), (uint32_t*)out({len(patterns)}), {32 * k});" for k in range(4)
    ]
    body.append(f"simd_inst::psts_norm(simd_inst::update_mask_b16(7), (uint32_t*)out({len(patterns)}), 128);")
    out = run_simd("\n".join(body), [], zeros(len(patterns) + 1))
    for i, p in enumerate(patterns):
        for k, width in enumerate((1, 2, 4)):
            lanes = np.arange(256 // width)
            want = {
                "ALL": lanes >= 0, "ALLF": lanes < 0, "M3": lanes % 3 == 0, "M4": lanes % 4 == 0,
                "H": lanes < lanes.size // 2, "Q": lanes < lanes.size // 4,
            }.get(p, lanes < int(p[2:] or 0) if p.startswith("VL") else None)  # fmt: skip
            got = bits(block(out, i, np.uint8)[32 * k : 32 * (k + 1)]).reshape(-1, width)
            assert (got[:, 0] == want).all(), (p, width)
            assert (got[:, 1:] == 0).all(), (p, width)
    last = block(out, len(patterns), np.uint8)
    assert [int(bits(last[32 * k : 32 * k + 32]).sum()) for k in range(5)] == [64, 64, 22, 0, 7]


def test_load_distributions(run_simd: Run) -> None:
    data = np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8)
    h, f, b = data.view(np.uint16), data.view(np.uint32), data
    calls = [
        ("uint32_t", "vlds_norm", "8", f[8:72]),
        ("uint16_t", "vlds_brc_elem", "3", np.full(128, h[3])),
        ("uint8_t", "vlds_brc_elem", "5", np.full(256, b[5])),
        ("uint16_t", "vlds_upsample", "0", np.repeat(h[:64], 2)),
        ("uint8_t", "vlds_downsample", "32", b[32:544:2]),
        ("uint16_t", "vlds_unpack", "16", np.stack([h[16:80], np.zeros(64, np.uint16)], 1).flatten()),
        ("uint8_t", "vlds_unpack4", "64", b[64:128].astype(np.uint32).view(np.uint8)),
        ("uint32_t", "vlds_brc_datablock", "8", np.tile(f[8:16], 8)),
        ("uint32_t", "vlds_brc_elem2datablock", "8", np.repeat(f[8:16], 8)),
        ("uint16_t", "vlds_brc_elem2datablock", "16", np.repeat(h[16:24], 16)),
    ]
    mask = {"uint8_t": "b8", "uint16_t": "b16", "uint32_t": "b32"}
    body = []
    for i, (ctype, name, offset, _) in enumerate(calls):
        body.append(
            f"simd_inst::vsts_norm(simd_inst::{name}(({ctype}*)in(0), {offset}), ({ctype}*)out({i}), 0, asc_create_mask_{mask[ctype]}(PAT_ALL));"
        )
    body.append(
        "{ auto r = simd_inst::vlds_norm_postupdate((uint32_t*)in(0), 16); r = simd_inst::vlds_norm_postupdate(r.v1, 16);"
    )
    body.append(f"simd_inst::vsts_norm(r.v0, (uint32_t*)out({len(calls)}), 0, asc_create_mask_b32(PAT_ALL)); }}")
    body.append(
        "{ auto r = simd_inst::vld_x2((uint16_t*)in(0) + 16, DINTLV_B16); auto m = asc_create_mask_b16(PAT_ALL);"
    )
    body.append(
        f"simd_inst::vsts_norm(r.v0, (uint16_t*)out({len(calls) + 1}), 0, m); simd_inst::vsts_norm(r.v1, (uint16_t*)out({len(calls) + 2}), 0, m); }}"
    )
    out = run_simd("\n".join(body), [tensor(data)], zeros(len(calls) + 3))
    for i, (_, name, _, want) in enumerate(calls):
        assert (block(out, i, want.dtype) == want).all(), name
    n = len(calls)
    assert (block(out, n, np.uint32) == f[16:80]).all()
    assert (block(out, n + 1, np.uint16) == h[16:272:2]).all()
    assert (block(out, n + 2, np.uint16) == h[17:272:2]).all()


def test_store_distributions(run_simd: Run) -> None:
    data = np.random.default_rng(1).integers(0, 256, 256, dtype=np.uint8)
    body = """
  auto w = simd_inst::vlds_norm((uint32_t*)in(0), 0); auto h = simd_inst::vlds_norm((uint16_t*)in(0), 0);
  auto all8 = asc_create_mask_b8(PAT_ALL), all16 = asc_create_mask_b16(PAT_ALL), all32 = asc_create_mask_b32(PAT_ALL);
  simd_inst::vsts_1st(w, (uint32_t*)out(0), 3, all32);
  simd_inst::vsts_pack_b16(h, (uint16_t*)out(1), 0, all8);
  simd_inst::vsts_pack_b32(w, (uint32_t*)out(2), 0, all16);
  simd_inst::vsts_pack_quarter(w, (uint32_t*)out(3), 0, all8);
  simd_inst::vsstb(w, (uint32_t*)out(4), (3 << 16) | 1, all32);
  auto p = simd_inst::vsstb(h, (uint16_t*)out(8), (1 << 16) | 8, asc_create_mask_b16(PAT_VL16), POST_UPDATE);
  simd_inst::vsstb(h, p, (1 << 16) | 8, asc_create_mask_b16(PAT_VL8), POST_UPDATE);
  simd_inst::psts_pack(asc_create_mask_b16(PAT_VL8), (uint32_t*)out(0), 32);
  simd_inst::vscatter(w, (uint32_t*)out(10), simd_inst::vlds_norm((uint32_t*)in(1), 0), asc_create_mask_b32(PAT_M3));
"""
    index = np.random.default_rng(2).permutation(64).astype(np.uint32)
    out = run_simd(body, [tensor(data), tensor(index)], zeros(11))
    w, h = data.view(np.uint32), data.view(np.uint16)
    first = block(out, 0, np.uint32)
    assert first[3] == w[0]
    assert (first[8:12] == [0xFF, 0, 0, 0]).all()
    assert (np.delete(first, [3, 8]) == 0).all()
    assert (block(out, 1, np.uint8)[:128] == (h & 0xFF)).all()
    assert (block(out, 2, np.uint16)[:64] == (w & 0xFFFF)).all()
    assert (block(out, 3, np.uint8)[:64] == (w & 0xFF)).all()
    strided = block(out, 4, np.uint32, 4)
    for j in range(8):
        assert (strided[24 * j : 24 * j + 8] == w[8 * j : 8 * j + 8]).all()
    assert (block(out, 8, np.uint16)[:16] == h[:16]).all()
    assert (block(out, 9, np.uint16)[:8] == h[:8]).all()
    assert (block(out, 9, np.uint16)[8:] == 0).all()
    scattered = np.zeros(64, np.uint32)
    scattered[index[::3]] = w[::3]
    assert (block(out, 10, np.uint32) == scattered).all()


def test_gathers_and_permutations(run_simd: Run) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2**32, 64, dtype=np.uint32), rng.integers(0, 2**32, 64, dtype=np.uint32)
    index, small, blocks = (
        rng.integers(0, 128, 64, dtype=np.uint32),
        rng.integers(0, 256, 128, dtype=np.uint16),
        rng.integers(0, 16, 64, dtype=np.uint32) * 32,
    )
    body = """
  auto a = simd_inst::vlds_norm((uint32_t*)in(0), 0), b = simd_inst::vlds_norm((uint32_t*)in(1), 0), i = simd_inst::vlds_norm((uint32_t*)in(2), 0);
  auto m = asc_create_mask_b32(PAT_ALL), third = asc_create_mask_b32(PAT_M3);
#define PUT(N, R) simd_inst::vsts_norm(R, (uint32_t*)out(N), 0, m)
  PUT(0, simd_inst::vgather2((uint32_t*)in(0), i, third));
  auto g = simd_inst::vgather2((int8_t*)in(0), simd_inst::vlds_norm((uint16_t*)in(3), 0), asc_create_mask_b8(PAT_ALL));
  simd_inst::vsts_norm(g, (int16_t*)out(1), 0, asc_create_mask_b16(PAT_ALL));
  PUT(2, simd_inst::vgatherb((uint32_t*)in(0), simd_inst::vlds_norm((uint32_t*)in(4), 0)));
  PUT(3, simd_inst::vselr(a, i));
  { auto p = simd_inst::vintlv(a, b); PUT(4, p.v0); PUT(5, p.v1); p = simd_inst::vdintlv(a, b); PUT(6, p.v0); PUT(7, p.v1); }
  { auto p = simd_inst::vpack<uint16_t>(a, HIGHER); PUT(8, (vector_u32&)p); auto s = (vector_s16&)a; auto u = simd_inst::vunpack(s, HIGHER); PUT(9, (vector_u32&)u); }
  PUT(10, simd_inst::vdupv(a, third, POS_HIGHEST, MODE_ZEROING));
  { auto c = simd_inst::vci<int32_t>(5, INC_ORDER); PUT(11, (vector_u32&)c); c = simd_inst::vci<int32_t>(5, DEC_ORDER); PUT(12, (vector_u32&)c); }
  PUT(13, simd_inst::vsqz(a, third, MODE_STORED));
  { auto c = simd_inst::vusqz<int32_t>(third); PUT(14, (vector_u32&)c); }
  PUT(15, simd_inst::vsel(a, b, third));
  { auto p = simd_inst::pintlv_b16(asc_create_mask_b16(PAT_M3), asc_create_mask_b16(PAT_H)); simd_inst::psts_norm(p.v0, (uint32_t*)out(16), 0); simd_inst::psts_norm(p.v1, (uint32_t*)out(16), 32);
    auto q = simd_inst::pdintlv_b16(p.v0, p.v1); simd_inst::psts_norm(q.v0, (uint32_t*)out(16), 64); simd_inst::psts_norm(q.v1, (uint32_t*)out(16), 96);
    simd_inst::psts_norm(simd_inst::ppack(third, HIGHER), (uint32_t*)out(16), 128); simd_inst::psts_norm(simd_inst::punpack(third, HIGHER), (uint32_t*)out(16), 160); }
"""
    out = run_simd(body, [tensor(x) for x in (a, b, index, small, blocks)], zeros(17))
    z = np.concatenate([a, b])
    third = np.arange(64) % 3 == 0
    raw = z.view(np.uint8)
    words = lambda i: block(out, i, np.uint32)  # noqa: E731
    assert (words(0) == np.where(third, z[index], 0)).all()
    assert (block(out, 1, np.uint16) == raw[small]).all()
    assert (words(2) == np.concatenate([z[o // 4 : o // 4 + 8] for o in blocks[:8]])).all()
    assert (words(3) == a[index % 64]).all()
    interleaved = np.stack([a, b], 1).flatten()
    assert (np.concatenate([words(4), words(5)]) == interleaved).all()
    assert (words(6) == z[::2]).all()
    assert (words(7) == z[1::2]).all()
    assert (block(out, 8, np.uint16) == np.concatenate([np.zeros(64, np.uint16), (a & 0xFFFF).astype(np.uint16)])).all()
    assert (block(out, 9, np.int32) == a.view(np.int16)[64:]).all()
    assert (words(10) == np.where(third, a[63], 0)).all()
    assert (words(11) == 5 + np.arange(64)).all()
    assert (words(12) == 5 + np.arange(64)[::-1]).all()
    assert (words(13) == np.concatenate([a[third], np.zeros(64 - third.sum(), np.uint32)])).all()
    assert (words(14) == np.concatenate([[0], np.cumsum(third)[:-1]])).all()
    assert (words(15) == np.where(third, a, b)).all()
    p = bits(block(out, 16, np.uint8)).reshape(8, 256)
    m3, high = np.zeros((2, 128, 2), np.uint8)
    m3[::3, 0], high[:64, 0] = 1, 1
    assert (np.concatenate([p[0], p[1]]).reshape(256, 2) == np.stack([m3, high], 1).reshape(256, 2)).all()
    assert (p[2] == m3.flatten()).all()
    assert (p[3] == high.flatten()).all()
    predicate = np.zeros(256, np.uint8)
    predicate[::4] = third
    assert (p[4] == np.concatenate([np.zeros(128, np.uint8), predicate[::2]])).all()
    assert (p[5] == np.stack([predicate[128:], np.zeros(128, np.uint8)], 1).flatten()).all()


def tree(v: np.ndarray) -> np.ndarray:
    while v.size > 1:
        v = (v[::2] + v[1::2]).astype(v.dtype)
    return v[0]


def test_reductions(run_simd: Run) -> None:
    rng = np.random.default_rng(4)
    f, h, s = (
        rng.standard_normal(64).astype(np.float32),
        rng.standard_normal(128).astype(np.float16),
        rng.integers(-(2**15), 2**15, 128).astype(np.int16),
    )
    f[41] = f.max() + 1
    nan = f.copy()
    nan[[9, 30]] = np.nan
    body = """
  auto f = simd_inst::vlds_norm((float*)in(0), 0), x = simd_inst::vlds_norm((float*)in(3), 0); auto h = simd_inst::vlds_norm((half*)in(1), 0); auto s = simd_inst::vlds_norm((int16_t*)in(2), 0);
  auto m = asc_create_mask_b32(PAT_ALL), third = asc_create_mask_b32(PAT_M3), none = asc_create_mask_b32(PAT_ALLF), n = asc_create_mask_b16(PAT_ALL);
#define PUT(N, T, R, M) simd_inst::vsts_norm(R, (T*)out(N), 0, M)
  PUT(0, float, simd_inst::vcadd(f, third, MODE_ZEROING), m);
  PUT(1, half, simd_inst::vcadd(h, n, MODE_ZEROING), n);
  PUT(2, int32_t, simd_inst::vcadd(s, n, MODE_ZEROING), m);
  PUT(3, float, simd_inst::vcmax(f, m, MODE_ZEROING), m);
  PUT(4, float, simd_inst::vcmin(x, m, MODE_ZEROING), m);
  PUT(5, float, simd_inst::vcmax(f, none, MODE_ZEROING), m);
  PUT(6, int16_t, simd_inst::vcmin(s, n, MODE_ZEROING), n);
  PUT(7, float, simd_inst::vcgadd(f, third, MODE_ZEROING), m);
  PUT(8, half, simd_inst::vcgmax(h, n, MODE_ZEROING), n);
  PUT(9, float, simd_inst::vcgmin(f, m, MODE_ZEROING), m);
  PUT(10, float, simd_inst::vcpadd(f, third, MODE_ZEROING), m);
  { auto k = f; ::vcadd(k, f, third, MODE_MERGING); PUT(11, float, k, m); k = f; ::vcmax(k, f, third, MODE_MERGING); PUT(12, float, k, m); }
"""
    out = run_simd(body, [tensor(x) for x in (f, h, s, nan)], zeros(13))
    third = np.where(np.arange(64) % 3 == 0, f, np.float32(0))
    rest = lambda i, t: block(out, i, t)[1:]  # noqa: E731
    assert block(out, 0, np.float32)[0] == tree(third)
    assert (rest(0, np.float32) == 0).all()
    assert block(out, 1, np.float16)[0] == tree(h)
    assert block(out, 2, np.int32)[0] == s.astype(np.int32).sum()
    assert block(out, 3, np.float32)[0] == f.max()
    assert block(out, 3, np.int32)[1] == 41
    assert (block(out, 3, np.int32)[2:] == 0).all()
    assert np.isnan(block(out, 4, np.float32)[0])
    assert block(out, 4, np.int32)[1] == 9
    assert block(out, 5, np.float32)[0] == -np.inf
    assert block(out, 5, np.int32)[1] == 0
    assert block(out, 6, np.int16)[0] == s.min()
    assert block(out, 6, np.int16)[1] == s.argmin()
    assert (block(out, 7, np.float32)[:8] == [tree(third[8 * j : 8 * j + 8]) for j in range(8)]).all()
    assert (block(out, 8, np.float16)[:8] == h.reshape(8, 16).max(1)).all()
    assert (block(out, 9, np.float32)[:8] == f.reshape(8, 8).min(1)).all()
    assert (block(out, 10, np.float32)[:32] == third[::2] + third[1::2]).all()
    assert (block(out, 10, np.float32)[32:] == 0).all()
    merged = block(out, 11, np.float32)
    assert merged[0] == tree(third)
    assert (merged[1:] == f[1:]).all()
    extreme = block(out, 12, np.float32)
    assert extreme[0] == f[::3].max()
    assert (extreme[2:] == f[2:]).all()


def test_histograms(run_simd: Run) -> None:
    data = np.random.default_rng(5).integers(0, 256, 256, dtype=np.uint8)
    body = """
  auto x = simd_inst::vlds_norm((uint8_t*)in(0), 0); auto m = asc_create_mask_b8(PAT_M3), n = asc_create_mask_b16(PAT_ALL);
  vector_u16 h = simd_inst::vdup<uint16_t>(7, n, MODE_ZEROING), g = h, c = h, d = h;
  simd_inst::dhistv2(&h, x, m, Bin_N0); simd_inst::vsts_norm(h, (uint16_t*)out(0), 0, n);
  simd_inst::dhistv2(&g, x, m, Bin_N1); simd_inst::vsts_norm(g, (uint16_t*)out(1), 0, n);
  simd_inst::chistv2(&c, x, m, Bin_N0); simd_inst::vsts_norm(c, (uint16_t*)out(2), 0, n);
  simd_inst::chistv2(&d, x, m, Bin_N1); simd_inst::vsts_norm(d, (uint16_t*)out(3), 0, n);
"""
    out = run_simd(body, [tensor(data)], zeros(4))
    counts = np.bincount(data[::3], minlength=256)
    assert (block(out, 0, np.uint16, 2) == 7 + counts).all()
    assert (block(out, 2, np.uint16, 2) == 7 + np.cumsum(counts)).all()


def test_reorder_template_from_rows_to_fractals(run_simd: Run) -> None:
    rows, columns = 16, 64
    f = np.random.default_rng(6).standard_normal((rows, columns)).astype(np.float32)
    body = """
  ascend_nd2nz_scatter_callee<16, 64, float, bfloat16_t>((float*)in(0), (bfloat16_t*)out(0));
  ascend_nd2nz_scatter_callee<16, 64, float, float>((float*)in(0), (float*)out(16));
"""
    out = run_simd(body, [tensor(f)], zeros(48), extra="#include <tl_templates/ascend/nd2nz_copy.h>")
    narrow = block(out, 0, np.uint16, 16)[: 17 * 64].reshape(4, 17, 16)[:, :16]  # one padding row per fractal column
    want = torch.from_numpy(f).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (narrow == want.reshape(16, 4, 16).swapaxes(0, 1)).all()
    same = block(out, 16, np.float32, 32)[: 8 * 17 * 8].reshape(8, 17, 8)[:, :16]
    assert (same == f.reshape(16, 8, 8).swapaxes(0, 1)).all()


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ("auto r = simd_inst::vlds_norm((float*)in(0), 1);", MisalignedError, "asc_loadalign"),
        (
            "simd_inst::vsts_norm(simd_inst::vlds_norm((half*)in(0), 0), (half*)out(0), 8, asc_create_mask_b16(PAT_ALL));",
            MisalignedError,
            "asc_storealign",
        ),
        (
            "simd_inst::vsts_intlv(simd_inst::vlds_norm((half*)in(0), 0), (half*)out(0), 0, asc_create_mask_b16(PAT_ALL));",
            UnimplementedBuiltinError,
            "asc_storealign_intlv",
        ),
        (
            "simd_inst::vld_x2((uint16_t*)in(0), asc_update_addr_reg_b16(16), DINTLV_B16);",
            UnimplementedBuiltinError,
            "asc_update_addr_reg_b16: address registers",
        ),
    ],
)
def test_misuse_names_builtin_and_line(run_simd: Run, body: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run_simd(body, [torch.zeros(512, dtype=torch.uint8)], zeros(1))
    assert caught.value.line == 6  # the body starts on the sixth line of the source
