"""The tools that judge: comparisons with failing twins, bundles that refuse damage, reports, the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import unikernels
from unikernels import _registry, bench, cli, environment, parity, support
from unikernels.backend import Backend
from unikernels.errors import ParityError
from unikernels.parity import report, runner
from unikernels.parity.compare import ULP_BUCKETS, compare

CASES = parity.select(["gemm"], pattern="fp8xfp8-nt-int16_32-m=34")


class TestCompare:
    def test_equal_bits(self):
        x = torch.tensor([1.0, float("-inf"), float("nan"), 0.0])
        one = compare(x, x.clone(), 0.0)
        assert one.passed
        assert one.num_special_mismatches == 0
        assert one.ulp_histogram[0] == 2  # the finite ones

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 2.0])
    def test_special_values_must_agree(self, wrong):
        x = torch.tensor([1.0, float("-inf")])
        y = torch.tensor([1.0, wrong])
        assert not compare(y, x, 1.0).passed
        assert not compare(x, y, 1.0).passed

    def test_noise_fails_whatever_its_size(self):
        generator = torch.Generator().manual_seed(0)
        for size in (1e-6, 1.0, 1e6):
            x, y = (torch.randn(1000, generator=generator) * size for _ in range(2))
            assert not compare(x, y, 1e-2).passed
            assert not compare(0.1 * x, x, 1e-2).passed
            assert compare(x * (1 + 1e-6), x, 1e-5).passed

    def test_ulp_distance_crosses_zero(self):
        tiny = torch.tensor([1, -(2**31) + 1], dtype=torch.int32).view(torch.float32)  # smallest positive and negative
        one = compare(tiny[:1], tiny[1:], 1.0)
        assert one.ulp_histogram[ULP_BUCKETS.index(2)] == 1

    def test_bf16_ulp(self):
        x = torch.tensor([1.0]).bfloat16()
        y = (x.view(torch.int16) + 3).view(torch.bfloat16)
        assert compare(y, x, 1.0).ulp_histogram[ULP_BUCKETS.index(4)] == 1

    def test_integers_are_compared_bit_by_bit(self):
        x = torch.arange(8, dtype=torch.int32)
        assert compare(x, x, 1.0).passed
        y = x.clone()
        y[3] += 1
        assert not compare(y, x, 1.0).passed

    def test_other_shape_or_dtype_is_refused(self):
        with pytest.raises(ValueError, match="outputs differ in kind"):
            compare(torch.zeros(2), torch.zeros(3), 1.0)
        with pytest.raises(ValueError, match="outputs differ in kind"):
            compare(torch.zeros(2), torch.zeros(2).bfloat16(), 1.0)

    def test_empty(self):
        assert compare(torch.zeros(0, 4), torch.zeros(0, 4), 1e-5).passed


class TestRunner:
    def test_a_wrong_backend_fails(self, monkeypatch):
        (operation, case), *_ = CASES
        right = runner.outputs_of(case, "reference")
        monkeypatch.setattr(runner, "outputs_of", lambda *_: {"d": right["d"] * 1.05})
        result = runner.judge(operation, case, "cpu", lambda: right)
        assert result.status == "failed"
        assert "differs in d" in result.message

    def test_an_exception_is_reported_not_hidden(self, monkeypatch):
        (operation, case), *_ = CASES

        def explode(*_):
            raise RuntimeError("boom")

        monkeypatch.setattr(runner, "outputs_of", explode)
        assert runner.judge(operation, case, "cpu", dict).message == "RuntimeError: boom"

    def test_missing_output_is_an_error(self, monkeypatch):
        (operation, case), *_ = CASES
        monkeypatch.setattr(runner, "outputs_of", lambda *_: {})
        assert runner.judge(operation, case, "cpu", lambda: {"d": torch.zeros(1)}).status == "error"


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "results.safetensors"
    assert parity.record(path, CASES, "reference") == len(CASES) > 0
    return path


class TestBundle:
    def test_round_trip(self, bundle):
        header, results = parity.check(bundle, "cpu")
        assert header["backend"] == "reference"
        assert [result.status for result in results] == ["passed"] * len(CASES)

    def test_a_backend_that_differs_is_found(self, bundle, monkeypatch):
        honest = runner.outputs_of
        monkeypatch.setattr(runner, "outputs_of", lambda *args: {k: v * 1.05 for k, v in honest(*args).items()})
        _, results = parity.check(bundle, "cpu")
        assert {result.status for result in results} == {"failed"}

    @pytest.mark.parametrize("keep", [0, 7, 0.5, 0.99])
    def test_truncated_is_refused(self, bundle, keep):
        data = bundle.read_bytes()
        bundle.write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
        with pytest.raises(ParityError, match="not a readable parity bundle"):
            parity.load(bundle)

    def test_one_flipped_bit_is_refused(self, bundle):
        data = bytearray(bundle.read_bytes())
        data[-5] ^= 0x10
        bundle.write_bytes(data)
        with pytest.raises(ParityError, match="do not match the checksum"):
            parity.load(bundle)

    def test_an_edited_header_is_refused(self, bundle):
        data = bundle.read_bytes()
        edited = data.replace(b'\\"backend\\": \\"reference\\"', b'\\"backend\\": \\"referencf\\"')
        assert edited != data
        bundle.write_bytes(edited)
        with pytest.raises(ParityError, match="do not match the checksum"):
            parity.load(bundle)

    def test_other_files_are_refused(self, tmp_path):
        path = tmp_path / "other"
        with pytest.raises(ParityError, match="no such file"):
            parity.load(path)
        torch.save({"x": torch.zeros(1)}, path)  # a pickle: must not be unpickled
        with pytest.raises(ParityError, match="not a readable parity bundle"):
            parity.load(path)
        safetensors.torch.save_file({"x": torch.zeros(1)}, path)
        with pytest.raises(ParityError, match="not a readable parity bundle"):
            parity.load(path)

    def test_nothing_partial_is_left_behind(self, tmp_path, monkeypatch):
        path = tmp_path / "results"

        def explode(*_, **__):
            raise OSError("disk full")

        monkeypatch.setattr(safetensors.torch, "save_file", explode)
        with pytest.raises(OSError, match="disk full"):
            parity.record(path, CASES, "reference")
        assert list(tmp_path.iterdir()) == []


class TestCommandLine:
    def test_parity_writes_all_reports(self, tmp_path, capsys):
        files = [tmp_path / name for name in ("r.html", "r.json", "r.png")]
        options = ["--html", str(files[0]), "--json", str(files[1]), "--picture", str(files[2])]
        assert cli.main(["parity", "--op", "gemm", "-k", "nt-int16", "--backend", "cpu", *options]) == 0
        assert "<table>" in files[0].read_text()
        assert {one["status"] for one in json.loads(files[1].read_text())["results"]} == {"passed"}
        assert files[2].read_bytes().startswith(b"\x89PNG")
        assert "gemm" in capsys.readouterr().out

    def test_a_failing_comparison_gives_exit_code_1(self, monkeypatch):
        honest = runner.outputs_of
        monkeypatch.setattr(
            runner,
            "outputs_of",
            lambda case, name, *a: {k: v * (1 + (name == "cpu")) for k, v in honest(case, name).items()},
        )
        assert cli.main(["parity", "--op", "gemm", "-k", "nt-int16", "--backend", "cpu"]) == 1

    def test_record_and_check(self, tmp_path):
        path = str(tmp_path / "bundle")
        assert cli.main(["parity", "record", path, "--backend", "reference", "--op", "gemm", "-k", "nt-int16"]) == 0
        assert cli.main(["parity", "check", path, "--backend", "cpu"]) == 0
        Path(path).write_bytes(b"nonsense")
        assert cli.main(["parity", "check", path, "--backend", "cpu"]) == 2

    @pytest.mark.parametrize("wrong", [["--op", "nope"], ["-k", "no such case"], ["--backend", "nope"]])
    def test_a_request_without_sense_gives_exit_code_2(self, wrong, capsys):
        assert cli.main(["parity", *wrong]) == 2
        assert "unikernels parity:" in capsys.readouterr().err

    def test_doctor(self, capsys):
        assert cli.main(["doctor"]) == 0
        text = capsys.readouterr().out
        assert all(word in text for word in ("cpu", "reference", "gemm", "UNIKERNELS_BACKEND"))
        assert "portable" in text
        assert "threads" in text

    def test_doctor_counts_what_a_backend_refuses(self, capsys, monkeypatch):
        def refuse_fp4(self, operation, problem):
            return "it reads no fp4" if operation == "gemm" and "fp4" in (problem.a.kind, problem.b.kind) else None

        cpu = type(_registry.backend("cpu"))
        monkeypatch.setattr(cpu, "why_not", refuse_fp4)
        answers = support.answers("cpu")
        refused = {line for line, reason in answers.items() if reason is not None}
        assert refused == {line for line, _, _ in support.lines() if line[0] == "gemm" and "fp4" in line[1]}
        assert len(refused) < len([line for line in answers if line[0] == "gemm"])
        assert cli.main(["doctor"]) == 0
        text = capsys.readouterr().out
        assert "it reads no fp4" in text
        assert f"{len([line for line in answers if line[0] == 'gemm']) - len(refused)} of " in text

    def test_asking_what_is_supported_computes_nothing(self, monkeypatch):
        def explode(self, problem):
            raise AssertionError("a kernel ran")

        cpu = type(_registry.backend("cpu"))
        monkeypatch.setattr(cpu, "why_not", lambda self, operation, problem: None)
        monkeypatch.setattr(cpu, "gemm", explode)
        assert all(reason is None for line, reason in support.answers("cpu").items() if line[0] == "gemm")

    def test_an_operation_a_backend_lacks_is_one_line_and_says_why(self, monkeypatch, tmp_path, capsys):
        monkeypatch.setattr(type(_registry.backend("cpu")), "hc_prenorm_gemm", Backend.hc_prenorm_gemm)
        monkeypatch.setattr(_registry, "_bound", {})  # methods bound by earlier calls
        results = list(parity.run(parity.select(["hc_prenorm_gemm", "mega_mhc"]), ["cpu"]))
        assert sum(result.status == "unsupported" for result in results) > 1
        rows = report.table(results).columns[0]._cells
        assert rows.count("hc_prenorm_gemm") == 1
        assert rows.count("mega_mhc") == len({r.case.labels["dtype"] for r in results if r.operation == "mega_mhc"})
        report.write_html(tmp_path / "page.html", results)
        assert (tmp_path / "page.html").read_text().count("<td>hc_prenorm_gemm</td>") == 1
        ((operation, backend, reason),) = report.refusals(results)
        assert (operation, backend) == ("hc_prenorm_gemm", "cpu")
        assert cli.main(["parity", "--backend", "cpu", "--op", "hc_prenorm_gemm"]) == 0
        assert " ".join(reason.split()) in " ".join(capsys.readouterr().out.split())

    def test_what_a_fallback_computes_is_not_said_of_the_backend(self, monkeypatch, request, tmp_path):
        request.addfinalizer(environment.forget)
        monkeypatch.setattr(type(_registry.backend("cpu")), "hc_prenorm_gemm", Backend.hc_prenorm_gemm)
        monkeypatch.setattr(_registry, "_bound", {})  # methods bound by earlier calls
        monkeypatch.setenv("UNIKERNELS_FALLBACK", "reference")
        environment.forget()
        cases = parity.select(["hc_prenorm_gemm"])[:1]
        assert [result.status for result in parity.run(cases, ["cpu"])] == ["unsupported"]
        assert parity.record(tmp_path / "bundle.safetensors", cases, "cpu") == 0
        ((_, _, reason),) = bench.measure(cases, "cpu")
        assert "does not implement" in reason
        with pytest.warns(RuntimeWarning, match="UNIKERNELS_FALLBACK computes it on 'reference'"):
            cases[0][1].run(unikernels, cases[0][1].tensors())

    def test_bench(self, tmp_path):
        lines = tmp_path / "bench.jsonl"
        arguments = ["bench", "--op", "gemm", "--level", "smoke", "-k", "bf16-nt-m=33", "--json", str(lines)]
        assert cli.main(arguments) == 0
        (line,) = map(json.loads, lines.read_text().splitlines())
        assert line["kind"] == "measured"
        assert line["min_s"] > 0

    def test_console_script_and_module(self):
        script = shutil.which("unikernels", path=str(Path(sys.executable).parent))
        assert script
        for command in ([script], [sys.executable, "-m", "unikernels"]):
            done = subprocess.run([*command, "--help"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "doctor" in done.stdout
