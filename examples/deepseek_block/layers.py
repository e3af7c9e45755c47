"""Sizes, weights and the plain torch layers that the block and its float32 version have in common.

No call of unikernels is made here; those are in model.py, and reference.py does the same without them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Config:
    """Sizes of the block: a small DeepSeek-V3-style decoder layer, every GEMM dimension as a kernel wants it."""

    hidden: int = 512
    num_streams: int = 4
    num_heads: int = 8
    query_rank: int = 256
    latent_rank: int = 128
    nope_dim: int = 64
    rope_dim: int = 32
    value_dim: int = 64
    index_heads: int = 32
    index_dim: int = 64
    index_topk: int = 48
    num_experts: int = 16
    num_active: int = 4
    expert_dim: int = 256
    routed_scaling_factor: float = 2.5
    sinkhorn_iters: int = 20
    page_size: int = 64
    max_length: int = 128
    eps: float = 1e-6

    @property
    def query_dim(self) -> int:
        """Width of one head's query: the part without position and the rotated part."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True)
class Tokens:
    """Where each token of a step stands: its sequence and its position there, int64 [tokens]."""

    sequence: Tensor
    position: Tensor


def random_weights(config: Config, seed: int, device: torch.device) -> Weights:
    """Return the layer's weights as float32 holding bfloat16 values, as a checkpoint would."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, gain: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5
        return values.bfloat16().float().to(device)

    c, flat = config, config.num_streams * config.hidden
    num_mixes = c.num_streams * (c.num_streams + 2)
    weights = {
        "query_down": normal(c.query_rank, c.hidden),
        "query_up": normal(c.num_heads * c.query_dim, c.query_rank),
        "latent_down": normal(c.latent_rank + c.rope_dim, c.hidden),
        "key_up": normal(c.num_heads, c.nope_dim, c.latent_rank),
        "value_up": normal(c.num_heads, c.value_dim, c.latent_rank),
        "attention_out": normal(c.hidden, c.num_heads * c.value_dim),
        "index_query": normal(c.index_heads * c.index_dim, c.query_rank),
        "index_key": normal(c.index_dim, c.hidden),
        "index_weight": normal(c.index_heads, c.hidden),
        "gate": normal(c.num_experts, c.hidden),
        "gate_bias": normal(c.num_experts, 1).flatten() * 0.1,
        "experts_up": normal(c.num_experts, 2 * c.expert_dim, c.hidden),
        "experts_down": normal(c.num_experts, c.hidden, c.expert_dim),
        "shared_up": normal(2 * c.expert_dim, c.hidden),
        "shared_down": normal(c.hidden, c.expert_dim),
    }
    for sublayer in ("attention", "moe"):
        weights[f"{sublayer}_mix"] = normal(num_mixes, flat, gain=2.0)
        weights[f"{sublayer}_mix_scales"] = torch.tensor([0.5, 0.5, 1.0], device=device)
        weights[f"{sublayer}_mix_bases"] = normal(num_mixes, 1).flatten()
    return weights


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) in x's dtype, computed in float32."""
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Apply rotary position embedding to the last dimension of x [tokens, .., dim]."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = (position.unsqueeze(1) * frequency).view(-1, *[1] * (x.ndim - 2), half)
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


def swiglu(x: Tensor) -> Tensor:
    """Return silu(gate) * up for x = [gate, up], in x's dtype, computed in float32."""
    gate, up = x.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def mixing(projected: Tensor, scales: Tensor, bases: Tensor, config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the normalised projection of all streams into mixes of a hyper-connection.

    Returns:
        how much of each stream enters the sublayer [tokens, n], how much of its output goes to each stream [tokens, n],
        and a doubly stochastic matrix [tokens, n, n] from old to new streams.
    """
    n = config.num_streams
    widths = torch.tensor([n, n, n * n], device=projected.device)
    z = projected * scales.repeat_interleave(widths) + bases
    stream_mix = z[:, 2 * n :].reshape(-1, n, n).softmax(-1)
    for _ in range(config.sinkhorn_iters):
        stream_mix = stream_mix / stream_mix.sum(1, keepdim=True)
        stream_mix = stream_mix / stream_mix.sum(2, keepdim=True)
    return z[:, :n].sigmoid(), 2 * z[:, n : 2 * n].sigmoid(), stream_mix


def mixed_in(streams: Tensor, pre: Tensor) -> Tensor:
    """Return the input of a sublayer [tokens, hidden]: the streams [tokens, n, hidden] summed with weights [tokens, n]."""
    return torch.einsum("tn,tnh->th", pre, streams.float()).to(streams.dtype)


def mixed_out(x: Tensor, post: Tensor, stream_mix: Tensor, streams: Tensor) -> Tensor:
    """Return the streams after a sublayer with output x."""
    kept = torch.einsum("tij,tih->tjh", stream_mix, streams.float())
    return (kept + post.unsqueeze(-1) * x.float().unsqueeze(1)).to(streams.dtype)


def largest(logits: Tensor, position: Tensor, k: int) -> Tensor:
    """Return the positions of the k largest logits [tokens, length] that a token may see, -1 where there are fewer."""
    column = torch.arange(logits.shape[1], device=logits.device)
    visible = column <= position.unsqueeze(1)
    ranked = torch.where(visible, logits.float(), -torch.inf).topk(min(k, logits.shape[1]), dim=1)
    return torch.where(ranked.values == -torch.inf, -1, ranked.indices)


def latent_attention(
    query: Tensor, latent: Tensor, rope_key: Tensor, visible: Tensor, weights: Weights, config: Config
) -> Tensor:
    """Attention in the compressed space over chosen tokens, in float32.

    Args:
        query: [tokens, heads, nope + rope], rotated. latent, rope_key: [tokens, chosen, rank], [tokens, chosen, rope].
        visible: [tokens, chosen].

    Returns:
        [tokens, heads * value_dim].
    """
    query, latent = query.float(), latent.float()
    nope, rope = query.split([config.nope_dim, config.rope_dim], dim=-1)
    compressed = torch.einsum("thd,hdr->thr", nope, weights["key_up"])
    scores = torch.einsum("thr,tcr->thc", compressed, latent) + torch.einsum("thr,tcr->thc", rope, rope_key.float())
    scores = scores * config.query_dim**-0.5
    probability = scores.masked_fill(~visible.unsqueeze(1), -torch.inf).softmax(-1)
    value = torch.einsum("thc,tcr->thr", probability, latent)
    return torch.einsum("thr,hdr->thd", value, weights["value_up"]).flatten(1)
