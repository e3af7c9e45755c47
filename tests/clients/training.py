"""A caller of DeepGEMM in the manner of a training framework: one linear layer's three GEMMs, and experts' weight
gradients accumulated in place; knows nothing of unikernels.
"""

import deep_gemm
import torch
from deep_gemm.testing import calc_diff
from deep_gemm.utils import per_block_cast_to_fp8, per_channel_cast_to_fp8, per_token_cast_to_fp8


class Linear:
    """y = x @ w.T in FP8, master gradient in float32."""

    def __init__(self, weight):
        self.weight = per_block_cast_to_fp8(weight, use_ue8m0=True)
        self.weight_t = per_block_cast_to_fp8(weight.t().contiguous(), use_ue8m0=True)
        self.main_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)

    def forward(self, x):
        out = torch.empty(x.size(0), self.weight[0].size(0), dtype=torch.bfloat16, device=x.device)
        deep_gemm.fp8_gemm_nt(per_token_cast_to_fp8(x, use_ue8m0=True), self.weight, out)
        return out

    def backward(self, x, grad):
        grad_x = torch.empty_like(x)
        deep_gemm.fp8_gemm_nt(per_token_cast_to_fp8(grad, use_ue8m0=True), self.weight_t, grad_x)
        # Both sides quantised along the tokens, one scale per row and 128 tokens; adds to the master gradient.
        grad_t = per_token_cast_to_fp8(grad.t().contiguous(), use_ue8m0=True)
        x_t = per_token_cast_to_fp8(x.t().contiguous(), use_ue8m0=True)
        deep_gemm.fp8_gemm_nt(grad_t, x_t, self.main_grad, c=self.main_grad, recipe=(1, 1, 128))
        return grad_x


def accumulate_expert_gradients(x, grad, tokens_per_expert, main_grad):
    """main_grad[e] += grad of expert e's tokens; all by position, the addend being the output itself."""
    layout = torch.tensor(tokens_per_expert, dtype=torch.int32, device=x.device)
    deep_gemm.k_grouped_fp8_gemm_tn_contiguous(
        per_channel_cast_to_fp8(grad, use_ue8m0=True),
        per_channel_cast_to_fp8(x, use_ue8m0=True),
        main_grad,
        tokens_per_expert,
        layout,
        main_grad,
    )


def accumulate_expert_gradients_bf16(x, grad, tokens_per_expert, main_grad):
    layout = torch.tensor(tokens_per_expert, dtype=torch.int32, device=x.device)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(grad, x, main_grad, tokens_per_expert, layout, main_grad)


def is_close(x, y, tolerance):
    return calc_diff(x, y) < tolerance
