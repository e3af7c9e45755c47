"""The shipped demonstration: three kernels exact, hazard-free, and every seeded fault caught."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from unikernels.backends.ascend.simulator import KernelFaultError, simulate

PATH = Path(__file__).parents[2] / "examples" / "simulate_kernels.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("simulate_kernels", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def demos(example):
    return {demo.name: demo for demo in example.demos()}


NAMES = ["bf16 GEMM with ReLU", "MX fp8 GEMM", "SIMT RMSNorm"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_results_do_not_depend_on_the_interleaving(demos, name, seed):
    demo = demos[name]
    demo.tensors[-1].fill_(float("nan"))
    simulate(demo.kernel, *demo.tensors, seed=seed)
    assert torch.equal(demo.tensors[-1], demo.expected)


@pytest.mark.parametrize("name", NAMES)
def test_seeded_faults_are_caught(example, demos, name):
    demo = demos[name]
    for pattern, replacement in demo.faults.values():
        broken, tensors = example.broken(demo.kernel, pattern, replacement), [t.clone() for t in demo.tensors]
        with pytest.raises(KernelFaultError):
            simulate(broken, *tensors)


def test_checks_off_gives_the_same_numbers(demos):
    for demo in demos.values():
        demo.tensors[-1].fill_(float("nan"))
        simulate(demo.kernel, *demo.tensors, check="off")
        assert torch.equal(demo.tensors[-1], demo.expected)


def test_the_script_draws_every_kernel(example, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["simulate_kernels.py", "--out", str(tmp_path)])
    example.main()
    told = capsys.readouterr().out
    assert told.count("equal to torch, bit for bit; no hazards") == len(NAMES)
    assert told.count("caught (") == sum(len(demo.faults) for demo in example.demos())
    for name in NAMES:
        picture = tmp_path / (name.replace(" ", "_") + ".png")
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.with_suffix(".json").stat().st_size > 0
