"""Baselines of the vendor library: the calls torch_npu gets, against a stand-in for it. Not run on hardware."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from dataclasses import replace

import pytest
import torch

import unikernels as uk
from unikernels.backends.ascend.kernels import vendor
from unikernels.backends.ascend.runtime.simulated import recorded_reports
from unikernels.errors import UnsupportedOperationError
from unikernels.operations.gemm import gemm_reference

E8M0, E2M1 = object(), object()


@pytest.fixture
def calls(monkeypatch):
    """A stand-in torch_npu that checks what the documentation of `npu_quant_matmul` asks for, and multiplies."""
    seen = []

    def values(data, pairs, dtype):
        """Rows times K in float64; `data` [rows, k] and `pairs` [rows, k / 64, 2]."""
        assert pairs.dtype is torch.uint8
        rows, k = data.shape[0], pairs.shape[1] * 64
        assert pairs.shape == (rows, k // 64, 2)
        if dtype is E2M1:
            assert data.dtype is torch.uint8
            assert data.is_contiguous()
            assert pairs.is_contiguous()
            codes = torch.stack([data & 15, data >> 4], -1).flatten(1).long()
            numbers = torch.tensor(uk.operations.gemm.E2M1_VALUES, dtype=torch.float64)[codes]
        else:
            assert data.dtype is torch.float8_e4m3fn
            assert data.is_contiguous() or data.mT.is_contiguous()
            # Data and scales are transposed together or not at all.
            assert pairs.is_contiguous() if data.is_contiguous() else pairs.transpose(0, 1).is_contiguous()
            numbers = data.double()
        assert numbers.shape == (rows, k)
        return numbers * torch.exp2(pairs.flatten(1).double() - 127).repeat_interleave(32, 1)

    def npu_quant_matmul(
        x1, x2, scale, *, pertoken_scale, scale_dtype, pertoken_scale_dtype, output_dtype, group_sizes, x1_dtype=None, x2_dtype=None
    ):  # fmt: skip
        assert scale_dtype is pertoken_scale_dtype is E8M0
        assert group_sizes == [1, 1, 32]
        seen.append((x1_dtype is E2M1, x2_dtype is E2M1, output_dtype))
        left = values(x1, pertoken_scale, x1_dtype)
        return (left @ values(x2.mT, scale.transpose(0, 1), x2_dtype).T).to(output_dtype)

    stand_in = types.ModuleType("torch_npu")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None)
    stand_in.npu_quant_matmul = npu_quant_matmul
    stand_in.float8_e8m0fnu, stand_in.float4_e2m1fn_x2 = E8M0, E2M1
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    return seen


@pytest.fixture
def vendor_result(ascend, monkeypatch):
    """A function that runs a public function as if its CPU tensors lay on an NPU, and the reference on the same call."""

    def run(function, *arguments):
        *_, d, _addend = arguments
        expected = d.clone()

        def gemm(problem):
            assert problem.is_vendor_reference
            reference = vendor_problem(problem, expected)
            gemm_reference(reference)
            vendor.gemm(problem)

        def vendor_problem(problem, out):
            return replace(problem, d=out, c=None if problem.c is None else problem.c.clone())

        monkeypatch.setattr(ascend, "gemm", gemm)
        monkeypatch.setattr(ascend, "why_not", lambda operation, problem: None)
        monkeypatch.setattr("unikernels._registry._bound", {})
        getattr(uk, function)(*arguments)
        return d, expected

    return run


def _operand(kind, rows, k, is_k_major, generator):
    scales = torch.exp2(torch.randint(-2, 3, (rows, k // 32), generator=generator).float())
    if kind == "fp8":
        data = torch.randint(-3, 4, (rows, k), generator=generator).float().to(torch.float8_e4m3fn)
        return data if is_k_major else data.mT.contiguous().mT, scales
    data = torch.randint(-128, 128, (rows, k // 2), generator=generator, dtype=torch.int8)
    return data if is_k_major else uk.utils.transpose_packed_fp4(data).mT, scales


@pytest.mark.parametrize(
    ("kinds", "majors"),
    [
        (("fp8", "fp8"), (True, True)),
        (("fp8", "fp8"), (False, True)),
        (("fp8", "fp8"), (False, False)),
        (("fp8", "fp4"), (True, True)),
        (("fp4", "fp4"), (True, True)),
        (("fp4", "fp4"), (False, True)),
    ],
)
@pytest.mark.parametrize("accumulates", [False, True])
def test_quantised_calls(calls, vendor_result, kinds, majors, accumulates):
    generator = torch.Generator().manual_seed(7)
    a, b = (
        _operand(kind, rows, 192, is_k_major, generator)
        for kind, rows, is_k_major in zip(kinds, (34, 66), majors, strict=True)
    )
    d = torch.full((34, 66), 8.0).bfloat16()
    with recorded_reports() as reports:
        found, expected = vendor_result("aclnn_fp8_fp4_gemm_nt", a, b, d, d if accumulates else None)
    assert len(reports) == 2  # scales pass through kernels, which wait for no device
    assert calls == [(kinds[0] == "fp4", kinds[1] == "fp4", torch.bfloat16)]
    if accumulates:  # the product is rounded before C is added
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=0.5)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_bf16_calls(vendor_result, small_integers, out, layout):
    a, b = small_integers(34, 64).bfloat16(), small_integers(66, 64).bfloat16()
    passed = (a, b) if layout == "nt" else (a.mT.contiguous(), b.mT.contiguous())
    for accumulates in (False, True):
        d = torch.full((34, 66), 8.0, dtype=out)
        found, expected = vendor_result(f"aclnn_bf16_gemm_{layout}", *passed, d, d if accumulates else None)
        assert torch.equal(found, expected)


def test_without_an_npu_the_baselines_say_how_to_get_one(ascend):
    ones, d = torch.ones(4, 64).bfloat16(), torch.full((4, 4), 7.0)
    with pytest.raises(
        UnsupportedOperationError, match=r"runs on an NPU only.*install torch_npu with the CANN release"
    ):
        uk.aclnn_bf16_gemm_nt(ones, ones, d)
    assert (d == 7).all()
    uk.cublaslt_gemm_nt(ones, ones, d)  # only a hint: computed here
    assert (d == 64).all()
