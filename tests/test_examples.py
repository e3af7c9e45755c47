"""The example model runs, keeps its limits, and notices a kernel that computes something else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.errors import UnsupportedOperationError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "deepseek_block"
ON_ASCEND = "UNIKERNELS_BACKEND=ascend UNIKERNELS_FALLBACK=cpu python examples/deepseek_block/run.py"
PROMPTS = (70, 1, 9)


@pytest.fixture
def example(monkeypatch):
    """The script as a module; its neighbours have plain names, which must not stay behind for other tests."""
    monkeypatch.syspath_prepend(str(FOLDER))
    # The layers are so small that threads cost more than they bring, above all on a busy machine.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = set(sys.modules)
    import run

    yield run
    torch.set_num_threads(num_threads)
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def _failures(example, num_decoded=1):
    results = example.run(0, num_decoded, torch.device("cpu"), PROMPTS)
    return {(step, check.stage) for step, checks in results.items() for check in checks if not check.passed}


def test_script_prints_all_stages_and_succeeds():
    environment = {**os.environ, "UNIKERNELS_BACKEND": "cpu"}
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--steps", "2"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=FOLDER.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("backend cpu", "decode 2", "all stages keep their limits"):
        assert text in done.stdout
    for stage in (
        "query",
        "index logits",
        "chosen tokens",
        "attention output",
        "chosen experts",
        "moe output",
        "streams",
    ):
        assert stage in done.stdout
    assert "FAILED" not in done.stdout
    assert not done.stderr


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_block_keeps_its_limits(example, backend):
    with uk.use_backend(backend):
        assert _failures(example) == set()


def _skip_without_ascend():
    reason = _registry.available_backends().get("ascend", "it is not installed")
    if reason is not None:
        pytest.skip(f"backend 'ascend' cannot run here: {reason}")


@pytest.mark.parametrize("page", ["README.md", "docs/ascend.md", "examples/deepseek_block/run.py"])
def test_pages_show_the_command_for_ascend(page):
    assert ON_ASCEND in (ROOT / page).read_text()


def test_command_for_ascend_falls_back_where_the_page_says():
    _skip_without_ascend()
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(ON_ASCEND, shell=True, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all stages keep their limits" in done.stdout
    reported = re.findall(r"RuntimeWarning: (\w+): .* UNIKERNELS_FALLBACK computes it on 'cpu'", done.stderr)
    page = (ROOT / "docs" / "ascend.md").read_text()
    (sentence,) = re.findall(r"included, are Ascend kernels\.(.*?)come from the CPU backend", page, re.DOTALL)
    assert sorted(reported) == sorted(re.findall(r"`(\w+)`", sentence))


def test_refusal_on_ascend_says_how_to_go_on(example):
    _skip_without_ascend()
    advice = (
        "does not implement 'hc_prenorm_gemm'.*set UNIKERNELS_FALLBACK=cpu: 'cpu' then computes what 'ascend' cannot"
    )
    with uk.use_backend("ascend"), pytest.raises(UnsupportedOperationError, match=advice):
        _failures(example)


@pytest.mark.filterwarnings("ignore:.*UNIKERNELS_FALLBACK computes it on 'cpu':RuntimeWarning")
def test_gemms_of_the_block_run_on_ascend(example, monkeypatch):
    """Projections and experts run as Ascend kernels, checks on; operations the backend lacks come from the CPU backend."""
    _skip_without_ascend()
    from unikernels.backends.ascend.runtime.simulated import recorded_reports

    with monkeypatch.context() as patch:
        patch.setenv("UNIKERNELS_FALLBACK", "cpu")
        _registry.forget()
        with uk.use_backend("ascend"), recorded_reports() as reports:
            assert _failures(example) == set()
    _registry.forget()
    kernels = {recording.symbol.removesuffix("_kernel") for report in reports for recording in report.recordings}
    assert {"gemm", "m_grouped_gemm"} <= kernels, kernels


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("fp8_gemm_nt", ("prefill", "query")),
        ("tf32_hc_prenorm_gemm", ("prefill", "attention mixes")),
        ("m_grouped_fp8_gemm_nt_contiguous", ("prefill", "moe output")),
        ("m_grouped_fp8_gemm_nt_masked", ("decode 1", "moe output")),
    ],
)
def test_a_wrong_kernel_is_noticed(example, monkeypatch, function, expected):
    right = getattr(uk, function)

    def wrong(a, b, d, *others, **options):
        right(a, b, d, *others, **options)
        d[..., : d.shape[-1] // 8] = 0

    monkeypatch.setattr(uk, function, wrong)
    assert expected in _failures(example)


@pytest.mark.parametrize(
    ("function", "step"), [("fp8_fp4_mqa_logits", "prefill"), ("fp8_fp4_paged_mqa_logits", "decode 1")]
)
def test_wrong_logits_are_noticed(example, monkeypatch, function, step):
    right = getattr(uk, function)
    monkeypatch.setattr(uk, function, lambda *arguments, **options: right(*arguments, **options).roll(1, dims=1))
    assert (step, "index logits") in _failures(example)


def test_wrong_routing_is_noticed(example, monkeypatch):
    right = uk.bf16_mega_gate

    def wrong(x, weight, *others, bias, **options):
        return right(x, weight, *others, bias=bias.flip(0) * 20, **options)

    monkeypatch.setattr(uk, "bf16_mega_gate", wrong)
    assert ("prefill", "chosen experts") in _failures(example)


def test_a_stage_over_its_limit_fails_the_script(example, monkeypatch, capsys):
    monkeypatch.setitem(example.LIMITS, "moe output", 1e-9)
    monkeypatch.setattr(example, "PROMPT_LENGTHS", PROMPTS)
    assert example.main(["--steps", "0"]) == 1
    assert "over the limit: prefill: moe output" in capsys.readouterr().out


def test_nan_is_over_every_limit(example):
    assert not example.Check("stage", float("nan"), 1.0, is_agreement=False).passed
    assert not example.Check("stage", float("nan"), 0.0, is_agreement=True).passed
