"""A caller of DeepGEMM's fused mixture of experts, keywords throughout; knows nothing of unikernels."""

import deep_gemm
import torch
from deep_gemm.utils import per_token_cast_to_fp4, per_token_cast_to_fp8


def quantize_experts(weights):
    """[experts, n, k] to (packed FP4, scales as the kernels read them)."""
    experts, n, k = weights.shape
    casts = [per_token_cast_to_fp4(weight, use_ue8m0=True, gran_k=32) for weight in weights]
    data = torch.stack([data for data, _ in casts])
    sf = torch.stack([sf for _, sf in casts])
    return data, deep_gemm.transform_sf_into_required_layout(sf, n, k, (1, 32), experts)


class FusedExperts:
    def __init__(self, group, l1, l2, max_tokens, topk):
        experts, hidden, intermediate = l2.size(0) * group.size(), l2.size(1), l2.size(2)
        self.weights = deep_gemm.transform_weights_for_mega_moe(quantize_experts(l1), quantize_experts(l2))
        self.buffer = deep_gemm.get_symm_buffer_for_mega_moe(
            group, experts, max_tokens, topk, hidden, intermediate, mma_type="fp8xfp4", activation="swiglu"
        )
        self.stats = torch.zeros(l2.size(0), dtype=torch.int32, device=l2.device)

    def __call__(self, x, topk_idx, topk_weights, clamp=None):
        num_tokens = x.size(0)
        data, sf = per_token_cast_to_fp8(x, use_ue8m0=True, gran_k=32, use_packed_ue8m0=True)
        self.buffer.x[:num_tokens].copy_(data)
        self.buffer.x_sf[:num_tokens].copy_(sf)
        self.buffer.topk_idx[:num_tokens].copy_(topk_idx)
        self.buffer.topk_weights[:num_tokens].copy_(topk_weights)
        # Allocated with at least one row, whatever the number of tokens.
        y = torch.empty(max(num_tokens, 1), x.size(1), dtype=torch.bfloat16, device=x.device)[:num_tokens]
        deep_gemm.fp8_fp4_mega_moe(
            y,
            self.weights[0],
            self.weights[1],
            self.buffer,
            cumulative_local_expert_recv_stats=self.stats,
            recipe=(1, 1, 32),
            activation="swiglu",
            activation_clamp=clamp,
            fast_math=True,
        )
        return y
