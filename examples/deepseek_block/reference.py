"""The same block in float32 torch: no quantisation, no grouped kernels, one matrix product after another."""

from __future__ import annotations

import torch
from layers import (
    Config,
    Tokens,
    Weights,
    largest,
    latent_attention,
    mixed_in,
    mixed_out,
    mixing,
    rms_norm,
    rotate,
    swiglu,
)
from torch import Tensor


class ReferenceBlock:
    """Float32 version of `model.DecoderBlock`, with a cache of its own.

    A step follows the discrete choices of the block (which tokens are attended to, which experts are asked), as else
    one flipped choice near a tie would hide how close the numbers are; what it would have chosen itself is recorded
    beside them.
    """

    def __init__(self, weights: Weights, config: Config, num_sequences: int) -> None:
        self.weights = weights
        self.config = config
        device = weights["gate"].device
        shape = (num_sequences, config.max_length)
        self.latent = torch.zeros(*shape, config.latent_rank, device=device)
        self.rope_key = torch.zeros(*shape, config.rope_dim, device=device)
        self.index_key = torch.zeros(*shape, config.index_dim, device=device)

    def step(self, embeddings: Tensor, tokens: Tokens, choices: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run tokens with embeddings [tokens, hidden]; returns the named intermediate results."""
        trace: dict[str, Tensor] = {}
        streams = embeddings.float().unsqueeze(1).expand(-1, self.config.num_streams, -1)
        for name, sublayer in (("attention", self._attention), ("moe", self._moe)):
            flat = streams.flatten(1)
            projected = flat @ self.weights[f"{name}_mix"].T
            projected = projected * (flat.square().mean(-1, keepdim=True) + self.config.eps).rsqrt()
            scales, bases = self.weights[f"{name}_mix_scales"], self.weights[f"{name}_mix_bases"]
            pre, post, stream_mix = mixing(projected, scales, bases, self.config)
            trace[f"{name} mixes"] = torch.cat([pre, post, stream_mix.flatten(1)], dim=1)
            x = rms_norm(mixed_in(streams, pre), self.config.eps)
            streams = mixed_out(sublayer(x, tokens, choices, trace), post, stream_mix, streams)
        trace["streams"] = streams
        return trace

    def _attention(self, x: Tensor, tokens: Tokens, choices: dict[str, Tensor], trace: dict[str, Tensor]) -> Tensor:
        c, w, at = self.config, self.weights, (tokens.sequence, tokens.position)
        compressed = rms_norm(x @ w["query_down"].T, c.eps)
        query = (compressed @ w["query_up"].T).view(-1, c.num_heads, c.query_dim)
        query = torch.cat([query[..., : c.nope_dim], rotate(query[..., c.nope_dim :], tokens.position)], dim=-1)
        latent, rope_key = (x @ w["latent_down"].T).split([c.latent_rank, c.rope_dim], dim=-1)
        self.latent[at] = rms_norm(latent, c.eps)
        self.rope_key[at] = rotate(rope_key, tokens.position)
        self.index_key[at] = x @ w["index_key"].T

        index_query = (compressed @ w["index_query"].T).view(-1, c.index_heads, c.index_dim)
        length = int(tokens.position.max()) + 1
        products = torch.einsum("thd,tjd->thj", index_query, self.index_key[tokens.sequence, :length]).relu()
        logits = torch.einsum("th,thj->tj", x @ w["index_weight"].T, products)
        visible = torch.arange(length, device=x.device) <= tokens.position.unsqueeze(1)
        trace["query"], trace["latent cache"] = query, torch.cat([self.latent[at], self.rope_key[at]], dim=-1)
        trace["index logits"] = torch.where(visible, logits, 0)
        trace["chosen tokens"] = largest(logits, tokens.position, c.index_topk)

        chosen = choices["chosen tokens"]
        gathered = tokens.sequence.unsqueeze(1), chosen.clamp(min=0)
        attended = latent_attention(query, self.latent[gathered], self.rope_key[gathered], chosen >= 0, w, c)
        trace["attention output"] = attended @ w["attention_out"].T
        return trace["attention output"]

    def _moe(self, x: Tensor, tokens: Tokens, choices: dict[str, Tensor], trace: dict[str, Tensor]) -> Tensor:
        c, w = self.config, self.weights
        scores = torch.nn.functional.softplus(x @ w["gate"].T).sqrt()
        trace["chosen experts"] = (scores + w["gate_bias"]).topk(c.num_active, dim=1).indices
        chosen = choices["chosen experts"]
        weight = scores.gather(1, chosen)
        weight = weight / weight.sum(1, keepdim=True) * c.routed_scaling_factor
        trace["expert weights"] = weight
        output = swiglu(x @ w["shared_up"].T) @ w["shared_down"].T
        for expert in range(c.num_experts):
            share = torch.where(chosen == expert, weight, 0).sum(1, keepdim=True)
            output = output + share * (swiglu(x @ w["experts_up"][expert].T) @ w["experts_down"][expert].T)
        trace["moe output"] = output
        return output
