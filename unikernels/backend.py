"""What a backend is: the class every plugin derives from.

One method per canonical operation (unikernels/operations); a method that is not overridden is a capability the backend
does not have. Tables of what works where are derived from that, never kept by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .errors import UnsupportedOperationError
from .scale_layouts import ScaleFormat, Scales

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .bench import Prediction
    from .mega_moe.layout import Region
    from .mega_moe.sizes import MegaMoeSizes
    from .mega_moe.weights import Layer, StoredWeights, TransformMegaMoeWeightsProblem
    from .operations.batched import BatchedGemmProblem
    from .operations.gathered import GatheredKGroupedGemmProblem, GatheredMGroupedGemmProblem
    from .operations.gemm import GemmProblem
    from .operations.hc_prenorm import HcPrenormProblem
    from .operations.k_grouped import KGroupedGemmProblem, KGroupLayout
    from .operations.m_grouped import GroupedGemmProblem, GroupLayout
    from .operations.mega_gate import MegaGateProblem
    from .operations.mega_mhc import MegaMhcProblem
    from .operations.mega_moe import MegaMoeProblem
    from .operations.mqa_logits import MqaLogitsProblem, PagedMqaLogitsProblem
    from .operations.mqa_sparse import PagedSparseMqaLogitsProblem, SparseMqaLogitsProblem
    from .scale_layouts import KGroups

#: (rows per A scale, rows per B scale, K elements per scale): contract 1.5.
Recipe = tuple[int, int, int]

#: (M, N, K) of a GEMM.
Shape = tuple[int, int, int]
if TYPE_CHECKING:
    Advance = Callable[[int, int], None]

_DEFAULT_RECIPES: dict[torch.dtype, Recipe] = {
    torch.float32: (1, 128, 128),
    torch.int32: (1, 1, 128),
    torch.int16: (1, 1, 32),
}


class Backend:
    """Base class of all backends.

    Class attributes:
        name: what UNIKERNELS_BACKEND and `use_backend` call it.
        device_types: ``torch.device.type`` values of the tensors it takes.
        auto_device_types: those for which ``auto`` may choose it.
        scale_format: the scale layout its kernels consume; the others are converted on entry.
        mk_alignment: default alignment of groups along M and K, in rows.
        has_fixed_mk_alignment: whether that alignment cannot be changed.
        needs_aligned_groups: whether kernels read one row label per aligned block (index layout), so that a group that
            starts elsewhere would be computed with another group's B.
        keeps_float32_scales: whether float32 scales reach the arithmetic as they are (no cast to UE8M0).
        mega_moe_token_alignment: what the token limit of a Mega MoE buffer is rounded up to.
    """

    name: ClassVar[str]
    device_types: ClassVar[tuple[str, ...]] = ()
    auto_device_types: ClassVar[tuple[str, ...]] = ()
    scale_format: ClassVar[ScaleFormat] = ScaleFormat.UE8M0X4_INT32
    mk_alignment: ClassVar[int] = 128
    has_fixed_mk_alignment: ClassVar[bool] = False
    needs_aligned_groups: ClassVar[bool] = True
    keeps_float32_scales: ClassVar[bool] = False
    mega_moe_token_alignment: ClassVar[int] = 8

    def unavailable_reason(self) -> str | None:
        """Return None when the backend can run here, else a reason a person can act on."""
        return None

    @property
    def device(self) -> torch.device:
        """The device on which a user should create tensors for this backend."""
        return torch.device(self.device_types[0])

    @property
    def is_simulated(self) -> bool:
        """Whether kernels run in a simulator, so that their wall time says nothing about a device."""
        return False

    def num_cores(self) -> int:
        """Return how many cores (SMs, cube cores, worker threads) kernels use by default."""
        return 1

    def npu_arch(self) -> int | None:
        """Return the NPU architecture kernels are compiled for; None where there is no NPU."""
        return None

    def default_recipe(self, sfb_dtype: torch.dtype) -> Recipe:
        """Return the recipe used when a call gives none, by the dtype of the B scales (contract 1.5)."""
        return _DEFAULT_RECIPES.get(sfb_dtype, (1, 1, 32))

    def why_not(self, operation: str, problem: Any) -> str | None:
        """Return None if `operation` handles `problem`, else what it lacks (limits inside an implemented operation)."""
        return None

    def details(self) -> Mapping[str, str]:
        """Return versions and device facts for ``unikernels doctor``."""
        return {}

    # Scale transforms, as the layout functions need them: a backend may have kernels for its own format.

    def convert_scales(
        self,
        scales: Scales,
        scale_format: ScaleFormat,
        *,
        psum_layout: Tensor | None = None,
        alignment: int | None = None,
        name: str = "sf",
    ) -> Scales:
        """Return the scales in the canonical layout of a format; see `scale_layouts.convert_scales`."""
        from .scale_layouts import convert_scales

        return convert_scales(scales, scale_format, psum_layout=psum_layout, alignment=alignment, name=name)

    def convert_scales_within_k_groups(
        self, scales: Scales, groups: KGroups | None, psum_layout: Tensor, alignment: int, name: str
    ) -> Tensor:
        """Return int16 words of groups along K; see `scale_layouts.convert_scales_within_k_groups`."""
        from .scale_layouts import convert_scales_within_k_groups

        return convert_scales_within_k_groups(scales, groups, psum_layout, alignment, name)

    def scales_per_row(self, scales: Scales, layout: GroupLayout) -> Scales:
        """Return scales of rows in groups with one scale row per row, so that groups can be cut out at any row."""
        rows = torch.arange(scales.mn, device=scales.data.device) // scales.gran_mn
        data = scales.data.index_select(-2, rows)
        return Scales(data, scales.format, 1, scales.gran_k, scales.mn, scales.k)

    def words_of_scale_bytes(self, exponents: Tensor) -> Tensor:
        """Return uint8 exponents as int16 words of two; see `scale_layouts.words_of_bytes`."""
        from .scale_layouts import words_of_bytes

        return words_of_bytes(exponents)

    def place_k_grouped_scales(
        self, sf: Tensor, gran_k: int, k: int, layout: KGroupLayout, groups: KGroups | None, name: str
    ) -> Scales | None:
        """Return scales that stand group after group as scales of one matrix; see `scale_layouts.place_k_grouped_scales`.

        Args:
            layout: the groups on the device, and their alignment.
            groups: the groups as the host knows them; None where that would wait for the device.

        Returns:
            None if that takes knowing the groups on the host.
        """
        from .scale_layouts import place_k_grouped_scales

        return None if groups is None else place_k_grouped_scales(sf, groups, k, name=name)

    def predictions(self, pattern: str = "") -> Iterator[Prediction]:
        """Yield predicted against published performance of this backend's kernels, for ``unikernels bench --predicted``.

        Args:
            pattern: only rows whose name contains this text.
        """
        raise UnsupportedOperationError(
            f"backend '{self.name}' has no model that predicts times. Leave --predicted out to measure it."
        )

    def shutdown(self) -> None:
        """Release handles and workspaces; may be called more than once."""

    # The canonical operations. Each returns nothing and writes the problem's outputs unless it says otherwise.

    def gemm(self, problem: GemmProblem) -> None:
        """D = C + alpha * A @ B.T."""
        raise self._missing("gemm")

    def hc_prenorm_gemm(self, problem: HcPrenormProblem) -> None:
        """D = A @ tf32(B).T and the row sums of squares of A, as partial sums over splits of K."""
        raise self._missing("hc_prenorm_gemm")

    def mega_mhc(self, problem: MegaMhcProblem) -> None:
        """New residual streams and mixes of a hyper-connection step, and its normalised output."""
        raise self._missing("mega_mhc")

    def m_grouped_gemm(self, problem: GroupedGemmProblem) -> None:
        """D[row] = alpha * A[row] @ B[group of row].T, rows grouped by labels, end offsets or masks."""
        raise self._missing("m_grouped_gemm")

    def mega_gate(self, problem: MegaGateProblem) -> None:
        """Experts of each token and their weights."""
        raise self._missing("mega_gate")

    def k_grouped_gemm(self, problem: KGroupedGemmProblem) -> None:
        """D[g] = C[g] + alpha * A_g @ B_g.T, groups split K."""
        raise self._missing("k_grouped_gemm")

    def mqa_logits(self, problem: MqaLogitsProblem) -> None:
        """Indexer logits of every query against its window of contiguous keys."""
        raise self._missing("mqa_logits")

    def paged_mqa_logits(self, problem: PagedMqaLogitsProblem) -> None:
        """Indexer logits of every token against the paged keys of its sequence."""
        raise self._missing("paged_mqa_logits")

    def transform_mega_moe_weights(
        self, problem: TransformMegaMoeWeightsProblem
    ) -> tuple[StoredWeights, StoredWeights]:
        """Return expert weights in the form `mega_moe` reads: the one `mega_moe_weight_shape` describes."""
        raise self._missing("transform_mega_moe_weights")

    def mega_moe(self, problem: MegaMoeProblem) -> None:
        """Dispatch, linear 1, SwiGLU, linear 2, combine, over all ranks of the buffer's group."""
        raise self._missing("mega_moe")

    # Memory and weight forms of Mega MoE: what a backend without peculiarities of its own uses.

    def mega_moe_regions(self, sizes: MegaMoeSizes) -> tuple[Region, ...]:
        """Return what lies in a buffer, in order; more regions and rings for l1 and l2 may be added."""
        from .mega_moe.layout import regions

        return regions(sizes, self.scale_format)

    def symmetric_memory(self, num_bytes: int, group: Any) -> tuple[Tensor, tuple[int, ...]]:
        """Return zeroed int8 memory, and where every rank of `group` (None: this process alone) has it; collective."""
        from .mega_moe.symmetric_buffer import ordinary_memory

        return ordinary_memory(num_bytes, group, self.device)

    def mega_moe_weight_shape(
        self, layer: Layer, leading: tuple[int, ...], num_rows: int, width: int
    ) -> tuple[int, ...]:
        """Return the shape of a transformed tensor for a raw [*leading, num_rows, width] one; never that shape itself."""
        from .mega_moe.weights import transformed_shape

        return transformed_shape(layer, leading, num_rows, width)

    def sparse_mqa_logits(self, problem: SparseMqaLogitsProblem) -> None:
        """Indexer logits of every query against its selected blocks of contiguous keys."""
        raise self._missing("sparse_mqa_logits")

    def paged_sparse_mqa_logits(self, problem: PagedSparseMqaLogitsProblem) -> None:
        """Indexer logits of every token against its selected blocks of paged keys."""
        raise self._missing("paged_sparse_mqa_logits")

    # Schedules of the MQA logits kernels: opaque, and zeros for a backend that shares its work by itself.

    def mqa_logits_metadata(
        self, starts: Tensor, ends: Tensor, num_keys: int, num_heads: int, num_cores: int
    ) -> Tensor:
        """Return an int32 [n] schedule for windows starts..ends."""
        num_query_blocks = -(-starts.shape[0] // (128 // num_heads))
        words = -(-3 * num_cores // 2) * 2 + 2 * num_query_blocks
        return torch.zeros(words, dtype=torch.int32, device=starts.device)

    def paged_mqa_logits_metadata(
        self, context_lens: Tensor, page_kv: int | None, num_cores: int, requests: Tensor | None, num_heads: int | None
    ) -> Tensor:
        """Return an int32 [num_cores + 1, 2] schedule for contexts [batch, next_n]."""
        return torch.zeros((num_cores + 1, 2), dtype=torch.int32, device=context_lens.device)

    def batched_gemm(self, problem: BatchedGemmProblem) -> None:
        """D[i] = C[i] + alpha * A[i] @ B[i].T, or the sum over the batch."""
        raise self._missing("batched_gemm")

    def gathered_m_grouped_gemm(self, problem: GatheredMGroupedGemmProblem) -> None:
        """D[row] = A[row_indices[row]] @ B[group of row].T."""
        raise self._missing("gathered_m_grouped_gemm")

    def gathered_k_grouped_gemm(self, problem: GatheredKGroupedGemmProblem) -> None:
        """D[g] (+)= A_g @ B_g.T, K of one operand gathered."""
        raise self._missing("gathered_k_grouped_gemm")

    # Work ahead of time, for the command line. `advance(done, total)` moves a progress bar.

    def tune(self, shapes: Sequence[Shape], file: Path | None, advance: Advance) -> str:
        """Choose configurations for GEMMs of `shapes` (none: those already in the table), write them, return a summary."""
        raise self._missing("tune", "Name one with --backend.")

    def warmup(self, shapes: Sequence[Shape], num_groups: int, num_processes: int, advance: Advance) -> str:
        """Build the kernels of `shapes` (none: all tuned ones) before they are needed, return a summary.

        With `num_groups` (0: none), those of grouped GEMMs with that many groups of these sizes.
        """
        raise self._missing("warmup", "Name one with --backend.")

    @classmethod
    def implements(cls, operation: str) -> bool:
        """Return whether this class overrides the method of `operation`."""
        return getattr(cls, operation) is not getattr(Backend, operation)

    def _missing(self, operation: str, how_to_choose: str | None = None) -> UnsupportedOperationError:
        from ._registry import backends_with, remedy  # the registry imports this module

        others = ", ".join(backends_with(operation)) or "none"
        advice = remedy(operation, self) if how_to_choose is None else f" {how_to_choose}"
        return UnsupportedOperationError(
            f"backend '{self.name}' does not implement '{operation}'. Backends that do: {others}.{advice}"
        )
