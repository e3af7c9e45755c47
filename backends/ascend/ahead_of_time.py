"""Work before the first call: choosing tiles by predicted time (`tune`), building kernels (`warmup`); both in processes.

Processes share results through the disk cache, whose files appear complete or not at all: running this twice or at the
same time is safe.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import unikernels
from unikernels.backend import Shape

from .kernels import epilogues
from .kernels.gemm_tiles import candidates, choose, cost
from .kernels.gemm_tuned import TABLE, Tuned, TunedKey, load, save
from .programs.gemm_variant import ELEMENT_BITS, Element, Tiles
from .runtime.executor import NUM_CORES, chosen_device, collected_kernels, executor_on
from .runtime.kernel import Kernel
from .sample_calls import usual_calls

if TYPE_CHECKING:
    from unikernels.backend import Advance

#: What shapes from the command line are tuned for: K-major operands, bfloat16 output.
_ELEMENTS: tuple[Element, ...] = ("bf16", "fp8", "fp4")
_TRIED = 4  # of the cheapest candidates by the heuristic's model


def tune(shapes: Sequence[Shape], file: Path | None, advance: Advance) -> str:
    """Write the tiles that are predicted to be fastest into `file` (default: the committed table).

    Runs the timing model on the candidates that the heuristic finds cheapest; the same input gives the same file. Rows that
    others write meanwhile are kept.

    Raises:
        ValueError: there is nothing to tune, or `file` cannot be written.
    """
    file = file or TABLE
    if not os.access(file.parent, os.W_OK):
        raise ValueError(f"nothing can be written to {file.absolute().parent}. Name a table elsewhere with --file.")
    table = load(file)
    keys = sorted({key.in_class() for key in _keys(shapes)} if shapes else table)
    if not keys:
        raise ValueError(f"{file} names no shapes to tune again. Give some with --shapes M,N,K.")
    jobs = [(key, tiles) for key in keys for tiles in _candidates(key)]
    cycles = dict(zip(jobs, _in_processes(_predicted_cycles, jobs, os.cpu_count() or 1, advance), strict=True))
    table = load(file)
    for key in keys:
        best = min(_candidates(key), key=lambda tiles: (cycles[key, tiles], tiles))
        table[key] = Tuned(best, cycles[key, best])
    save(file, table)
    return f"{len(keys)} shapes tuned by predicted time, {len(jobs)} kernels tried; wrote {file}"


def warmup(shapes: Sequence[Shape], num_groups: int, num_processes: int, advance: Advance) -> str:
    """Build the kernels of the tuned table, or those that the usual calls with `shapes` need.

    Args:
        num_groups: of the grouped GEMMs to build for, each group having these sizes; 0 for dense GEMMs.
    Raises:
        ValueError: groups without shapes.
    """
    if num_groups and not shapes:
        raise ValueError(f"{num_groups} groups of which sizes? Give some with --shapes M,N,K.")
    kernels = _needed(shapes, num_groups) if shapes else _tuned()
    _in_processes(_build, [(kernel,) for kernel in kernels], num_processes, advance)
    return f"{len(kernels)} kernels are built"


def _tuned() -> list[Kernel]:
    return list(dict.fromkeys(_kernel(key, tuned.tiles) for key, tuned in sorted(load(TABLE).items())))


def _needed(shapes: Sequence[Shape], num_groups: int) -> list[Kernel]:
    """Return the kernels that the usual calls would run, those for their scales included."""
    with unikernels.use_backend("ascend"), chosen_device(), collected_kernels() as kernels:
        for m, n, k in shapes:
            for call in usual_calls(m, n, k, num_groups):
                call()
    return list(kernels)


def _keys(shapes: Sequence[Shape]) -> Iterator[TunedKey]:
    for m, n, k in shapes:
        for element in _ELEMENTS:
            if element != "fp4" or k % 2 == 0:
                yield TunedKey(element, element != "bf16", True, True, "bfloat16", NUM_CORES, m, n, k)


def _candidates(key: TunedKey) -> list[Tiles]:
    """The heuristic's choice, the cheapest others that fit, and the cheapest for every depth along K."""
    form, sizes = key.form, key.sizes
    usable = sorted(candidates(form), key=lambda one: (cost(form, sizes, one), one))
    of_depth = {one.k: one for one in reversed(usable)}
    return list(dict.fromkeys([choose(form, sizes), *usable[:_TRIED], *of_depth.values()]))


def _kernel(key: TunedKey, tiles: Tiles) -> Kernel:
    return Kernel("gemm", key.form.with_tiles(tiles))


def _in_processes(
    work: Callable[..., int], jobs: Sequence[tuple[object, ...]], num_processes: int, advance: Advance
) -> list[int]:
    """Return ``work(*job)`` of every job, in order; the first failure ends all."""
    advance(0, len(jobs))
    context = multiprocessing.get_context("spawn")  # TileLang and torch hold threads, which a fork would lose
    with ProcessPoolExecutor(min(num_processes, len(jobs)), mp_context=context) as pool:
        futures = [pool.submit(work, *job) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                advance(done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _build(kernel: Kernel) -> int:
    executor_on(chosen_device()).build(kernel)
    return 0


def _predicted_cycles(key: TunedKey, tiles: Tiles) -> int:
    """Return the predicted cycles of a problem; no data moves and none is read."""
    from .runtime.simulated import prepared
    from .simulator import simulate

    dtype = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "fp4": torch.uint8}[key.element]
    packed = 8 // min(ELEMENT_BITS[key.element], 8)
    a, b = (torch.empty(rows, key.k // packed, dtype=dtype) for rows in (key.m, key.n))
    words = [torch.empty(-(-key.k // 64), rows, dtype=torch.int16) for rows in (key.m, key.n)]
    if not key.is_scaled:
        words = [torch.empty(1, dtype=torch.int16)] * 2
    d = torch.empty(key.m, key.n, dtype=torch.bfloat16 if key.out == "bfloat16" else torch.float32)
    store = epilogues.store(d, None, 1.0, None)
    report = simulate(
        prepared(_kernel(key, tiles)), a, b, *words, *store.arguments(), *store.head, check="off", functional=False
    )
    return round(report.predict().cycles)
