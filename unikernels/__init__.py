"""One DeepGEMM-compatible kernel API over pluggable backends, with parity anyone can check.

>>> import unikernels as uk
>>> with uk.use_backend("cpu"):
...     uk.get_num_sms() >= 1
True
"""

from . import epilogue
from ._hookspecs import hookimpl
from ._registry import available_backends, set_backend, use_backend
from .api.gate import bf16_mega_gate
from .api.gemm import (
    bf16_gemm_nn,
    bf16_gemm_nt,
    bf16_gemm_tn,
    bf16_gemm_tt,
    cublaslt_gemm_nn,
    cublaslt_gemm_nt,
    cublaslt_gemm_tn,
    cublaslt_gemm_tt,
    fp4_gemm_nt,
    fp8_fp4_gemm_nn,
    fp8_fp4_gemm_nt,
    fp8_fp4_gemm_tn,
    fp8_fp4_gemm_tt,
    fp8_gemm_nn,
    fp8_gemm_nt,
    fp8_gemm_tn,
    fp8_gemm_tt,
)
from .api.hyper_connection import mega_mhc, tf32_hc_prenorm_gemm
from .api.k_grouped import (
    k_grouped_bf16_gemm_tn_contiguous,
    k_grouped_fp4_gemm_nt_contiguous,
    k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous,
)
from .api.m_grouped import (
    bf16_m_grouped_gemm_nt_masked,
    fp8_m_grouped_gemm_nt_masked,
    m_grouped_bf16_gemm_nn_contiguous,
    m_grouped_bf16_gemm_nt_contiguous,
    m_grouped_bf16_gemm_nt_masked,
    m_grouped_fp4_gemm_nt_contiguous,
    m_grouped_fp4_gemm_nt_masked,
    m_grouped_fp8_fp4_gemm_nn_contiguous,
    m_grouped_fp8_fp4_gemm_nt_contiguous,
    m_grouped_fp8_fp4_gemm_nt_masked,
    m_grouped_fp8_gemm_nn_contiguous,
    m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked,
)
from .api.mega_moe import (
    bf16_mega_moe,
    fp8_fp4_mega_moe,
    get_block_m_for_mega_moe,
    get_symm_buffer_for_mega_moe,
    transform_weights_for_mega_moe,
)
from .api.mqa_logits import fp8_fp4_mqa_logits, fp8_fp4_paged_mqa_logits, fp8_mqa_logits, fp8_paged_mqa_logits
from .api.mqa_schedules import get_mqa_logits_metadata, get_paged_mqa_logits_metadata
from .api.runtime import (
    get_deterministic_algorithms,
    get_k_alignment_for_contiguous_layout,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_npu_arch,
    get_num_sms,
    get_pdl,
    get_tc_util,
    get_theoretical_mk_alignment_for_contiguous_layout,
    set_block_size_multiple_of,
    set_ignore_compile_dims,
    set_mk_alignment_for_contiguous_layout,
    set_npu_arch,
    set_num_sms,
    set_pdl,
    set_tc_util,
    shutdown,
    use_deterministic_algorithms,
)
from .locality_domain import (
    destroy_localizer,
    get_num_locality_domains,
    is_localization_available,
    is_localized,
    localize,
)
from .mega_moe.symmetric_buffer import SymmBuffer
from .utils import (
    align,
    cast_back_from_fp4,
    cast_back_from_fp8,
    ceil_div,
    ceil_to_ue8m0,
    init_dist,
    pack_ue8m0_to_int,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_custom_dims_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
    transpose_packed_fp4,
    unpack_ue8m0_from_int,
    uneven_all_gather,
)

__version__ = "0.1.0"
