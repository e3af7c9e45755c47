"""Scales of k-grouped operands: one tensor, K first, whose rows belong to consecutive groups of K.

`k_groups` says which rows are whose; the rest reads or converts such tensors. Scales of one matrix are in convert.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unikernels.errors import InvalidArgumentError

from .decode import refuse_bad_scale
from .formats import ScaleFormat, Scales, align, ceil_div, format_of
from .native_packing import transcode

_ASCEND_GRAN_K = 32


@dataclass(frozen=True, slots=True)
class KGroups:
    """Groups along K, and the scale rows each one owns.

    Attributes:
        starts, sizes: K offset and number of K elements of each group, in the data.
        k: extent of the data along K, gaps included.
        gran_k: K elements per scale.
        row_starts, row_counts: rows of the float32 tensor [sum_sf_k, mn] that belong to each group; padding included.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    k: int
    gran_k: int
    row_starts: tuple[int, ...]
    row_counts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of the float32 form."""
        return sum(self.row_counts)

    @property
    def word_counts(self) -> tuple[int, ...]:
        """Rows of each group in the int32 form, where every group starts a new word."""
        return tuple(ceil_div(count, 4) for count in self.row_counts)

    @property
    def num_words(self) -> int:
        """Rows of the int32 form."""
        return sum(self.word_counts)

    @property
    def block_counts(self) -> tuple[int, ...]:
        """Scales along K that belong to each group's own elements: ceil(size / gran_k)."""
        return tuple(ceil_div(size, self.gran_k) for size in self.sizes)


def k_groups(
    ks: Sequence[int] | None,
    grouped_layout: Tensor | None = None,
    *,
    gran_k: int,
    alignment: int = 128,
    use_psum_layout: bool = False,
    sf: Tensor | None = None,
    is_compact: bool | None = None,
    name: str = "sf",
) -> KGroups:
    """Return where the groups of a k-grouped call lie.

    Plain layout: group i has ks[i] elements, without gaps. Prefix sums: grouped_layout[i] is where group i ends, it
    starts at align(grouped_layout[i-1], alignment), and its scale rows cover align(size, alignment) elements, or only
    the size itself in the compact form of DeepGEMM 2.6.1.

    Args:
        ks: group sizes; needed for the plain layout, not looked at with prefix sums.
        grouped_layout: int32 [num_groups]; read back from its device with prefix sums.
        sf: the scale tensor these groups are for, K first. Its row count is checked, and tells compact from aligned.
        is_compact: settles that question instead.
    Raises:
        InvalidArgumentError: sizes are missing, ends decrease, or `sf` has too few rows.
    Contract: DeepGEMM 2.8.2, k-grouped scales; compact form of 2.6.1.
    """
    starts, sizes = _psum_groups(grouped_layout, alignment, name) if use_psum_layout else _plain_groups(ks, name)
    compact = tuple(ceil_div(size, gran_k) for size in sizes)
    padded = tuple(ceil_div(align(size, alignment), gran_k) for size in sizes) if use_psum_layout else compact
    if is_compact is None:
        is_compact = sf is not None and _fits_only_compact(sf, padded, compact)
    counts = compact if is_compact else padded
    row_starts = tuple(sum(counts[:i]) for i in range(len(counts)))
    extent = align(sizes[-1], alignment) if sizes and use_psum_layout else sum(sizes[-1:])
    groups = KGroups(starts, sizes, starts[-1] + extent if starts else 0, gran_k, row_starts, counts)
    if sf is not None:
        _check_rows(sf, groups, name)
    return groups


def k_grouped_exponents(sf: Tensor, groups: KGroups, *, name: str = "sf") -> list[Tensor]:
    """Return, per group, e with scale = 2^(e - 127): uint8 [ceil(size / gran_k), mn], contiguous.

    Args:
        sf: K first, unit stride along mn or not: float32 [sum_sf_k, mn], int32 [num_words.., mn] (every group starts a
            new word row) or int16 [ceil(k / 64), mn] (words at the positions of the data, gran_k 32).
    Raises:
        InvalidArgumentError: a float32 scale in use is no power of two; its place in `sf` is named.
    """
    return [_group_blocks(sf, groups, i, torch.uint8, name) for i in range(len(groups.sizes))]


def k_grouped_scales(sf: Tensor, groups: KGroups) -> list[Tensor]:
    """Return, per group, float32 scales [ceil(size / gran_k), mn]; float32 input gives views. `sf` as above."""
    if sf.dtype == torch.float32:
        return [sf[start : start + count] for start, count in zip(groups.row_starts, groups.block_counts, strict=True)]
    return [_group_blocks(sf, groups, i, torch.float32, "sf") for i in range(len(groups.sizes))]


def convert_k_grouped_scales(
    sf: Tensor,
    groups: KGroups,
    scale_format: ScaleFormat,
    *,
    min_rows: int = 0,
    name: str = "sf",
) -> Tensor:
    """Return k-grouped scales in another format, K first and contiguous.

    * FP32: [groups.num_rows, mn]; padding rows of an int16 source read 2^-127.
    * UE8M0X4_INT32: [groups.num_words, mn]; missing bytes of a group's last word row are 0.
    * UE8M0X2_INT16: [ceil(groups.k / 64), mn], words at the positions of the data, gran_k 32 (128 is repeated four
      times); bytes of no group are 0, `.t()` is the layout of Ascend.

    The SM90 form is `get_mn_major_tma_aligned_tensor(float32_form.t())`.

    Args:
        sf: any of the three forms, see `k_grouped_exponents`.
        min_rows: rows of the int32 result, if more than needed are wanted; the others are 0.
    Raises:
        InvalidArgumentError: a float32 scale that would be packed is no power of two.
    Contract: DeepGEMM 2.8.2, k-grouped scales.
    """
    if scale_format is ScaleFormat.UE8M0X2_INT16:
        return _to_ascend(sf, groups, name)
    if sf.dtype == torch.float32 and scale_format is ScaleFormat.FP32:
        return sf[: groups.num_rows].contiguous()
    is_int32 = scale_format is ScaleFormat.UE8M0X4_INT32
    rows = max(groups.num_words, min_rows) if is_int32 else groups.num_rows
    out = torch.empty((rows, sf.shape[1]), dtype=scale_format.dtype, device=sf.device)
    counts = groups.word_counts if is_int32 else groups.row_counts
    begin = 0
    for i, count in enumerate(counts):
        source, num_blocks, row_start = _group_source(sf, groups, i)
        filled = ceil_div(num_blocks, scale_format.per_word)
        bad = transcode(source, num_blocks, out[begin : begin + filled].t(), num_blocks)
        _refuse_bad_row(sf, source, bad, row_start, name)
        if filled < count:  # an int16 source knows nothing of a group's padding
            out[begin + filled : begin + count] = 0 if is_int32 else 2.0**-127
        begin += count
    out[begin:] = 0
    return out


def place_k_grouped_scales(sf: Tensor, groups: KGroups, k: int, *, name: str = "sf") -> Scales:
    """Return k-grouped scales as scales of one [mn, k] matrix: rows move from group after group to where the data are.

    Args:
        sf: float32 [sum_sf_k, mn], or int32 [words, mn] where every group starts a new word row.
        k: extent of the data along K, gaps and unused columns at the end included.

    Returns:
        float32 scales, 1 where `sf` has no row; int16 words for int32 ones, 0 for blocks of no group.
    """
    mn = sf.shape[1]
    if sf.dtype == torch.float32:
        gran_k = groups.gran_k
        spread = torch.ones((ceil_div(k, gran_k), mn), dtype=sf.dtype, device=sf.device)
        for start, row, count in zip(groups.starts, groups.row_starts, groups.row_counts, strict=True):
            target = spread[start // gran_k : start // gran_k + count]
            target.copy_(sf[row : row + len(target)])
        return Scales(spread.transpose(0, 1), ScaleFormat.FP32, 1, gran_k, mn, k)
    words = convert_k_grouped_scales(sf, groups, ScaleFormat.UE8M0X2_INT16, name=name)
    missing = ceil_div(k, 2 * _ASCEND_GRAN_K) - words.shape[0]
    if missing > 0:
        words = torch.cat([words, words.new_zeros((missing, mn))])
    return Scales(words.transpose(0, 1), ScaleFormat.UE8M0X2_INT16, 1, _ASCEND_GRAN_K, mn, k)


def _plain_groups(ks: Sequence[int] | None, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if ks is None:
        raise InvalidArgumentError(
            f"{name}: ks_cpu is None, expected the list of group sizes: without prefix sums it alone says where groups "
            "end.\n  Pass ks_cpu, or use_psum_layout=True with end offsets in grouped_layout."
        )
    sizes = tuple(int(size) for size in ks)
    if any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"{name}: ks_cpu is {list(sizes)}, expected sizes of at least 0.")
    return tuple(sum(sizes[:i]) for i in range(len(sizes))), sizes


def _psum_groups(grouped_layout: Tensor | None, alignment: int, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if grouped_layout is None:
        raise InvalidArgumentError(f"{name}: grouped_layout is missing, expected int32 end offsets, one per group.")
    ends: list[int] = grouped_layout.tolist()
    starts, sizes, previous = [], [], 0
    for end in ends:
        if end < previous:
            raise InvalidArgumentError(
                f"{name}: grouped_layout is {ends}, expected end offsets that never decrease.\n"
                f"  Build it with end[i] = align(end[i-1], {alignment}) + size[i]."
            )
        starts.append(align(previous, alignment))
        sizes.append(max(0, end - starts[-1]))
        previous = end
    return tuple(starts), tuple(sizes)


def _fits_only_compact(sf: Tensor, padded: tuple[int, ...], compact: tuple[int, ...]) -> bool:
    if sf.dtype == torch.float32:
        return sf.shape[0] != sum(padded) and sf.shape[0] == sum(compact)
    if sf.dtype != torch.int32:
        return False
    needed, needed_compact = (sum(ceil_div(count, 4) for count in counts) for counts in (padded, compact))
    return needed_compact <= sf.shape[0] < needed


def _check_rows(sf: Tensor, groups: KGroups, name: str) -> None:
    needed = groups.num_rows
    if sf.dtype == torch.int32:
        needed = groups.num_words
    elif sf.dtype == torch.int16:
        ends = (start + size for start, size in zip(groups.starts, groups.sizes, strict=True))
        needed = ceil_div(max(ends, default=0), 2 * groups.gran_k)
    if sf.dim() != 2 or sf.shape[0] < needed:
        scale_format = format_of(sf.dtype)
        raise InvalidArgumentError(
            f"{name} has shape {tuple(sf.shape)}, expected [K rows, mn] with at least {needed} rows of "
            f"{sf.dtype if scale_format is None else scale_format.label} scales for groups of {list(groups.sizes)} "
            f"elements along K, one scale per {groups.gran_k}.\n  Scales of k-grouped operands are passed K first."
        )


def _group_source(sf: Tensor, groups: KGroups, index: int) -> tuple[Tensor, int, int]:
    """Return (one group's scales as [mn, columns], how many scales, its first row in `sf`)."""
    if sf.dtype == torch.int16:
        first_block, rest = divmod(groups.starts[index], groups.gran_k)
        if rest or groups.gran_k != _ASCEND_GRAN_K:
            raise InvalidArgumentError(
                f"int16 k-grouped scales stand at the positions of 32-wide blocks; a group starting at "
                f"{groups.starts[index]} with granularity {groups.gran_k} cannot be read from them.\n"
                "  Use gran_k=32 and group sizes that are multiples of 32."
            )
        count = groups.block_counts[index]
        if first_block % 2:
            return _byte_rows(sf)[first_block : first_block + count].t(), count, first_block // 2
        return sf[first_block // 2 : ceil_div(first_block + count, 2)].t(), count, first_block // 2
    start, count = groups.row_starts[index], groups.row_counts[index]
    if sf.dtype == torch.int32:
        start = sum(groups.word_counts[:index])
        return sf[start : start + groups.word_counts[index]].t(), count, start
    return sf[start : start + count].t(), count, start


def _byte_rows(words: Tensor) -> Tensor:
    """Return int16 [W, mn] as uint8 [2 * W, mn], one row per block."""
    pairs = words.contiguous().view(torch.uint8).reshape(*words.shape, 2)
    return pairs.transpose(1, 2).flatten(0, 1)


def _group_blocks(sf: Tensor, groups: KGroups, index: int, dtype: torch.dtype, name: str) -> Tensor:
    source, _, row_start = _group_source(sf, groups, index)
    count = groups.block_counts[index]
    out = torch.empty((count, sf.shape[1]), dtype=dtype, device=sf.device)
    source = source[:, :count] if sf.dtype == torch.float32 else source  # padding rows of this group are not looked at
    bad = transcode(source, count, out.t(), count)
    _refuse_bad_row(sf, source, bad, row_start, name)
    return out


def _to_ascend(sf: Tensor, groups: KGroups, name: str) -> Tensor:
    repeat, rest = divmod(groups.gran_k, _ASCEND_GRAN_K)
    if rest or any(start % _ASCEND_GRAN_K for start in groups.starts):
        raise InvalidArgumentError(
            f"{name}: groups starting at {list(groups.starts)} with granularity {groups.gran_k} cannot be stored as "
            "int16 scales, expected multiples of 32.\n  Use gran_k=32 or 128 and aligned group sizes."
        )
    num_words = ceil_div(groups.k, 2 * _ASCEND_GRAN_K)
    is_word_aligned = not any(start % (2 * _ASCEND_GRAN_K) for start in groups.starts)
    shape = (num_words, sf.shape[1]) if is_word_aligned else (2 * num_words, sf.shape[1])
    out = torch.zeros(shape, dtype=torch.int16 if is_word_aligned else torch.uint8, device=sf.device)
    for i, (start, size) in enumerate(zip(groups.starts, groups.sizes, strict=True)):
        source, _, row_start = _group_source(sf, groups, i)
        count = groups.block_counts[i]
        source = source[:, :count] if sf.dtype == torch.float32 else source
        begin, sink_blocks = start // _ASCEND_GRAN_K, ceil_div(size, _ASCEND_GRAN_K)
        rows = slice(begin, begin + sink_blocks)
        if is_word_aligned:
            rows = slice(begin // 2, begin // 2 + ceil_div(sink_blocks, 2))
        bad = transcode(source, count, out[rows].t(), sink_blocks, k_repeat=repeat)
        _refuse_bad_row(sf, source, bad, row_start, name)
    if is_word_aligned:
        return out
    words = torch.empty((num_words, sf.shape[1]), dtype=torch.int16, device=sf.device)
    transcode(out.t(), 2 * num_words, words.t(), 2 * num_words)
    return words


def _refuse_bad_row(sf: Tensor, source: Tensor, bad: int, row_start: int, name: str) -> None:
    """Name a bad scale by its place in `sf`: `source` is the transposed part that begins at `row_start`."""
    if bad >= 0:
        column, row = divmod(bad, source.shape[1])
        refuse_bad_scale(sf, (row_start + row) * sf.shape[1] + column, name)
