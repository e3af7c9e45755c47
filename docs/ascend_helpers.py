"""Evidence about the Ascend programs that serve GEMMs, for docs/ascend.md: each alone, against plain torch. Used by generate.py.

Kernels are those that host code asks for: scale transforms through the function every operation uses, the others taken down
from calls of the library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from ascend_evidence import BACKEND, Row
from torch import Tensor

import unikernels
from unikernels import legacy
from unikernels.backends.ascend import sample_calls
from unikernels.backends.ascend.kernels.k_grouped_scales import placed_scale_words
from unikernels.backends.ascend.kernels.scales import scale_words
from unikernels.backends.ascend.runtime.executor import Executor, collected_kernels, executor_on
from unikernels.backends.ascend.runtime.kernel import Kernel
from unikernels.backends.ascend.runtime.simulated import recorded_reports, timing_only
from unikernels.operations.k_grouped import KGroupLayout
from unikernels.operations.m_grouped import GroupLayout
from unikernels.scale_layouts import (
    KGroups,
    ScaleFormat,
    Scales,
    convert_k_grouped_scales,
    convert_scales,
    k_groups,
    masked_valid_rows,
    psum_valid_rows,
    transform_k_grouped_sf,
)

#: Runs a program and returns what it made and what it had to make.
Check = Callable[[Executor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Large:
    """A problem that is only timed: its size in words, the bytes read and written, and the run."""

    size: str
    num_bytes: float
    run: Callable[[Executor], object]


def helper_rows() -> dict[str, Row]:
    """Run every helper program in every form and return the rows, by program and form."""
    rows = {}
    executor = executor_on(torch.device("cpu"))
    with unikernels.use_backend(BACKEND):
        for key, checks, large in (*_scales(), *_zeroed_gaps(), *_summed_splits(), *_gathered_rows()):
            row = rows[key] = Row()
            for check in checks:
                _count(row, key, check, executor)
            with timing_only(), recorded_reports() as reports:
                large.run(executor)
            row.predict(large.num_bytes / 1e3, "GB/s", large.size, reports)
    return rows


def _count(row: Row, key: str, check: Check, executor: Executor) -> None:
    with recorded_reports() as reports:
        try:
            found, expected = check(executor)
        except Exception as error:  # a hazard, for example: the table says so
            print(f"{key}: {error}", file=sys.stderr)
            row.failed += 1
            return
    row.note_kernels(reports)
    if reports and found.dtype == expected.dtype and torch.equal(found, expected):
        row.exact += 1
    else:
        print(f"{key}: wrong result, or no kernel ran", file=sys.stderr)
        row.failed += 1


_Probe = tuple[str, list[Check], Large]

# ---- scale transforms ----

_FP32, _INT16, _INT32 = ScaleFormat.FP32, ScaleFormat.UE8M0X2_INT16, ScaleFormat.UE8M0X4_INT32
_FORMS = {
    "float32": ((1, 32), (1, 128), (128, 128)),
    "int32": ((1, 32), (1, 128)),
    "int16": ((1, 32),),
}
_FORMATS = {"float32": _FP32, "int32": _INT32, "int16": _INT16}
_ENDS = torch.tensor([100, 100, 200, 256, 300], dtype=torch.int32)  # empty, overlapping and full groups


def _random_scales(form: ScaleFormat, gran_mn: int, gran_k: int, mn: int, k: int, k_major: bool = True) -> Scales:
    generator = torch.Generator().manual_seed(mn + k)
    scales = Scales(torch.empty(0), form, gran_mn, gran_k, mn, k)
    shape = (scales.num_mn_blocks, scales.num_words)
    if form is _FP32:
        data = torch.exp2(torch.randint(-126, 128, shape, generator=generator).float())
    else:
        limits = torch.iinfo(form.dtype)
        data = torch.randint(limits.min, limits.max + 1, shape, generator=generator, dtype=form.dtype)
    return replace(scales, data=data if k_major else data.mT.contiguous().mT)


def _scales() -> Iterator[_Probe]:
    for name, grans in _FORMS.items():
        form = _FORMATS[name]
        for gran_mn, gran_k in grans:
            # int16 words that lie MN-major are what GEMMs read: nothing runs.
            checks = [
                _converted(_random_scales(form, gran_mn, gran_k, mn, k, k_major))
                for mn, k in ((300, 2720), (129, 96), (257, 4097))
                for k_major in ((True,) if form is _INT16 else (True, False))
            ]
            yield f"scales | {name} {gran_mn}x{gran_k}", checks, _large_scales(form, gran_mn, gran_k)
    for name in ("float32", "int32"):
        form = _FORMATS[name]
        yield f"scales | {name} 1x32, rows of groups", _rows_of_groups(form), _large_scales(form, 1, 32, ends=True)
    for name in ("float32", "int32"):
        large = _large_placed(_FORMATS[name])
        yield (
            f"k_grouped_scales | {name}",
            [_placed(name, gran_k, sizes) for gran_k in (32, 128) for sizes in _SIZES],
            large,
        )
    for name in ("float32", "int16"):
        form = _FORMATS[name]
        yield f"scales | {name} 1x32, groups along K", [_groups_along_k(form)], _large_scales(form, 1, 32, k_ends=True)


def _converted(scales: Scales) -> Check:
    return lambda executor: (scale_words(executor, scales), convert_scales(scales, _INT16).data.mT)


def _rows_of_groups(form: ScaleFormat) -> list[Check]:
    """Prefix sums, labels and masks; what lies outside groups must not be read."""
    labels = torch.tensor([0] * 100 + [-1] * 28 + [2] * 172, dtype=torch.int32)
    counts = torch.tensor([130], dtype=torch.int32)
    layouts = (
        (GroupLayout("psum", _ENDS, alignment=64), psum_valid_rows(_ENDS, 300, 64)),
        (GroupLayout("index", labels), labels >= 0),
        (GroupLayout("masked", counts), masked_valid_rows(counts, 300)[0]),
    )

    def check(layout: GroupLayout, valid: Tensor) -> Check:
        scales = _random_scales(form, 1, 32, 300, 224)
        scales.data[~valid] = torch.nan if form is _FP32 else -1
        expected = convert_scales(scales, _INT16, valid_rows=valid).data.mT
        return lambda executor: (scale_words(executor, scales, layout), expected)

    return [check(layout, valid) for layout, valid in layouts]


def _groups_along_k(form: ScaleFormat) -> Check:
    ends = torch.tensor([200, 256, 300, 2000], dtype=torch.int32)
    scales = _random_scales(form, 1, 32, 133, 2048, k_major=False)
    options = {"is_sfa": True, "psum_layout": ends, "alignment": 256}
    expected = transform_k_grouped_sf(scales.data, 133, 2048, (1, 1, 32), **options).mT
    if form is _FP32:
        scales.data[:, ~psum_valid_rows(ends, 2048, 256)[::32]] = torch.inf
    return lambda executor: (scale_words(executor, scales, columns=KGroupLayout("psum", ends, 256)), expected)


_SIZES = ((0, 100, 0, 258, 64, 0), (1,), (700, 33))


def _psum_layout(sizes: Sequence[int], alignment: int = 256) -> KGroupLayout:
    ends: list[int] = []
    for size in sizes:
        ends.append(-(-(ends[-1] if ends else 0) // alignment) * alignment + size)
    return KGroupLayout("psum", torch.tensor(ends, dtype=torch.int32), alignment)


def _group_rows(form: ScaleFormat, gran_k: int, layout: KGroupLayout, mn: int) -> tuple[Tensor, KGroups]:
    """Return scales that stand group after group, and the groups."""
    ends, options = layout.tensor, {"gran_k": gran_k, "alignment": layout.alignment, "use_psum_layout": True}
    groups = k_groups(ends.tolist(), ends, is_compact=True, **options)
    generator = torch.Generator().manual_seed(groups.num_rows)
    rows = torch.exp2(torch.randint(-126, 128, (groups.num_rows, mn), generator=generator).float())
    return (rows if form is _FP32 else convert_k_grouped_scales(rows, groups, form)), groups


def _placed(name: str, gran_k: int, sizes: Sequence[int]) -> Check:
    layout, mn, k = _psum_layout(sizes), 140, 1280
    rows, groups = _group_rows(_FORMATS[name], gran_k, layout, mn)
    words = convert_k_grouped_scales(rows, groups, _INT16)
    expected = torch.cat([words, words.new_zeros(k // 64 - len(words), mn)])
    return lambda executor: (placed_scale_words(executor, rows, gran_k, k, layout), expected)


def _large_placed(form: ScaleFormat) -> Large:
    mn, k = 4096, 7168
    layout = _psum_layout([1792] * 4)
    rows, _ = _group_rows(form, 32, layout, mn)
    moved = rows.numel() * 4 + mn * k / 32
    return Large(f"{mn}x{k}, 4 groups", moved, lambda executor: placed_scale_words(executor, rows, 32, k, layout))


def _large_scales(form: ScaleFormat, gran_mn: int, gran_k: int, ends: bool = False, k_ends: bool = False) -> Large:
    mn, k = 4096, 7168
    scales = Scales(torch.empty(0), form, gran_mn, gran_k, mn, k)
    scales = replace(scales, data=torch.zeros(scales.num_mn_blocks, scales.num_words, dtype=form.dtype))
    rows = GroupLayout("psum", torch.arange(1024, mn + 1, 1024, dtype=torch.int32), 256) if ends else None
    columns = KGroupLayout("psum", torch.arange(1792, k + 1, 1792, dtype=torch.int32), 256) if k_ends else None
    moved = scales.data.numel() * scales.data.element_size() + mn * k / 32
    return Large(f"{mn}x{k}", moved, lambda executor: scale_words(executor, scales, rows, columns))


# ---- programs around a product ----


def _kernel_of(program: str, call: Callable[[], object]) -> Kernel:
    """Return the kernel of a program that a call of the library runs."""
    with collected_kernels() as kernels:
        call()
    (kernel,) = (kernel for kernel in kernels if kernel.program == program)
    return kernel


def _of_out(kernel: Kernel, dtype: torch.dtype, **changes: int) -> Kernel:
    return replace(kernel, variant=replace(kernel.variant, out=str(dtype).removeprefix("torch."), **changes))


def _zeroed_gaps() -> Iterator[_Probe]:
    asked = _kernel_of("zero_gaps", lambda: sample_calls.m_grouped_gemm("bf16", "bf16", "psum", 2, 256, 64, 64))
    alignment = unikernels.get_mk_alignment_for_contiguous_layout()
    for dtype in (torch.bfloat16, torch.float32):
        kernel = _of_out(asked, dtype)

        def check(executor: Executor, dtype: torch.dtype = dtype, kernel: Kernel = kernel) -> tuple[Tensor, Tensor]:
            ends = torch.tensor([3, 3, 513, 700], dtype=torch.int32)
            d = torch.full((1100, 70), 7.0, dtype=dtype)
            expected = d.clone()
            last = -(-int(ends[-1]) // alignment) * alignment
            expected[:last][~psum_valid_rows(ends, last, alignment)] = 0
            executor.run(kernel, d, ends)
            return d, expected

        ends = torch.arange(1, 8192, 1024, dtype=torch.int32)  # a row in a group, then a gap of 255
        d = torch.empty(8192, 7168, dtype=dtype)
        moved = len(ends) * (alignment - 1) * d.shape[1] * d.element_size()
        large = Large(
            "8 gaps of 255x7168", moved, lambda executor, kernel=kernel, d=d, ends=ends: executor.run(kernel, d, ends)
        )
        yield f"zero_gaps | {_name(dtype)}", [check], large


def _summed_splits() -> Iterator[_Probe]:
    asked = _kernel_of("sum_splits", lambda: sample_calls.gemm("bf16", "bf16", 16, 64, 16384))
    for dtype in (torch.bfloat16, torch.float32):

        def check(splits: int, dtype: torch.dtype = dtype) -> Check:
            parts = torch.randn(splits, 16 * 645, generator=torch.Generator().manual_seed(splits))
            d = torch.empty(parts.shape[1], dtype=dtype)
            expected = parts[0]
            for part in parts[1:]:
                expected = expected + part  # in order, float32
            kernel = _of_out(asked, dtype, splits=splits)
            return lambda executor: (executor.run(kernel, parts, d), (d, expected.to(dtype)))[1]

        parts, d = torch.empty(8, 128 * 7168), torch.empty(128 * 7168, dtype=dtype)
        kernel, moved = _of_out(asked, dtype, splits=8), (parts.numel() * 4 + d.numel() * d.element_size())
        large = Large(
            "8 parts of 128x7168",
            moved,
            lambda executor, kernel=kernel, parts=parts, d=d: executor.run(kernel, parts, d),
        )
        yield f"sum_splits | {_name(dtype)}", [check(splits) for splits in (2, 4, 8, 16)], large


def _gathered_rows() -> Iterator[_Probe]:
    indices = torch.zeros(256, dtype=torch.int32)
    a, b, d = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((20, 64), (1, 66, 64), (256, 66)))
    kernel = _kernel_of(
        "gather_rows", lambda: legacy.a_fused_m_grouped_bf16_gemm_nt_contiguous_tl(a, b, d, (indices, indices))
    )

    def check(rows: int, columns: int, taken: int) -> Check:
        generator = torch.Generator().manual_seed(columns)
        source = torch.randn(rows, columns + 8, generator=generator).bfloat16()[:, :columns]
        chosen = torch.randint(-2, rows + 2, (taken,), generator=generator, dtype=torch.int32)
        is_row = (chosen >= 0) & (chosen < rows)
        expected = torch.where(is_row[:, None], source[chosen.clamp(0, rows - 1).long()], 0)
        found = torch.full((taken, columns), 7.0).bfloat16()
        return lambda executor: (executor.run(kernel, source, chosen, found), (found, expected))[1]

    source, gathered = (torch.empty(4096, 7168, dtype=torch.bfloat16) for _ in range(2))
    every = torch.arange(4096, dtype=torch.int32).flip(0)
    large = Large(
        "4096 of 4096x7168", 2 * 2 * source.numel(), lambda executor: executor.run(kernel, source, every, gathered)
    )
    yield "gather_rows | bfloat16", [check(20, 200, 300), check(7, 4100, 20), check(1, 1, 3)], large


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
