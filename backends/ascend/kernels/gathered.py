"""Grouped GEMMs with a gathered operand on Ascend, host side: rows are gathered in GM first, by the vector cores.

No TileLang here; the programs are gather_rows.py, m_grouped.py and gathered_k.py in programs/. Layout tensors are read by kernels only, never on the host.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unikernels.operations import (
    GatheredKGroupedGemmProblem,
    GatheredMGroupedGemmProblem,
    GroupedGemmProblem,
    GroupLayout,
)

from ..programs.variants import GatherRowsVariant
from ..runtime.executor import Executor, cores_in_use, executor_for
from ..runtime.kernel import Kernel
from . import epilogues, operands
from .gemm_form import form_of, variant_for
from .gemm_tiles import Sizes
from .m_grouped import m_grouped_gemm


def gathered_m_grouped_gemm(problem: GatheredMGroupedGemmProblem) -> None:
    """D[row] = A[row_indices[row]] @ B[labels[row]].T; zeros for a negative index or label."""
    executor = executor_for(problem.d)
    rows = torch.where(problem.labels < 0, -1, problem.row_indices)
    data = _gathered(executor, problem.a.data, rows)
    layout = GroupLayout("index", problem.labels.clamp(min=0), problem.alignment)
    a = replace(problem.a, data=data, mn=data.shape[0])
    m_grouped_gemm(GroupedGemmProblem(a, problem.b, problem.d, layout))
    # Zeros times an infinite or NaN weight are NaN.
    problem.d.detach().masked_fill_((rows < 0).unsqueeze(1), 0)


def gathered_k_grouped_gemm(problem: GatheredKGroupedGemmProblem) -> None:
    """D[g] (+)= sum of A[:, ia(k)] B[:, ib(k)].T over the group's range of K, one of the two gathered."""
    if problem.k_indices.shape[0] == 0:
        if not problem.accumulates:
            problem.d.zero_()
        return
    executor = executor_for(problem.d)
    stored = {"a": operands.stored(problem.a), "b": operands.stored(problem.b)}
    stored[problem.gathers] = _gathered(executor, stored[problem.gathers], problem.k_indices)
    a, b = stored["a"], operands.canonical(stored["b"])
    store = epilogues.store(problem.d, problem.d if problem.accumulates else None, 1.0, None)
    num_groups = problem.d.shape[0]
    sizes = Sizes(problem.a.mn, problem.b.mn, -(-a.shape[0] // num_groups), num_groups)
    kernel = Kernel("gathered_k", variant_for(form_of(executor, problem.a, problem.b, store), sizes))
    executor.run(kernel, operands.canonical(a), b, store.d, problem.k_start, problem.k_end)


def _gathered(executor: Executor, source: Tensor, indices: Tensor) -> Tensor:
    """Return bfloat16 [len(indices), columns]: rows of the source, zeros where an index names none."""
    gathered = source.new_empty((indices.shape[0], source.shape[1]))
    variant = GatherRowsVariant(block=4096, num_cores=2 * cores_in_use(executor))
    executor.run(Kernel("gather_rows", variant), operands.unit_rows(source), indices, gathered)
    return gathered
