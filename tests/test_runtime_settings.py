"""Runtime settings: what is set is what is got, bad values are named and change nothing, effects where there are any."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedOperationError
from unikernels.settings import CURRENT


def test_tensor_core_utilisation():
    assert uk.get_tc_util() == 100
    uk.set_tc_util(80)
    assert uk.get_tc_util() == 80
    uk.set_tc_util(0)
    assert uk.get_tc_util() == 100
    for wrong in (-1, 101):
        with pytest.raises(InvalidArgumentError, match=f"new_tc_util is {wrong}, expected 0 to 100"):
            uk.set_tc_util(wrong)
    assert uk.get_tc_util() == 100


@pytest.mark.parametrize(
    ("setter", "getter"),
    [("set_pdl", "get_pdl"), ("use_deterministic_algorithms", "get_deterministic_algorithms")],
)
def test_switches(setter, getter):
    for value in (True, False):
        getattr(uk, setter)(value)
        assert getattr(uk, getter)() is value
    with pytest.raises(ArgumentTypeError, match="is 1, expected a bool"):
        getattr(uk, setter)(1)
    assert getattr(uk, getter)() is False


def test_tuning_hints_are_checked_and_stored():
    uk.set_ignore_compile_dims(True)
    assert CURRENT.ignores_compile_dims
    for value, stored in ((16, (16, 16)), ((8, 32), (8, 32)), ([8, 32], (8, 32))):
        uk.set_block_size_multiple_of(value)
        assert CURRENT.block_size_multiple_of == stored
    for wrong in (0, (8, -1), (8, 8, 8)):
        with pytest.raises(InvalidArgumentError, match="expected a positive int or two of them"):
            uk.set_block_size_multiple_of(wrong)
    assert CURRENT.block_size_multiple_of == (8, 32)


def test_results_do_not_depend_on_settings():
    a, b = torch.randn(20, 64).bfloat16(), torch.randn(30, 64).bfloat16()
    plain, tuned = torch.empty(20, 30), torch.empty(20, 30)
    with uk.use_backend("cpu"):
        uk.bf16_gemm_nt(a, b, plain)
        uk.set_tc_util(50), uk.set_pdl(True), uk.set_ignore_compile_dims(True)
        uk.set_block_size_multiple_of(32), uk.use_deterministic_algorithms(True), uk.set_num_sms(1)
        uk.bf16_gemm_nt(a, b, tuned)
    assert torch.equal(plain, tuned)


def test_alignment_of_groups():
    with uk.use_backend("cpu"):
        assert uk.get_theoretical_mk_alignment_for_contiguous_layout() == 128
        assert uk.get_theoretical_mk_alignment_for_contiguous_layout(64) == 128
        uk.set_mk_alignment_for_contiguous_layout(64)
        assert uk.get_k_alignment_for_contiguous_layout() == uk.get_m_alignment_for_contiguous_layout() == 64
        with pytest.raises(InvalidArgumentError, match="new_value is 12, expected a positive multiple of 8"):
            uk.set_mk_alignment_for_contiguous_layout(12)
        with pytest.raises(ArgumentTypeError, match=r"expected_m is 1\.5"):
            uk.get_theoretical_mk_alignment_for_contiguous_layout(1.5)
        assert uk.get_mk_alignment_for_contiguous_layout() == 64


def test_npu_architecture(monkeypatch):
    with uk.use_backend("cpu"):
        with pytest.raises(UnsupportedOperationError, match=r"backend 'cpu' is not an NPU.*set_npu_arch\(3510\)"):
            uk.get_npu_arch()
        with pytest.raises(InvalidArgumentError, match="arch is 2201, expected 3510"):
            uk.set_npu_arch(2201)
        uk.set_npu_arch(3510)
        assert uk.get_npu_arch() == 3510


def test_shutdown_reaches_every_backend_and_may_be_repeated(monkeypatch):
    seen = []
    for name, known in _registry.discover().backends.items():
        monkeypatch.setattr(known, "shutdown", lambda name=name: seen.append(name), raising=False)
    uk.shutdown()
    uk.shutdown()
    assert sorted(seen) == sorted([*_registry.discover().backends] * 2)


def test_shutdown_before_any_call_loads_no_backend():
    code = "import unikernels, sys; unikernels.shutdown(); assert 'unikernels.backends.cpu.plugin' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
