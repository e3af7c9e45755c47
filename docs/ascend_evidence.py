"""Evidence about the Ascend kernels, for docs/ascend.md: what was lowered, simulated and predicted. Used by generate.py."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Cases of one operation with the same operand types and layout.

    Attributes:
        kernels: distinct kernels that were lowered, compiled and run, hazard checks on.
        exact, close, refused, failed: numbers of cases: every bit as the float64 reference rounded once; within tolerance;
            not supported, with a reason; anything else, hazards included.
        predicted: what the model says about the largest benchmark case; empty where there is none.
    """

    kernels: set[str] = field(default_factory=set)
    exact: int = 0
    close: int = 0
    refused: int = 0
    failed: int = 0
    predicted: str = ""

    def add(self, result: Result, reports: list[Report]) -> None:
        """Count a case and the kernels that it ran."""
        self.kernels |= {str(recording.library) for report in reports for recording in report.recordings}
        if result.status == "unsupported":
            self.refused += 1
        elif result.status != "passed":
            self.failed += 1
        elif all(one.num_bit_mismatches == 0 for one in result.outputs.values()):
            self.exact += 1
        else:
            self.close += 1

    def as_json(self) -> dict[str, int | str]:
        """Return plain data; kernels become their number."""
        return {**vars(self), "kernels": len(self.kernels)}


def case_key(operation: str, case: Case) -> str:
    """Return the row a case belongs to."""
    return " | ".join((operation, case.labels["dtype"], case.labels["layout"]))


def recorded(results: Iterator[Result]) -> Iterator[tuple[Result, list[Report]]]:
    """Yield results with the reports of the kernels that ran for each."""
    with recorded_reports() as reports:
        for result in results:
            yield result, list(reports)
            reports.clear()


def add_predictions(rows: dict[str, Row]) -> None:
    """Fill in what the model predicts for the largest benchmark case of each row that has one."""
    largest: dict[str, tuple[str, Case]] = {}
    for operation, case in parity.select(levels=("bench",)):
        key = case_key(operation.name, case)
        if key in rows and rows[key].kernels:
            best = largest.get(key)
            if best is None or case.cost.flops > best[1].cost.flops:
                largest[key] = operation.name, case
    for key, (_, case) in largest.items():
        tensors = case.tensors()
        with _registry.use_only(BACKEND), timing_only(), recorded_reports() as reports:
            case.run(unikernels, tensors)
        time_us = sum(report.time_us for report in reports)
        main = max(reports, key=lambda report: report.time_us)
        use = main.utilisation[main.critical_pipe]
        rows[key].predicted = f"{case.cost.flops / time_us / 1e6:.0f} TFLOPS, {main.critical_pipe} {use:.0%}"


def kernel_table(rows: dict[str, dict]) -> str:
    """Return the table of docs/ascend.md."""
    lines = [
        "| operation | operands | layout | kernels lowered | simulated: exact / close / refused | hazards | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, row in rows.items():
        counts = f"{row['exact']} / {row['close']} / {row['refused']}"
        hazards = f"**{row['failed']} failed**" if row["failed"] else "none" if row["kernels"] else "-"
        lines.append(
            f"| `{key.replace(' | ', '` | ', 1)} | {row['kernels']} | {counts} | {hazards} | {row['predicted']} |"
        )
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
