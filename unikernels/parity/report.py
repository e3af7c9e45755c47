"""Showing parity results: terminal table, JSON, and an HTML page with plots. Needs the `report` extra for the latter."""

from __future__ import annotations

import base64
import collections
import io
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.table import Table

from ..errors import UnikernelsError
from .compare import ULP_BUCKETS
from .runner import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = {"passed": "green", "failed": "bold red", "error": "bold red", "unsupported": "yellow"}


def table(results: Sequence[Result], title: str = "Parity with the reference") -> Table:
    """Return one row per operation, dtype and backend, or one per operation a backend lacks; about 105 columns wide."""
    caption = "calc_diff, max abs and max rel are the worst of all cases of the row"
    shown = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("operation", "dtype", "backend"):
        shown.add_column(column, no_wrap=True)
    for column in ("passed", "calc_diff", "tolerance", "max abs", "max rel", "bit-equal"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    lacking = missing(results)
    for (operation, dtype, backend), group in grouped(results).items():
        if (operation, backend) in lacking:
            continue
        outputs = [one for result in group for one in result.outputs.values()]
        elements = sum(one.num_elements for one in outputs)
        equal = elements - sum(one.num_bit_mismatches for one in outputs)
        verdict = worst_status(group)
        shown.add_row(
            operation,
            dtype,
            backend,
            f"{sum(result.status == 'passed' for result in group)}/{len(group)}",
            f"{max((one.calc_diff for one in outputs), default=0.0):.1e}",
            f"{max((one.tolerance for one in outputs), default=0.0):.0e}",
            f"{max((one.max_abs for one in outputs), default=0.0):.1e}",
            f"{max((one.max_rel for one in outputs), default=0.0):.1e}",
            f"{100 * equal / elements:.1f} %" if elements else "-",
            f"[{_STYLES[verdict]}]{verdict}[/]",
        )
    for (operation, backend), refused in lacking.items():
        blank = ["-"] * 5
        shown.add_row(
            operation, "all", backend, f"0/{len(refused)}", *blank, f"[{_STYLES['unsupported']}]unsupported[/]"
        )
    return shown


def missing(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Return the results of each (operation, backend) that refused every case with the same words."""
    groups: dict[tuple[str, str], list[Result]] = collections.defaultdict(list)
    for result in results:
        groups[result.operation, result.backend].append(result)
    return {
        key: group
        for key, group in groups.items()
        if all(result.status == "unsupported" for result in group) and len({result.message for result in group}) == 1
    }


def refusals(results: Sequence[Result]) -> dict[tuple[str, str, str], int]:
    """Count the unsupported results of each (operation, backend, reason)."""
    return collections.Counter(
        (result.operation, result.backend, result.message) for result in results if result.status == "unsupported"
    )


def grouped(results: Sequence[Result]) -> dict[tuple[str, str, str], list[Result]]:
    """Group results by (operation, dtype, backend), in order of appearance."""
    groups: dict[tuple[str, str, str], list[Result]] = collections.defaultdict(list)
    for result in results:
        groups[result.operation, result.case.labels["dtype"], result.backend].append(result)
    return groups


def worst_status(results: Sequence[Result]) -> str:
    """Return the status that matters most among `results`."""
    statuses = {result.status for result in results}
    return next(status for status in ("error", "failed", "unsupported", "passed") if status in statuses)


def as_json(results: Sequence[Result], **about: Any) -> str:
    """Return everything as JSON text."""
    header = {"torch": torch.__version__, "machine": f"{platform.system()} {platform.machine()}", **about}
    return json.dumps({**header, "results": [result.as_json() for result in results]}, indent=1)


def figure(results: Sequence[Result]) -> Figure:
    """Draw each compared case's calc_diff against its tolerance, and the ULP histogram per operation.

    Raises:
        UnikernelsError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnikernelsError(
            "drawing a report needs matplotlib. Install it with: pip install 'unikernels[report]'."
        ) from error
    compared = [result for result in results if result.outputs]
    operations = list(dict.fromkeys(result.operation for result in compared))
    drawn = Figure(figsize=(12, 2.2 + 0.32 * max(len(operations), 4)), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for backend in dict.fromkeys(result.backend for result in compared):
        points = [result for result in compared if result.backend == backend and result.worst]
        rows = [operations.index(result.operation) for result in points]
        left.scatter(
            [max(result.worst.calc_diff, 1e-17) for result in points if result.worst], rows, s=14, label=backend
        )
    tolerances = {result.operation: result.worst.tolerance for result in compared if result.worst}
    for operation, tolerance in tolerances.items():
        if tolerance:
            row = operations.index(operation)
            left.plot([tolerance, tolerance], [row - 0.4, row + 0.4], color="black", linewidth=1)
    left.set(
        xscale="log", xlabel="calc_diff per case (1e-17 = equal); bar = tolerance", title="Distance from the reference"
    )
    left.set_yticks(range(len(operations)), operations)
    left.invert_yaxis()
    left.legend(loc="lower left", fontsize="small")
    names = [*(f"≤ {bucket}" for bucket in ULP_BUCKETS), f"> {ULP_BUCKETS[-1]}"]
    offset = [0.0] * len(operations)
    for bucket, name in enumerate(names):
        shares = []
        for operation in operations:
            outputs = [one for r in compared if r.operation == operation for one in r.outputs.values()]
            total = sum(sum(one.ulp_histogram) for one in outputs) or 1
            shares.append(100 * sum(one.ulp_histogram[bucket] for one in outputs) / total)
        right.barh(range(len(operations)), shares, left=offset, label=name)
        offset = [start + share for start, share in zip(offset, shares, strict=True)]
    right.set(xlabel="% of output elements", title="Distance in units of the last place")
    right.set_yticks(range(len(operations)), [])
    right.invert_yaxis()
    right.legend(title="ULP", fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>unikernels parity</title><style>
 body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; color: #222; padding: 0 1rem }
 table { border-collapse: collapse; width: 100%; margin: 1rem 0 } th, td { padding: .25rem .6rem; text-align: left }
 th { border-bottom: 2px solid #888; position: sticky; top: 0; background: #fff } td { border-bottom: 1px solid #e4e4e4 }
 td.n { text-align: right; font-variant-numeric: tabular-nums } img { max-width: 100% }
 .passed { color: #0a7a2f } .failed, .error { color: #b00020; font-weight: 600 } .unsupported { color: #946200 }
</style></head><body>
<h1>Parity of {{ backends|join(', ') }} with the {{ yardstick }}</h1>
<p>{{ results|length }} comparisons: {% for status, count in counts.items() %}<span class="{{ status }}">{{ count }} {{ status }}</span>
{% endfor %}. torch {{ torch_version }}, {{ machine }}.</p>
<img alt="Distances per operation" src="data:image/png;base64,{{ picture }}">
<table><thead><tr><th>operation</th><th>case</th><th>backend</th><th>output</th><th>calc_diff</th><th>tolerance</th>
<th>max abs</th><th>max rel</th><th>bits differ</th><th>ULP {{ buckets }}</th><th>verdict</th></tr></thead><tbody>
{% for r in results if (r.operation, r.backend) not in lacking %}{% if r.outputs %}{% for name, one in r.outputs.items() %}
<tr><td>{{ r.operation }}</td><td>{{ r.case.id }}</td><td>{{ r.backend }}</td><td>{{ name }}</td>
<td class="n">{{ '%.1e' % one.calc_diff }}</td><td class="n">{{ '%.0e' % one.tolerance }}</td>
<td class="n">{{ '%.1e' % one.max_abs }}</td><td class="n">{{ '%.1e' % one.max_rel }}</td>
<td class="n">{{ one.num_bit_mismatches }} / {{ one.num_elements }}</td><td class="n">{{ one.ulp_histogram|join(' ') }}</td>
<td class="{{ 'passed' if one.passed else 'failed' }}">{{ 'passed' if one.passed else 'failed' }}</td></tr>
{% endfor %}{% else %}
<tr><td>{{ r.operation }}</td><td>{{ r.case.id }}</td><td>{{ r.backend }}</td><td colspan="7">{{ r.message }}</td>
<td class="{{ r.status }}">{{ r.status }}</td></tr>
{% endif %}{% endfor %}{% for (operation, backend), refused in lacking.items() %}
<tr><td>{{ operation }}</td><td>all {{ refused|length }} cases</td><td>{{ backend }}</td><td colspan="7">{{ refused[0].message }}</td>
<td class="unsupported">unsupported</td></tr>
{% endfor %}</tbody></table></body></html>
"""


def write_html(path: Path, results: Sequence[Result], yardstick: str = "reference") -> None:
    """Write a self-contained page: totals, plots and every comparison.

    Raises:
        UnikernelsError: matplotlib or jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise UnikernelsError(
            "an HTML report needs jinja2. Install it with: pip install 'unikernels[report]'."
        ) from error
    picture = io.BytesIO()
    figure(results).savefig(picture, format="png", dpi=110)
    page = jinja2.Environment(autoescape=True).from_string(_PAGE)
    text = page.render(
        results=results,
        lacking=missing(results),
        backends=list(dict.fromkeys(result.backend for result in results)),
        yardstick=yardstick,
        counts=collections.Counter(result.status for result in results),
        picture=base64.b64encode(picture.getvalue()).decode(),
        buckets=" ".join(f"≤{bucket}" for bucket in ULP_BUCKETS) + " more",
        torch_version=torch.__version__,
        machine=f"{platform.system()} {platform.machine()}",
    )
    path.write_text(text, encoding="utf-8")
