"""Matrix multiply in every operand type, against float64, and its mode registers (c.5)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from unikernels.backends.ascend.simulator import MisalignedError, UnimplementedBuiltinError

GROUP = {4: 64, 8: 32, 16: 16, 32: 8}
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def body(ctype, bits, m, k, n, *, mx=False, accumulate=False, registers="", out="float", type_b=None):
    """Load X [m, k] and W [n, k] (K contiguous, bytes of fp4 pairs), multiply, store D [m, n]."""
    row = k * bits // 8
    groups, mp, np_ = (row + 31) // 32, (m + 15) // 16 * 16, (n + 15) // 16 * 16
    type_b = type_b or ctype
    element = {4: "int8_t", 8: "int8_t", 16: "int16_t", 32: "float"}[bits]
    d_value = row if bits == 4 else k
    base_b = 65536
    text = f"""
      {registers}
      asc_set_gm2l1_nz_para(1, 1, {mp}, 0);
      asc_copy_gm2l1_nd2nz(({element}*)0, ({element}*)X, {row}, static_cast<asc_load_l2_cache_mode>(0), {m}, {d_value}, 0, 0);
      asc_set_gm2l1_nz_para(1, 1, {np_}, 0);
      asc_copy_gm2l1_nd2nz(({element}*){base_b}, ({element}*)W, {row}, static_cast<asc_load_l2_cache_mode>(0), {n}, {d_value}, 0, 0);
    """
    if mx:
        pairs = k // 64
        text += f"""
      asc_set_gm2l1_nz_para(1, 1, {pairs}, 0);
      asc_copy_gm2l1_dn2nz((uint16_t*)131072, (uint16_t*)SX, {pairs * 2}, static_cast<asc_load_l2_cache_mode>(0), {pairs}, {m}, 0, 0);
      asc_copy_gm2l1_dn2nz((uint16_t*)196608, (uint16_t*)SW, {pairs * 2}, static_cast<asc_load_l2_cache_mode>(0), {pairs}, {n}, 0, 0);
    """
    text += f"""
      asc_sync_notify(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));
      asc_copy_l12l0a(({ctype}*)0, ({ctype}*)0, 0, 0, {mp // 16}, {groups}, {mp // 16}, {mp // 16});
      asc_copy_l12l0b(({type_b}*)0, ({type_b}*){base_b}, 0, 0, {np_ // 16}, {groups}, {np_ // 16}, {np_ // 16});
    """
    if mx:
        text += f"""
      asc_copy_l12l0a_mx(0, (fp8_e8m0_t*)131072, 0, 0, {mp // 16}, {pairs}, {pairs}, {pairs});
      asc_copy_l12l0b_mx(0, (fp8_e8m0_t*)196608, 0, 0, {np_ // 16}, {pairs}, {pairs}, {pairs});
    """
    call = "asc_mmad_mx" if mx else "asc_mmad"
    text += "asc_sync_notify(PIPE_MTE1, PIPE_M, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE1, PIPE_M, static_cast<event_t>(0));\n"
    text += f"{call}(({out}*)0, ({ctype}*)0, ({type_b}*)0, {m}, {k}, {n}, 0, 1, 0, 1);\n"
    if accumulate:
        text += f"{call}(({out}*)0, ({ctype}*)0, ({type_b}*)0, {m}, {k}, {n}, 0, 1, 0, 0);\n"
    return (
        text
        + f"""
      asc_sync_notify(PIPE_M, PIPE_FIX, static_cast<event_t>(0)); asc_sync_wait(PIPE_M, PIPE_FIX, static_cast<event_t>(0));
      asc_set_l0c_copy_nz_para(1, 0, 0);
      asc_copy_l0c2gm(D, ({out}*)0, {n}, {m}, {n}, {mp}, static_cast<asc_store_l2_cache_mode>(0), static_cast<asc_unit_flag_mode>(0),
                      static_cast<asc_quant_mode>(0), static_cast<asc_relu_pre_mode>(0), 0, 1, 0, 0);
    """
    )


PLAIN = {
    "half": (16, torch.float16),
    "bfloat16_t": (16, torch.bfloat16),
    "float": (32, torch.float32),
    "float8_e4m3_t": (8, torch.float8_e4m3fn),
    "float8_e5m2_t": (8, torch.float8_e5m2),
}


@pytest.mark.parametrize("ctype", list(PLAIN))
@pytest.mark.parametrize(("m", "k", "n"), [(16, 32, 16), (5, 40, 19), (33, 96, 64), (1, 8, 1), (64, 24, 48)])
def test_small_integers_multiply_exactly(run_ascend, ctype, m, k, n):
    bits, dtype = PLAIN[ctype]
    torch.manual_seed(m + k)
    x, w = torch.randint(-4, 5, (m, k)).float().to(dtype), torch.randint(-4, 5, (n, k)).float().to(dtype)
    t = {"X": x, "W": w, "D": torch.zeros(m, n)}
    run_ascend(body(ctype, bits, m, k, n, accumulate=True), t)
    assert torch.equal(t["D"], 2 * (x.float() @ w.float().T))


@pytest.mark.parametrize("ctype", ["half", "bfloat16_t", "float"])
def test_rounding_stays_within_float32_accumulation(run_ascend, ctype):
    bits, dtype = PLAIN[ctype]
    torch.manual_seed(1)
    x, w = torch.randn(32, 128).to(dtype), torch.randn(48, 128).to(dtype)
    t = {"X": x, "W": w, "D": torch.zeros(32, 48)}
    run_ascend(body(ctype, bits, 32, 128, 48), t)
    exact = x.double() @ w.double().T
    bound = 128 * 2.0**-24 * (x.double().abs() @ w.double().abs().T)
    assert ((t["D"].double() - exact).abs() <= bound).all()
    assert (t["D"].double() - exact).abs().max() > 0


def test_subnormals_and_special_values_follow_ieee(run_ascend):
    x = torch.zeros(16, 16, dtype=torch.float16)
    w = torch.zeros(16, 16, dtype=torch.float16)
    x[0, 0], w[0, 0] = 2.0**-24, 1.0
    x[1, 0] = float("inf")
    x[2, 0] = float("nan")
    w[1, 0] = -1.0
    t = {"X": x, "W": w, "D": torch.zeros(16, 16)}
    run_ascend(body("half", 16, 16, 16, 16), t)
    d = t["D"]
    assert d[0, 0] == 2.0**-24
    assert d[1, 0] == float("inf")
    assert d[1, 1] == float("-inf")
    assert torch.isnan(d[1, 2])
    assert torch.isnan(d[2]).all()
    run_ascend(body("half", 16, 16, 16, 16), t, saturate=True)
    assert t["D"][1, 0] == 65504.0
    assert (t["D"][2] == 0).all()


def scales(rows, k, seed):
    codes = np.random.default_rng(seed).integers(126, 130, (rows, k // 32), dtype=np.uint8)
    return torch.from_numpy(codes), torch.from_numpy(2.0 ** (codes.astype(np.float32) - 127))


@pytest.mark.parametrize(("m", "k", "n"), [(16, 64, 16), (48, 192, 32), (17, 128, 70)])
@pytest.mark.parametrize("ctype", ["float8_e4m3_t", "float8_e5m2_t", "float4_e2m1x2_t"])
def test_block_scales_multiply_each_32_elements(run_ascend, ctype, m, k, n):
    bits = 4 if ctype.startswith("float4") else 8
    rng = np.random.default_rng(k)
    if bits == 4:
        codes = rng.integers(0, 16, (m + n, k), dtype=np.uint8)
        values = torch.tensor(np.array(FP4, dtype=np.float32)[codes])
        packed = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4)
        x, w, fx, fw = packed[:m], packed[m:], values[:m], values[m:]
    else:
        dtype = PLAIN[ctype][1]
        fx, fw = (torch.from_numpy(rng.integers(-4, 5, (r, k)).astype(np.float32)) for r in (m, n))
        x, w = fx.to(dtype), fw.to(dtype)
    (sx, factor_x), (sw, factor_w) = scales(m, k, 1), scales(n, k, 2)
    t = {"X": x.contiguous(), "W": w.contiguous(), "SX": sx, "SW": sw, "D": torch.zeros(m, n)}
    run_ascend(body(ctype, bits, m, k, n, mx=True), t)
    expected = (fx * factor_x.repeat_interleave(32, 1)).double() @ (fw * factor_w.repeat_interleave(32, 1)).double().T
    assert torch.equal(t["D"].double(), expected)


def test_extreme_block_scales_do_not_overflow_on_the_way(run_ascend):
    x = torch.full((16, 64), 2.0).to(torch.float8_e4m3fn)
    t = {
        "X": x,
        "W": x.clone(),
        "SX": torch.full((16, 2), 254, dtype=torch.uint8),
        "SW": torch.full((16, 2), 3, dtype=torch.uint8),
        "D": torch.zeros(16, 16),
    }
    run_ascend(body("float8_e4m3_t", 8, 16, 64, 16, mx=True), t)
    assert (t["D"] == 64 * 4.0 * 2.0 ** (254 + 3 - 254)).all()
    t["SX"][3, 1] = 255  # NaN scale
    run_ascend(body("float8_e4m3_t", 8, 16, 64, 16, mx=True), t)
    assert torch.isnan(t["D"][3]).all()
    assert not torch.isnan(t["D"][2]).any()


def random_scaled(ctype, m, n, k):
    """The tensors of a block-scaled multiply of random values, which round at every step; scales around 1."""
    generator = torch.Generator().manual_seed(7)
    if ctype.startswith("float4"):
        x, w = (torch.randint(0, 256, (rows, k // 2), generator=generator, dtype=torch.uint8) for rows in (m, n))
    else:
        x, w = (torch.randn(rows, k, generator=generator).to(PLAIN[ctype][1]) for rows in (m, n))
    sx, sw = (torch.randint(120, 135, (r, k // 32), generator=generator, dtype=torch.uint8) for r in (m, n))
    return {"X": x, "W": w, "SX": sx, "SW": sw, "D": torch.zeros(m, n)}


SCALED = [("float8_e4m3_t", 8), ("float8_e5m2_t", 8), ("float4_e2m1x2_t", 4)]


@pytest.mark.parametrize(("ctype", "bits"), SCALED)
def test_extreme_block_scales_change_no_other_row_or_column(run_ascend, ctype, bits):
    m, n, k = 19, 35, 128
    multiply = body(ctype, bits, m, k, n, mx=True, accumulate=True)
    t = random_scaled(ctype, m, n, k)
    run_ascend(multiply, t)
    for code in (0, 49, 205, 240, 254, 255):
        for operand, row in (("SX", 3), ("SX", 17), ("SW", 5), ("SW", 34)):
            changed = t | {operand: t[operand].clone(), "D": torch.zeros(m, n)}
            changed[operand][row, 1] = code
            run_ascend(multiply, changed)
            others = torch.ones(m, n, dtype=torch.bool)
            (others if operand == "SX" else others.mT)[row] = False
            assert torch.equal(changed["D"][others], t["D"][others]), (code, operand, row)
            assert (changed["D"][~others] != t["D"][~others]).any(), (code, operand, row)


@pytest.mark.parametrize(("ctype", "bits"), SCALED)
def test_only_the_sum_of_two_scale_codes_counts(run_ascend, ctype, bits):
    """Products are exact however far apart the two scales are, and each is added with one rounding."""
    m, n, k = 19, 35, 128
    multiply = body(ctype, bits, m, k, n, mx=True, accumulate=True)
    middle = random_scaled(ctype, m, n, k)
    run_ascend(multiply, middle)
    for up, down in (("SX", "SW"), ("SW", "SX")):
        apart = middle | {up: middle[up] + 120, down: middle[down] - 120, "D": torch.zeros(m, n)}
        assert apart[up].max() == 254
        assert apart[up].min() == 240
        assert apart[down].min() == 0
        run_ascend(multiply, apart)
        assert torch.equal(apart["D"], middle["D"]), up


def test_saturation_precedes_block_scales(run_ascend):
    t = random_scaled("float8_e5m2_t", 16, 16, 64)
    for name in "XW":
        t[name] = torch.zeros(16, 64).to(torch.float8_e5m2)
    t["X"][0, 0], t["X"][1, 0], t["X"][2, 0], t["W"][0, 0] = 57344.0, float("inf"), float("nan"), 1.0
    t["SX"][:], t["SW"][:] = 129, 127
    run_ascend(body("float8_e5m2_t", 8, 16, 64, 16, mx=True), t, saturate=True)
    assert t["D"][:4, 0].tolist() == [4 * 57344.0, 4 * 57344.0, 0, 0]


@pytest.mark.parametrize(("type_a", "type_b"), list(itertools.product(["int8_t", "uint8_t"], repeat=2)))
def test_int8_accumulates_in_int32(run_ascend, type_a, type_b):
    rng = np.random.default_rng(9)
    x, w = (torch.from_numpy(rng.integers(0, 256, (r, 64), dtype=np.uint8)) for r in (20, 33))
    t = {"X": x, "W": w, "D": torch.zeros(20, 33, dtype=torch.int32)}
    run_ascend(body(type_a, 8, 20, 64, 33, out="int32_t", type_b=type_b), t)
    a, b = (v.view(torch.int8 if c == "int8_t" else torch.uint8).int() for v, c in ((x, type_a), (w, type_b)))
    assert torch.equal(t["D"], a @ b.T)


@pytest.mark.parametrize(("mode", "tie"), [("NEAREST_EVEN", 1.0), ("NEAREST_AWAY", 1 + 1 / 1024)])
def test_hf32_keeps_ten_mantissa_bits(run_ascend, mode, tie):
    x = torch.zeros(16, 8)
    x[0, 0], x[1, 0], x[2, 0] = 1 + 0.5 / 1024, 1 + 1.5 / 1024, 1 + 0.25 / 1024
    w = torch.zeros(16, 8)
    w[0, 0] = 1.0
    t = {"X": x, "W": w, "D": torch.zeros(16, 16)}
    registers = f"asc_enable_hf32(); asc_set_hf32_round_mode(asc_hf32_round_mode::{mode}); asc_set_mmad_direction_n();"
    run_ascend(body("float", 32, 16, 8, 16, registers=registers), t)
    assert t["D"][:3, 0].tolist() == [tie, 1 + 2 / 1024, 1.0]
    run_ascend(body("float", 32, 16, 8, 16, registers=registers + "asc_disable_hf32(); asc_set_mmad_direction_m();"), t)
    assert torch.equal(t["D"][:3, 0], x[:3, 0])


def test_what_the_hardware_lacks_is_refused(run_ascend):
    x = torch.zeros(16, 64, dtype=torch.int8)
    t = {"X": x, "W": x.clone(), "D": torch.zeros(16, 16)}
    with pytest.raises(UnimplementedBuiltinError, match="operand types"):
        run_ascend(body("int8_t", 8, 16, 64, 16), t)
    with pytest.raises(UnimplementedBuiltinError, match="bias table"):
        run_ascend(
            body("half", 16, 16, 32, 16).replace("0, 1, 0, 1);", "0, 1, 1, 1);"), t | {"X": x[:, :64].contiguous()}
        )
    s = torch.full((16, 2), 127, dtype=torch.uint8)
    with pytest.raises(MisalignedError, match="k = 48 of a block-scaled multiply is not a multiple of 64"):
        run_ascend(
            body("float8_e4m3_t", 8, 16, 64, 16, mx=True).replace("16, 64, 16, 0, 1", "16, 48, 16, 0, 1"),
            t | {"SX": s, "SW": s.clone()},
        )
