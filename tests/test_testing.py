"""The comparison and timing functions; every comparison has a twin that must fail: a blind check hides all else."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest
import torch

from unikernels import testing, use_backend
from unikernels.errors import InvalidArgumentError, UnsupportedOperationError
from unikernels.testing import numeric


def _random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _textbook(x, y):
    x, y = x.double(), y.double()
    return (1 - 2 * (x * y).sum() / (x * x + y * y).sum()).item()


# calc_diff (FC-55)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_calc_diff_is_the_documented_formula(dtype):
    x, y = _random(33, 65, dtype=dtype), _random(33, 65, seed=1, dtype=dtype)
    assert testing.calc_diff(x, y) == pytest.approx(_textbook(x, y), rel=1e-12)
    assert testing.calc_diff(x, x.clone()) == 0.0


def test_calc_diff_resolves_differences_that_cancellation_would_hide():
    x = torch.ones(1000, dtype=torch.float64)
    y = x.clone()
    y[0] += 1e-9
    assert testing.calc_diff(x, y) == pytest.approx(1e-18 / 2000, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["x", "y"])
def test_calc_diff_lone_nonfinite_value_fails_every_tolerance(bad, side):
    x, y = _random(100), _random(100)
    (x if side == "x" else y)[17] = bad
    difference = testing.calc_diff(x, y)
    assert difference == math.inf
    assert not difference < 1e30


def test_calc_diff_nan_on_both_sides_fails():
    x = _random(100)
    x[3] = math.nan
    assert testing.calc_diff(x, x.clone()) == math.inf


def test_calc_diff_infinities():
    x, y = _random(100), _random(100)
    x[5] = y[5] = -math.inf
    assert testing.calc_diff(x, y) == 0.0
    y[7] *= -1
    assert testing.calc_diff(x, y) > 0
    y[5] = math.inf
    assert testing.calc_diff(x, y) == math.inf


def test_calc_diff_zeros_and_empty():
    assert testing.calc_diff(torch.zeros(5), torch.zeros(5)) == 0.0
    assert testing.calc_diff(torch.zeros(0, 3), torch.zeros(0, 3)) == 0.0
    assert testing.calc_diff(torch.zeros(5), torch.ones(5)) == 1.0


@pytest.mark.parametrize("magnitude", [1e-300, 1e-30, 1e-6, 1.0, 1e6, 1e30, 1e300])
def test_calc_diff_does_not_depend_on_magnitude(magnitude):
    x, y = _random(5000, dtype=torch.float64), _random(5000, seed=1, dtype=torch.float64)
    assert testing.calc_diff(x * magnitude, y * magnitude) == pytest.approx(testing.calc_diff(x, y), rel=1e-9)
    assert testing.calc_diff(x * magnitude, 0.1 * x * magnitude) == pytest.approx(0.81 / 1.01, rel=1e-9)
    assert testing.calc_diff(x * magnitude, y * magnitude) > 0.9


def test_calc_diff_leaves_its_arguments_alone_and_takes_any_strides():
    x, y = _random(40, 30, dtype=torch.float64), _random(40, 30, seed=1, dtype=torch.float64)
    copies = x.clone(), y.clone()
    assert testing.calc_diff(x.t(), y.t()) == pytest.approx(testing.calc_diff(x, y), rel=1e-12)
    assert torch.equal(x, copies[0])
    assert torch.equal(y, copies[1])


def test_calc_diff_in_chunks(monkeypatch):
    x, y = _random(1003), _random(1003, seed=1)
    whole = testing.calc_diff(x, y)
    monkeypatch.setattr(numeric, "_CHUNK", 10)
    assert testing.calc_diff(x, y) == pytest.approx(whole, rel=1e-12)
    y[1002] = math.nan
    assert testing.calc_diff(x, y) == math.inf


def test_calc_diff_refuses_a_broadcast():
    with pytest.raises(InvalidArgumentError, match=r"x has shape \(4, 1\), y has \(4,\), expected equal shapes"):
        testing.calc_diff(torch.ones(4, 1), torch.ones(4))


@pytest.mark.parametrize("bad", [1.0, torch.ones(2, dtype=torch.complex64)])
def test_calc_diff_refuses_other_things(bad):
    with pytest.raises(InvalidArgumentError, match="expected a tensor of real numbers"):
        testing.calc_diff(bad, torch.ones(2))


# assert_close


def test_assert_close_passes_and_its_twin_fails():
    x = _random(6, 7, 5)
    testing.assert_close(x, x * (1 + 1e-7), 1e-12)
    wrong = x.clone()
    wrong[4, 2, 3] = 100.0
    wrong[0, 0, 0] += 1.0
    with pytest.raises(
        AssertionError, match=r"gate: calc_diff .* > 1\.0e-03; worst at \[4, 2, 3\]: actual 100\.0, expected "
    ):
        testing.assert_close(wrong, x, 1e-3, "gate")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_assert_close_points_at_a_nonfinite_value(bad, monkeypatch):
    monkeypatch.setattr(numeric, "_CHUNK", 8)
    x = _random(4, 9)
    wrong = x.clone()
    wrong[0, 0] += 1e6
    wrong[3, 1] = bad
    with pytest.raises(AssertionError, match=rf"calc_diff inf .*worst at \[3, 1\]: actual {bad}"):
        testing.assert_close(wrong, x, 1e30)


def test_assert_close_zero_tolerance_means_equal():
    testing.assert_close(torch.ones(3), torch.ones(3), 0.0)
    with pytest.raises(AssertionError):
        testing.assert_close(torch.ones(3), torch.ones(3) + 2**-23, 0.0)


@pytest.mark.parametrize("tol", [-1e-9, math.nan])
def test_assert_close_refuses_a_senseless_tolerance(tol):
    with pytest.raises(InvalidArgumentError, match="tol is"):
        testing.assert_close(torch.ones(3), torch.ones(3), tol)


# assert_bitwise_equal


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.bool])
def test_assert_bitwise_equal_passes(dtype):
    x = _random(3, 4).to(dtype)
    testing.assert_bitwise_equal(x, x.clone())
    testing.assert_bitwise_equal(x.t(), x.t().contiguous())  # strides are not compared
    testing.assert_bitwise_equal(x[:0], x[:0].clone())


def test_assert_bitwise_equal_fails_on_one_bit():
    x = _random(3, 4)
    y = x.clone()
    y.view(torch.int32)[2, 1] ^= 1
    with pytest.raises(
        AssertionError, match=r"scores: 1 of 12 elements differ; first at \[2, 1\]: .*0x.* against .*0x"
    ):
        testing.assert_bitwise_equal(x, y, "scores")


def test_assert_bitwise_equal_sees_signed_zero_and_nan_payloads():
    with pytest.raises(AssertionError, match=r"0\.0 \(0x00000000\) against -0\.0 \(0x80000000\)"):
        testing.assert_bitwise_equal(torch.tensor(0.0), torch.tensor(-0.0))
    nan = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
    other = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    testing.assert_bitwise_equal(nan, nan.clone())
    with pytest.raises(AssertionError, match="1 of 1 elements differ"):
        testing.assert_bitwise_equal(nan, other)


@pytest.mark.parametrize("other", [torch.ones(4), torch.ones(2, 2).int(), torch.ones(2, 2).bfloat16()])
def test_assert_bitwise_equal_fails_on_shape_and_dtype(other):
    with pytest.raises(AssertionError, match="against"):
        testing.assert_bitwise_equal(torch.ones(2, 2), other)


def test_assert_bitwise_equal_of_packed_fp4():
    x = torch.arange(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    testing.assert_bitwise_equal(x, x.clone())
    with pytest.raises(AssertionError, match=r"first at \[0\]"):
        testing.assert_bitwise_equal(x, (torch.arange(6, dtype=torch.uint8) + 1).view(torch.float4_e2m1fn_x2))


# count_bytes


def test_count_bytes():
    pair = (torch.zeros(4, 8).to(torch.float8_e4m3fn), torch.zeros(4, 1))
    assert testing.count_bytes() == 0
    assert testing.count_bytes(pair, None, [torch.zeros(3).bfloat16(), (None,)]) == 32 + 16 + 6
    with pytest.raises(InvalidArgumentError, match="got a int"):
        testing.count_bytes(3)


# Timing


def test_bench_measures_the_mean_of_the_timed_calls():
    calls = []

    def sleep():
        calls.append(1)
        time.sleep(0.002)

    seconds = testing.bench(sleep, num_warmups=2, num_tests=4)
    assert len(calls) == 6
    assert 0.002 <= seconds < 1
    with pytest.raises(InvalidArgumentError, match="num_tests is 0"):
        testing.bench(sleep, num_tests=0)


def _labelled_sleep():
    with torch.profiler.record_function("slow_kernel"):
        time.sleep(0.02)
    with torch.profiler.record_function("fast_kernel"):
        time.sleep(0.001)


def test_bench_kineto_times_each_name():
    slow, fast, absent = testing.bench_kineto(
        _labelled_sleep, ("slow_kernel", "fast_kernel", "absent"), num_tests=3, flush_l2=False
    )
    assert 0.02 <= slow < 1
    assert 0.001 <= fast < slow
    assert absent == 0
    assert isinstance(testing.bench_kineto(_labelled_sleep, "slow_kernel", num_tests=1, flush_l2=False), float)


def test_bench_kineto_sees_torch_operators():
    a = torch.ones(64, 64)
    assert testing.bench_kineto(lambda: torch.mm(a, a), "aten::mm", num_tests=2) > 0


def test_bench_kineto_refuses_an_ambiguous_name():
    with pytest.raises(InvalidArgumentError, match=r"'_kernel' matches 2 kernels: fast_kernel, slow_kernel"):
        testing.bench_kineto(_labelled_sleep, "_kernel", num_tests=1, flush_l2=False)
    mean = testing.bench_kineto(_labelled_sleep, "_kernel", num_tests=2, flush_l2=False, with_multiple_kernels=True)
    assert 0.0105 <= mean < 1


def test_bench_kineto_calls_barrier_and_writes_a_trace(tmp_path):
    barriers = []
    trace = tmp_path / "trace.json"
    testing.bench_kineto(
        _labelled_sleep, "slow_kernel", 3, trace_path=str(trace), flush_l2=False, barrier=lambda: barriers.append(1)
    )
    assert len(barriers) == 3
    assert "slow_kernel" in trace.read_text()


def test_bench_kineto_under_an_outside_profiler(monkeypatch):
    monkeypatch.setenv("DG_USE_NVIDIA_TOOLS", "1")
    calls = []
    assert testing.bench_kineto(lambda: calls.append(1), ("a", "b"), num_tests=2) == (1.0, 1.0)
    assert testing.bench_kineto(lambda: None, "a", num_tests=2) == 1.0
    assert len(calls) == 3
    monkeypatch.setenv("DG_USE_NVIDIA_TOOLS", "0")
    assert testing.bench_kineto(lambda: None, "a", num_tests=1, flush_l2=False) == 0.0


_SUPPRESSION_SCRIPT = """
import os, sys
from unikernels.testing import empty_suppress, suppress_stdout_stderr
with suppress_stdout_stderr():
    print("hidden python"); print("hidden error", file=sys.stderr); os.write(1, b"hidden native")
with empty_suppress():
    print("shown", flush=True)
try:
    with suppress_stdout_stderr():
        raise KeyError
except KeyError:
    print("restored", flush=True); os.write(2, b"native error")
"""


def test_suppress_stdout_stderr_hides_python_and_native_output():
    done = subprocess.run([sys.executable, "-c", _SUPPRESSION_SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["shown", "restored"]
    assert done.stderr == "native error"


# Conditions


def test_get_arch_major_follows_the_scale_format(monkeypatch):
    from unikernels import _registry
    from unikernels.scale_layouts import ScaleFormat

    with use_backend("reference"):
        backend = _registry.current_backend()
        assert testing.get_arch_major() == 10
        monkeypatch.setattr(type(backend), "scale_format", ScaleFormat.FP32)
        assert testing.get_arch_major() == 9
        monkeypatch.setattr(type(backend), "scale_format", ScaleFormat.UE8M0X2_INT16)
        with pytest.raises(UnsupportedOperationError, match="no NVIDIA generation does"):
            testing.get_arch_major()


def test_test_filter_runs_only_where_the_condition_holds(capsys):
    allowed = [True]

    @testing.test_filter(lambda: allowed[0])
    def measured(x, *, y=2):
        return x + y

    assert measured(1, y=3) == 4
    assert measured.__name__ == "measured"
    allowed[0] = False
    assert measured(1) is None
    assert "measured: skipped" in capsys.readouterr().out


def test_ignore_env_removes_and_restores(monkeypatch):
    monkeypatch.setenv("UNIKERNELS_EXAMPLE", "1")
    applies = [True]

    @testing.ignore_env("UNIKERNELS_EXAMPLE", lambda: applies[0])
    def seen(fail=False):
        if fail:
            raise KeyError
        return os.environ.get("UNIKERNELS_EXAMPLE")

    assert seen() is None
    assert os.environ["UNIKERNELS_EXAMPLE"] == "1"
    with pytest.raises(KeyError):
        seen(fail=True)
    assert os.environ["UNIKERNELS_EXAMPLE"] == "1"
    applies[0] = False
    assert seen() == "1"
