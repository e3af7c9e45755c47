"""Predictions against published times, and against what the documentation says about them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from unikernels.backends.ascend.simulator.published import (
    FITTED_ROWS,
    TILINGS,
    compare,
    dense_rows,
    mean_error,
    time_gemm,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulator_timing.md"


def documented():
    """(kind, m, n, k) -> (predicted, published, fitted) of the table in the documentation."""
    rows = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 9 and cells[1].isdigit():
            rows[(cells[0], *map(int, cells[1:4]))] = (float(cells[5]), float(cells[6]), cells[8] == "yes")
    return rows


def test_documentation_lists_every_dense_row_and_says_which_were_fitted():
    rows = documented()
    assert {(r.kind, r.m, r.n, r.k): (r.latency_us, r.fitted) for r in dense_rows()} == {
        key: (published, fitted) for key, (_, published, fitted) in rows.items()
    }
    assert {key for key, row in rows.items() if row[2]} == set(FITTED_ROWS)
    # One more row of the table, hc_prenorm, sets hbm_bytes.
    assert len(FITTED_ROWS) + 1 <= 10


def test_mean_error_counts_too_fast_and_too_slow_alike():
    assert mean_error([(2.0, 1.0), (1.0, 2.0)]) == pytest.approx(1.0)
    assert mean_error([(3.0, 3.0)]) == 0


@pytest.mark.parametrize("row", FITTED_ROWS[:1] + (("fp8", 128, 4096, 7168),), ids=str)
def test_documented_prediction_of_a_short_row(row):
    kind, m, n, k = row
    predicted = documented()[row][0]
    best = min(
        (time_gemm(kind, m, n, k, t).time_us for t in TILINGS[kind] if t.bn in (64, 128) and t.bm <= m), default=0
    )
    assert best == pytest.approx(predicted, rel=0.01)


@pytest.mark.slow
def test_unused_rows_are_predicted_as_documented():
    rows = documented()
    unused = []
    for row, _, predicted in compare(dense_rows()):
        assert predicted == pytest.approx(rows[row.kind, row.m, row.n, row.k][0], rel=0.01)
        assert predicted == pytest.approx(row.latency_us, rel=0.2)
        if not row.fitted:
            unused.append((predicted, row.latency_us))
    assert mean_error(unused) < 0.06


@pytest.mark.slow
def test_a_large_problem_is_timed_within_a_minute():
    start = time.perf_counter()
    report = time_gemm("bf16", 4096, 7168, 16384, TILINGS["bf16"][0])
    assert report.time_us > 2 * 4096 * 7168 * 16384 / 433e6
    assert time.perf_counter() - start < 60
