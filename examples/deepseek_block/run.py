"""Prefill some prompts, decode some tokens, and compare every stage of the block with its float32 version.

Run it with ``python examples/deepseek_block/run.py``; UNIKERNELS_BACKEND chooses the backend. A backend that lacks some of
the operations needs another one to compute those:

    UNIKERNELS_BACKEND=ascend UNIKERNELS_FALLBACK=cpu python examples/deepseek_block/run.py

Exits with 1 if any stage is further from the float32 version than its limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from layers import Config, Tokens, random_weights
from model import DecoderBlock
from reference import ReferenceBlock
from rich.console import Console
from rich.table import Table

from unikernels.testing import calc_diff

#: One token, less and more than a page, longer than the indexer lets through.
PROMPT_LENGTHS = (96, 65, 1, 110, 33, 80, 17, 64)
#: `calc_diff` that rounding one operand of a product to E4M3 costs: half the mean square of a relative error of 2.6 %.
ROUNDING = 3.5e-4
#: How many such roundings a stage has behind it, its own and those of what it reads; the first was computed from exact
#: inputs without FP8, the weight of an expert depends on few of them weakly.
NUM_ROUNDINGS = {
    "query": 4,  # two projections
    "latent cache": 2,  # one projection
    "index logits": 8,  # two projections and a cast on the side of queries, a projection and a cast on that of keys
    "attention output": 8,  # query and latents in the probabilities, latents again as values, the output projection
    "moe mixes": 1,
    "expert weights": 0.25,
    "moe output": 8,  # gate and up (multiplied with each other), down
    "streams": 4,  # half of it comes from the exact embeddings
}
#: Errors of a few tokens scatter around their mean: twice the mean is the limit.
LIMITS = {"attention mixes": 1e-8} | {stage: 2 * count * ROUNDING for stage, count in NUM_ROUNDINGS.items()}
#: Smallest share of choices that float32 would have made too; near ties may fall either way.
AGREEMENT = {"chosen tokens": 0.9, "chosen experts": 0.9}


@dataclass(frozen=True)
class Check:
    """One stage of one step against its limit."""

    stage: str
    value: float
    limit: float
    is_agreement: bool

    @property
    def passed(self) -> bool:
        """Whether the stage keeps its limit; NaN does not."""
        return self.value >= self.limit if self.is_agreement else self.value <= self.limit


def agreement(chosen: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the share of `expected` choices, row by row in any order, that `chosen` has too (-1 is no choice)."""
    is_choice = expected >= 0
    found = (expected.unsqueeze(2) == chosen.unsqueeze(1)).any(2)
    return float((found & is_choice).sum() / is_choice.sum())


def compare(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[Check]:
    """Check every stage of a step, in the order of computation."""
    checks = []
    for stage, one in actual.items():
        if stage in AGREEMENT:
            checks.append(Check(stage, agreement(one, expected[stage]), AGREEMENT[stage], True))
        else:
            checks.append(Check(stage, float(calc_diff(one, expected[stage])), LIMITS[stage], False))
    return checks


def steps(prompt_lengths: Sequence[int], num_decoded: int, device: torch.device) -> list[tuple[str, Tokens]]:
    """Return the tokens of the prefill step and of each decoding step."""
    lengths = torch.tensor(list(prompt_lengths), device=device)
    sequence = torch.arange(len(prompt_lengths), device=device)
    position = torch.cat([torch.arange(length, device=device) for length in prompt_lengths])
    prefill = Tokens(sequence.repeat_interleave(lengths), position)
    return [("prefill", prefill)] + [(f"decode {i + 1}", Tokens(sequence, lengths + i)) for i in range(num_decoded)]


def run(
    seed: int, num_decoded: int, device: torch.device, prompt_lengths: Sequence[int] = PROMPT_LENGTHS
) -> dict[str, list[Check]]:
    """Run all steps through the block and its float32 version; returns the checks of each step."""
    config = Config()
    weights = random_weights(config, seed, device)
    block = DecoderBlock(weights, config, len(prompt_lengths))
    reference = ReferenceBlock(weights, config, len(prompt_lengths))
    generator = torch.Generator().manual_seed(seed + 1)
    results = {}
    for name, tokens in steps(prompt_lengths, num_decoded, device):
        embeddings = torch.randn(len(tokens.position), config.hidden, generator=generator).bfloat16().to(device)
        actual = block.step(embeddings, tokens, is_prefill=name == "prefill")
        results[name] = compare(actual, reference.step(embeddings, tokens, choices=actual))
    return results


def table(results: dict[str, list[Check]], title: str) -> Table:
    """Show one row per stage and one column per step, the worst against the limit."""
    shown = Table(title=title, caption="calc_diff from float32 (agreement for choices); limits as in LIMITS, AGREEMENT")
    for column in ("stage", *results, "limit", "verdict"):
        shown.add_column(column, justify="left" if column in ("stage", "verdict") else "right", no_wrap=True)
    for row in zip(*results.values(), strict=True):
        values = [f"{check.value:.1%}" if check.is_agreement else f"{check.value:.1e}" for check in row]
        limit = f">= {row[0].limit:.0%}" if row[0].is_agreement else f"<= {row[0].limit:.0e}"
        verdict = "[green]ok[/]" if all(check.passed for check in row) else "[bold red]FAILED[/]"
        shown.add_row(row[0].stage, *values, limit, verdict)
    return shown


def main(arguments: list[str] | None = None) -> int:
    """Run the example; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and inputs (default: 0)")
    parser.add_argument("--steps", type=int, default=3, help="tokens to decode per sequence (default: 3)")
    parser.add_argument(
        "--device", type=torch.device, default=torch.device("cpu"), help="where tensors live (default: cpu)"
    )
    options = parser.parse_args(arguments)
    # Layers this small gain nothing from threads, and lose much where other programs want the same cores.
    torch.set_num_threads(1)
    start = time.perf_counter()
    results = run(options.seed, options.steps, options.device)
    backend = os.environ.get("UNIKERNELS_BACKEND", "auto")
    Console(width=110).print(table(results, f"DeepSeek-style decoder block, backend {backend}, against float32 torch"))
    failed = [f"{step}: {check.stage}" for step, checks in results.items() for check in checks if not check.passed]
    verdict = f"over the limit: {', '.join(failed)}" if failed else "all stages keep their limits"
    print(f"{len(results)} steps in {time.perf_counter() - start:.1f} s; {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
