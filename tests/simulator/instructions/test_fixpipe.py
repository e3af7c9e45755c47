"""Fixpipe: L0C to GM and UB, conversions, relu, dual destinations (c.6)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unikernels.backends.ascend.simulator import MisalignedError, OutOfBoundsError, UnimplementedBuiltinError

# C = X [32, 8] times the identity: 32 rows, 8 used columns of 16; X holds arbitrary float32 values.
FILL = f"""
  asc_set_gm2l1_nz_para(1, 1, 64, 0);
  asc_copy_gm2l1_nd2nz((float*)0, X, {256}, static_cast<asc_load_l2_cache_mode>(0), 64, {64}, 0, 0);
  asc_set_gm2l1_nz_para(1, 1, 64, 0);
  asc_copy_gm2l1_nd2nz((float*)131072, I, {256}, static_cast<asc_load_l2_cache_mode>(0), 64, {64}, 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));
  asc_copy_l12l0a((float*)0, (float*)0, 0, 0, 4, 8, 4, 4); asc_copy_l12l0b((float*)0, (float*)131072, 0, 0, 4, 8, 4, 4);
  asc_sync_notify(PIPE_MTE1, PIPE_M, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE1, PIPE_M, static_cast<event_t>(0));
  asc_mmad((float*)0, (float*)0, (float*)0, 64, 64, 64, 0, 1, 0, 1);
  asc_sync_notify(PIPE_M, PIPE_FIX, static_cast<event_t>(0)); asc_sync_wait(PIPE_M, PIPE_FIX, static_cast<event_t>(0));
  asc_set_l0c_copy_nz_para(1, 0, 0);
"""
GM = "asc_copy_l0c2gm({dst}, (float*){src}, {n}, {m}, {pitch}, 64, static_cast<asc_store_l2_cache_mode>(0), static_cast<asc_unit_flag_mode>({unit}), static_cast<asc_quant_mode>({quant}), static_cast<asc_relu_pre_mode>({relu}), 0, {nd}, {dn}, 0);"
TO_GM = {"dst": "D", "src": 0, "n": 64, "m": 64, "pitch": 64, "unit": 0, "quant": 0, "relu": 0, "nd": 1, "dn": 0}


def values():
    torch.manual_seed(2)
    return torch.randn(64, 64)


def tensors(x, d):
    return {"X": x, "I": torch.eye(64), "D": d}


@pytest.mark.parametrize(("quant", "dtype"), [(0, torch.float32), (1, torch.float16), (16, torch.bfloat16)])
@pytest.mark.parametrize("relu", [0, 1])
def test_conversion_and_relu(run_ascend, quant, dtype, relu):
    x = values()
    t = tensors(x, torch.zeros(64, 64, dtype=dtype))
    run_ascend(FILL + GM.format(**{**TO_GM, "quant": quant, "relu": relu}), t)
    assert torch.equal(t["D"], (x.relu() if relu else x).to(dtype))


def test_only_the_named_extent_is_stored(run_ascend):
    x = values()
    t = tensors(x, torch.full((40, 50), 7.0))
    run_ascend(FILL + GM.format(**{**TO_GM, "m": 37, "n": 21, "pitch": 50, "src": 16 * 64 * 4}), t)
    expected = torch.full((40, 50), 7.0)
    expected[:37, :21] = x[:37, 16:37]
    assert torch.equal(t["D"], expected)


def test_column_major_output(run_ascend):
    x = values()
    t = tensors(x, torch.zeros(64, 64, dtype=torch.bfloat16))
    run_ascend(FILL + GM.format(**{**TO_GM, "quant": 16, "nd": 0, "dn": 1}), t)
    assert torch.equal(t["D"], x.T.to(torch.bfloat16))


def test_special_values_follow_the_saturation_mode(run_ascend):
    x = values()
    x[0, :4] = torch.tensor([1e9, -1e9, 65519.0, 65520.0])
    for saturate, expected in (
        (False, [float("inf"), float("-inf"), 65504.0, float("inf")]),
        (True, [65504.0, -65504.0, 65504.0, 65504.0]),
    ):
        t = tensors(x, torch.zeros(64, 64, dtype=torch.float16))
        run_ascend(FILL + GM.format(**{**TO_GM, "quant": 1}), t, saturate=saturate)
        assert t["D"][0, :4].tolist() == expected


UB = "asc_copy_l0c2ub((float*)((__ubuf__ float *)1024), (float*)0, {n}, {m}, {pitch}, 64, {sub}, static_cast<asc_dual_dst_mode>({dual}), static_cast<asc_unit_flag_mode>(0), static_cast<asc_quant_mode>(0), static_cast<asc_relu_pre_mode>(0), 0, 1, 0, 0);"


@pytest.mark.parametrize(
    ("arguments", "rows", "columns"),
    [
        ({"dual": 0, "sub": 0, "pitch": 64}, [(0, 64), None], [(0, 64), None]),
        ({"dual": 0, "sub": 1, "pitch": 72}, [None, (0, 64)], [None, (0, 64)]),
        ({"dual": 1, "sub": 0, "pitch": 64}, [(0, 32), (32, 64)], [(0, 64), (0, 64)]),
        ({"dual": 2, "sub": 0, "pitch": 32}, [(0, 64), (0, 64)], [(0, 32), (32, 64)]),
    ],
)
def test_ub_destinations(run_ascend, arguments, rows, columns):
    x = values()
    body = "if ASC_IS_AIC {" + FILL + UB.format(n=64, m=64, **arguments) + "}"
    report = run_ascend(body, tensors(x, torch.zeros(1)), kind="mixed", memories=True)
    for core in range(2):
        ub = np.frombuffer(report.memories[f"UB of AIV{core}"], np.float32)
        if rows[core] is None:
            assert np.isnan(ub).all()
            continue
        part = x[slice(*rows[core]), slice(*columns[core])].numpy()
        pitch = arguments["pitch"]
        got = np.stack([ub[256 + r * pitch :][: part.shape[1]] for r in range(part.shape[0])])
        assert np.array_equal(got, part)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"quant": 13}, UnimplementedBuiltinError, "conversion mode 13"),
        ({"relu": 2}, UnimplementedBuiltinError, "relu mode 2"),
        ({"nd": 0}, UnimplementedBuiltinError, "NZ output"),
        ({"quant": 16}, UnimplementedBuiltinError, "needs a 2-byte destination"),
        ({"dst": "(fp8_e4_t*)D"}, UnimplementedBuiltinError, "without a conversion mode"),
        ({"src": 32}, MisalignedError, "source address 0x20 in L0C"),
        ({"m": 65}, OutOfBoundsError, "covers bytes 16384 to 16640"),
    ],
)
def test_a_wrong_store_is_named(run_ascend, changes, error, text):
    with pytest.raises(error, match=text):
        run_ascend(FILL + GM.format(**{**TO_GM, **changes}), tensors(values(), torch.zeros(64, 64)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"n": 64, "m": 63, "dual": 1}, "63 rows over two vector cores"),
        ({"n": 48, "m": 64, "dual": 2}, "multiple of 32"),
        ({"n": 64, "m": 64, "dual": 3}, "destination mode 3"),
    ],
)
def test_a_split_that_does_not_come_out_even_is_named(run_ascend, arguments, text):
    body = "if ASC_IS_AIC {" + FILL + UB.format(sub=0, pitch=64, **arguments) + "}"
    with pytest.raises(OutOfBoundsError, match=text):
        run_ascend(body, tensors(values(), torch.zeros(1)), kind="mixed")
