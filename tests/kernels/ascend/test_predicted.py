"""Predicted against published performance: the library's own kernels, timed by the model; all rows are slow."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels import cli
from unikernels.backends.ascend.predicted import predictions
from unikernels.backends.ascend.runtime.simulated import recorded_reports, timing_only

#: What the documentation promises: share of the published rate on every row, and on the largest shape.
EVERY_ROW, LARGEST = 0.9, 0.97


def test_a_short_row_is_near_its_published_rate(ascend):
    (found,) = predictions("fp8xfp8 m=128 n=576 k=7168")
    assert found.ratio >= EVERY_ROW
    assert found.tflops == pytest.approx(2 * 128 * 576 * 7168 / found.time_us / 1e6)


@pytest.mark.slow
def test_every_row_keeps_its_share(ascend):
    for found in predictions():
        least = LARGEST if "m=4096 n=7168 k=16384" in found.row else EVERY_ROW
        assert found.ratio >= least, found


def test_timing_moves_no_data(ascend, small_integers):
    a, b, d = small_integers(33, 200).bfloat16(), small_integers(65, 200).bfloat16(), torch.full((33, 65), 7.0)
    with timing_only(), recorded_reports() as reports:
        uk.bf16_gemm_nt(a, b, d)
    assert (d == 7).all()
    assert reports[0].time_us > 0
    uk.bf16_gemm_nt(a, b, d)
    assert torch.equal(d, a.float() @ b.float().T)


def test_command_prints_ratios_and_refuses_what_makes_no_sense(ascend, capsys):
    assert cli.main(["bench", "--backend", "ascend", "--predicted", "-k", "m=128 n=576"]) == 0
    assert "Predicted for 'ascend'" in capsys.readouterr().out
    for arguments, reason in (
        (["--backend", "cpu"], "no model that predicts times"),
        (["--backend", "ascend", "-k", "no such row"], "no published row"),
        (["--backend", "ascend", "--op", "gemm"], "choose among them with -k"),
    ):
        assert cli.main(["bench", "--predicted", *arguments]) == 2
        assert reason in " ".join(capsys.readouterr().err.split())
    assert cli.main(["bench", "--backend", "ascend", "-k", "bf16-nt"]) == 2
    assert "runs in a simulator here" in " ".join(capsys.readouterr().err.split())


def test_shared_memory_passes_no_more_than_its_rate(ascend):
    """Copies of all pipes of all cores at once: the model's L2 may be full, never more than full."""
    a, b = (torch.zeros(8192, columns, dtype=torch.bfloat16) for columns in (1024, 2048))
    sizes = torch.full((16,), 512, dtype=torch.int32)
    d = torch.zeros(16, 1024, 2048)
    with timing_only(), recorded_reports() as reports:
        uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, sizes.tolist(), sizes, c=d)
    assert 0.9 < reports[0].utilisation["L2"] <= 1
