"""Evidence about the Ascend GEMMs, for docs/ascend.md: what was lowered, simulated and predicted. Used by generate.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import unikernels
from unikernels import _registry, parity
from unikernels.backends.ascend.predicted import predictions
from unikernels.backends.ascend.runtime.simulated import recorded_reports, timing_only
from unikernels.backends.ascend.simulator import Report
from unikernels.operations import Case
from unikernels.parity import Result

BACKEND = "ascend"


@dataclass
class Row:
    """Cases of one operation with the same operand types and layout, or runs of one program on the same form of input.

    Attributes:
        kernels: distinct kernels that were lowered, compiled and run, hazard checks on.
        exact, close, refused, failed: numbers of cases: every bit as the float64 reference rounded once; within tolerance;
            not supported, with a reason; anything else, hazards included.
        predicted: what the model says about one problem; empty where nothing ran.
        size: of that problem.
    """

    kernels: set[str] = field(default_factory=set)
    exact: int = 0
    close: int = 0
    refused: int = 0
    failed: int = 0
    predicted: str = ""
    size: str = ""

    def note_kernels(self, reports: Sequence[Report]) -> None:
        """Take down the kernels of a run."""
        self.kernels |= {str(recording.library) for report in reports for recording in report.recordings}

    def predict(self, work: float, unit: str, size: str, reports: Sequence[Report]) -> None:
        """Take down the predicted rate of all kernels of a run, and the busiest pipe or memory of its longest.

        Args:
            work: of the run, so that work per microsecond is in `unit`.
        """
        longest = max(reports, key=lambda report: report.time_us)
        rate = work / sum(report.time_us for report in reports)
        number = f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
        use = longest.utilisation[longest.critical_pipe]
        self.predicted, self.size = f"{number} {unit}, {longest.critical_pipe} {use:.0%}", size

    def as_json(self) -> dict[str, int | str]:
        """Return plain data; kernels become their number."""
        return {**vars(self), "kernels": len(self.kernels)}


class Gemms:
    """Rows of the operations, by operation, operand types and layout."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._flops: dict[str, float] = {}  # of the problem that a row's prediction is about

    def add(self, result: Result, reports: list[Report]) -> None:
        """Count a case and the kernels that it ran; the largest is the one that a row predicts."""
        key = case_key(result.operation, result.case)
        row = self.rows.setdefault(key, Row())
        row.note_kernels(reports)
        if result.status == "unsupported":
            row.refused += 1
        elif result.status != "passed":
            row.failed += 1
        elif all(one.num_bit_mismatches == 0 for one in result.outputs.values()):
            row.exact += 1
        else:
            row.close += 1
        if reports and result.status == "passed" and result.case.cost.flops > self._flops.get(key, 0):
            self._predict(key, result.case, reports)

    def add_large_problems(self) -> None:
        """Predict the largest case of a benchmark's size instead, for each row that has one."""
        largest: dict[str, tuple[str, Case]] = {}
        for operation, case in parity.select(levels=("bench", "large")):
            key = case_key(operation.name, case)
            if key in self.rows and self.rows[key].kernels:
                best = largest.get(key)
                if best is None or case.cost.flops > best[1].cost.flops:
                    largest[key] = operation.name, case
        for key, (_, case) in largest.items():
            tensors = case.tensors()
            with _registry.use_only(BACKEND), timing_only(), recorded_reports() as reports:
                case.run(unikernels, tensors)
            self._predict(key, case, reports)

    def _predict(self, key: str, case: Case, reports: list[Report]) -> None:
        self._flops[key] = case.cost.flops
        self.rows[key].predict(case.cost.flops / 1e6, "TFLOPS", case.labels["shape"], reports)


def case_key(operation: str, case: Case) -> str:
    """Return the row a case belongs to."""
    return " | ".join((operation, case.labels["dtype"], case.labels["layout"]))


def recorded(results: Iterator[Result]) -> Iterator[tuple[Result, list[Report]]]:
    """Yield results with the reports of the kernels that ran for each."""
    with recorded_reports() as reports:
        for result in results:
            yield result, list(reports)
            reports.clear()


def table(names: Sequence[str], rows: dict[str, dict]) -> str:
    """Return a table of docs/ascend.md; `names` head the columns that the keys of `rows` fill."""
    lines = [
        f"| {' | '.join(names)} | kernels lowered | simulated: exact / close / refused | hazards | predicted | size |",
        "|---" * (len(names) + 5) + "|",
    ]
    for key, row in rows.items():
        counts = f"{row['exact']} / {row['close']} / {row['refused']}"
        hazards = f"**{row['failed']} failed**" if row["failed"] else "none" if row["kernels"] else "-"
        cells = (row["kernels"], counts, hazards, row["predicted"], row["size"])
        lines.append(f"| `{key.replace(' | ', '` | ', 1)} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def published() -> list[dict]:
    """Return predicted against published rates, row by row."""
    return [
        {
            "operation": one.operation,
            "row": one.row,
            "time_us": round(one.time_us, 1),
            "tflops": round(one.tflops),
            "published_tflops": round(one.published_tflops),
            "ratio": round(one.ratio, 2),
            "critical_pipe": one.critical_pipe,
        }
        for one in predictions()
    ]


def published_table(rows: list[dict]) -> str:
    """Return the comparison with published rates."""
    lines = [
        "| operation | published row | predicted us | predicted TFLOPS | published TFLOPS | ratio | limited by |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one['operation']}` | {one['row']} | {one['time_us']} | {one['tflops']} | {one['published_tflops']} "
        f"| {one['ratio']:.2f} | {one['critical_pipe']} |"
        for one in rows
    ]
    return "\n".join(lines)
