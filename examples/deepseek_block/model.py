"""A DeepSeek-V3-style decoder block written against the public API of unikernels, and nothing of any backend.

Prefill uses contiguous grouped GEMMs and contiguous MQA logits, decoding masked grouped GEMMs and a paged cache. The
float32 version to compare with is in reference.py, the layers without a kernel in layers.py.
"""

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

import unikernels as uk

#: One scale per token and 128 columns of activations, per 128 x 128 block of weights.
RECIPE = (1, 128, 128)
GRAN_K = 128
#: Scales of the indexer cover 32 elements; up to four exponents make one int32 word per token.
INDEX_GRAN_K = 32
WORD_BYTES = 4

Pair = tuple[Tensor, Tensor]


def quantised(x: Tensor) -> Pair:
    """Return (E4M3, scales) of activations; powers of two are exact in the scale layout of every backend."""
    return uk.per_token_cast_to_fp8(x, use_ue8m0=True, gran_k=GRAN_K)


class Fp8Linear:
    """x @ weight.T with both sides in block-scaled FP8."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = uk.per_block_cast_to_fp8(weight, use_ue8m0=True, gran_k=GRAN_K)

    def __call__(self, x: Tensor) -> Tensor:
        d = torch.empty(x.shape[0], self.weight[0].shape[0], dtype=torch.bfloat16, device=x.device)
        uk.fp8_gemm_nt(quantised(x), self.weight, d, recipe=RECIPE)
        return d


class HyperConnection:
    """Mixes the residual streams into one sublayer input, and the sublayer's output back into the streams."""

    def __init__(self, name: str, weights: Weights, config: Config) -> None:
        self.fn = weights[f"{name}_mix"]
        self.scales, self.bases = weights[f"{name}_mix_scales"], weights[f"{name}_mix_bases"]
        self.config = config

    def mixes(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project all streams [tokens, n, hidden] at once; normalisation needs their sum of squares."""
        flat = streams.flatten(1)
        projected = torch.empty(flat.shape[0], self.fn.shape[0], device=flat.device)
        sqr_sum = torch.empty(flat.shape[0], device=flat.device)
        uk.tf32_hc_prenorm_gemm(flat, self.fn, projected, sqr_sum)
        inverse_rms = (sqr_sum / flat.shape[1] + self.config.eps).rsqrt()
        return mixing(projected * inverse_rms.unsqueeze(1), self.scales, self.bases, self.config)


class IndexCache:
    """Pages of quantised indexer keys: per page first the data of all tokens, then their scale words."""

    def __init__(self, config: Config, num_sequences: int, device: torch.device) -> None:
        self.config = config
        pages_per_sequence = -(-config.max_length // config.page_size)
        num_pages = num_sequences * pages_per_sequence
        width = config.index_dim + WORD_BYTES
        self.pages = torch.zeros(num_pages, config.page_size, 1, width, dtype=torch.uint8, device=device)
        # Pages of a sequence lie apart, as an allocator would leave them.
        pages = torch.arange(num_pages, dtype=torch.int32, device=device)
        self.block_table = pages.view(pages_per_sequence, num_sequences).T.contiguous()

    def write(self, tokens: Tokens, keys: Pair) -> None:
        """Store keys (data [tokens, dim], words [tokens]) of some tokens."""
        size, dim = self.config.page_size, self.config.index_dim
        flat = self.pages.view(self.pages.shape[0], -1)
        page = self.block_table[tokens.sequence, tokens.position // size].long().unsqueeze(1)
        slot = (tokens.position % size).unsqueeze(1)
        data, words = (one.contiguous().view(torch.uint8).view(len(slot), -1) for one in keys)
        flat[page, slot * dim + torch.arange(dim, device=flat.device)] = data
        flat[page, size * dim + slot * WORD_BYTES + torch.arange(WORD_BYTES, device=flat.device)] = words


class Indexer:
    """Scores every earlier token for every query; only the best are attended to."""

    def __init__(self, weights: Weights, config: Config, num_sequences: int) -> None:
        self.config = config
        self.query, self.key = Fp8Linear(weights["index_query"]), Fp8Linear(weights["index_key"])
        self.head_weight = weights["index_weight"].bfloat16()
        self.cache = IndexCache(config, num_sequences, self.head_weight.device)

    def __call__(self, x: Tensor, compressed_query: Tensor, tokens: Tokens, is_prefill: bool) -> Tensor:
        """Return logits [tokens, longest context]; columns a token may not see are undefined."""
        c = self.config
        query = self.query(compressed_query).view(-1, c.index_dim)
        data, words = uk.per_token_cast_to_fp8(query, True, INDEX_GRAN_K, use_packed_ue8m0=True)
        query_pair = data.view(-1, c.index_heads, c.index_dim), words.view(-1, c.index_heads)
        key_data, key_words = uk.per_token_cast_to_fp8(self.key(x), True, INDEX_GRAN_K, use_packed_ue8m0=True)
        keys = key_data, key_words.flatten()
        self.cache.write(tokens, keys)
        head_weight = torch.empty(x.shape[0], c.index_heads, dtype=torch.bfloat16, device=x.device)
        uk.bf16_gemm_nt(x, self.head_weight, head_weight)
        length = int(tokens.position.max()) + 1
        if is_prefill:
            # The prompts stand one after another: a token sees from its prompt's first token up to itself.
            end = torch.arange(1, x.shape[0] + 1, dtype=torch.int32, device=x.device)
            start = end - 1 - tokens.position.int()
            return uk.fp8_fp4_mqa_logits(query_pair, keys, head_weight, start, end, max_seqlen_k=length)
        lengths = (tokens.position + 1).int().unsqueeze(1)
        indices = tokens.sequence.int()
        schedule = uk.get_paged_mqa_logits_metadata(lengths, c.page_size, uk.get_num_sms(), indices)
        paged_query = query_pair[0].unsqueeze(1), query_pair[1].unsqueeze(1)
        return uk.fp8_fp4_paged_mqa_logits(
            paged_query,
            self.cache.pages,
            head_weight,
            lengths,
            self.cache.block_table,
            schedule,
            length,
            indices=indices,
        )


class Experts:
    """Routed experts as grouped GEMMs: contiguous groups for many tokens, one padded slab per expert for few."""

    def __init__(self, weights: Weights, config: Config) -> None:
        self.config = config
        self.up, self.down = (_grouped_weight(weights[name]) for name in ("experts_up", "experts_down"))

    def contiguous(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Return each chosen expert's output [tokens, active, hidden]; rows of an expert follow one another."""
        flat = chosen.flatten()
        alignment = uk.get_mk_alignment_for_contiguous_layout()
        counts = torch.bincount(flat, minlength=self.config.num_experts)
        aligned = (counts + alignment - 1) // alignment * alignment
        starts = aligned.cumsum(0) - aligned
        rows = starts[flat] + _rank_in_expert(flat)
        ends = (starts + counts).int()
        num_rows = int(aligned.sum())

        def grouped(a: Pair, weight: Pair) -> Tensor:
            d = torch.empty(num_rows, weight[0].shape[1], dtype=torch.bfloat16, device=x.device)
            uk.m_grouped_fp8_gemm_nt_contiguous(a, weight, d, ends, recipe=RECIPE, use_psum_layout=True)
            return d

        hidden = grouped(_scattered(quantised(_repeated(x, chosen)), rows, (num_rows,)), self.up)
        return grouped(quantised(swiglu(hidden)), self.down)[rows].view(*chosen.shape, -1)

    def masked(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Return the same from slabs with one row for each token that asks the expert; no row is moved to pack them."""
        flat, (num_experts, max_rows) = chosen.flatten(), (self.config.num_experts, chosen.shape[0])
        counts = torch.bincount(flat, minlength=num_experts).int()
        expected = -(-flat.numel() // num_experts)
        rows = flat * max_rows + _rank_in_expert(flat)

        def grouped(a: Pair, weight: Pair) -> Tensor:
            d = torch.zeros(num_experts, max_rows, weight[0].shape[1], dtype=torch.bfloat16, device=x.device)
            uk.m_grouped_fp8_gemm_nt_masked(a, weight, d, counts, expected, recipe=RECIPE)
            return d

        slabs = (num_experts, max_rows)
        hidden = swiglu(grouped(_scattered(quantised(_repeated(x, chosen)), rows, slabs), self.up))
        data, scales = quantised(hidden.flatten(0, 1))
        output = grouped((data.view(*slabs, -1), scales.view(*slabs, -1)), self.down)
        return output.flatten(0, 1)[rows].view(*chosen.shape, -1)


def _grouped_weight(weight: Tensor) -> Pair:
    pairs = [uk.per_block_cast_to_fp8(one, use_ue8m0=True, gran_k=GRAN_K) for one in weight]
    return torch.stack([data for data, _ in pairs]), torch.stack([scales for _, scales in pairs])


def _repeated(x: Tensor, chosen: Tensor) -> Tensor:
    return x.repeat_interleave(chosen.shape[1], dim=0)


def _rank_in_expert(experts: Tensor) -> Tensor:
    """Return how many earlier entries of a flat list name the same expert."""
    order = experts.argsort(stable=True)
    ranked = experts[order]
    first = torch.searchsorted(ranked, ranked)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - first
    return rank


def _scattered(pair: Pair, rows: Tensor, leading: tuple[int, ...]) -> Pair:
    """Place rows of a quantised matrix in a larger one whose other rows are zero with scale 1."""
    data, scales = pair
    num_rows = torch.Size(leading).numel()
    wide = torch.zeros(num_rows, data.shape[1], dtype=torch.uint8, device=data.device)
    wide[rows] = data.view(torch.uint8)
    wide_scales = torch.ones(num_rows, scales.shape[1], device=data.device)
    wide_scales[rows] = scales
    return wide.view(data.dtype).view(*leading, -1), wide_scales.view(*leading, -1)


class DecoderBlock:
    """Latent attention over indexed tokens, then a mixture of experts, joined by hyper-connections."""

    def __init__(self, weights: Weights, config: Config, num_sequences: int) -> None:
        self.config = config
        projections = ("query_down", "query_up", "latent_down", "attention_out", "shared_up", "shared_down")
        self.linear = {name: Fp8Linear(weights[name]) for name in projections}
        self.mixers = {name: HyperConnection(name, weights, config) for name in ("attention", "moe")}
        self.indexer = Indexer(weights, config, num_sequences)
        self.experts = Experts(weights, config)
        self.gate, self.gate_bias = weights["gate"].bfloat16(), weights["gate_bias"]
        self.weights = weights
        shape = (num_sequences, config.max_length, config.latent_rank + config.rope_dim)
        self.cache = torch.zeros(shape, dtype=torch.bfloat16, device=self.gate.device)

    def step(self, embeddings: Tensor, tokens: Tokens, is_prefill: bool) -> dict[str, Tensor]:
        """Run tokens with embeddings [tokens, hidden] bf16; returns the named intermediate results."""
        trace: dict[str, Tensor] = {}
        streams = embeddings.unsqueeze(1).repeat(1, self.config.num_streams, 1)
        for name, sublayer in (("attention", self._attention), ("moe", self._moe)):
            pre, post, stream_mix = self.mixers[name].mixes(streams)
            trace[f"{name} mixes"] = torch.cat([pre, post, stream_mix.flatten(1)], dim=1)
            x = rms_norm(mixed_in(streams, pre), self.config.eps)
            streams = mixed_out(sublayer(x, tokens, is_prefill, trace), post, stream_mix, streams)
        trace["streams"] = streams
        return trace

    def _attention(self, x: Tensor, tokens: Tokens, is_prefill: bool, trace: dict[str, Tensor]) -> Tensor:
        c = self.config
        compressed = rms_norm(self.linear["query_down"](x), c.eps)
        query = self.linear["query_up"](compressed).view(-1, c.num_heads, c.query_dim)
        query = torch.cat([query[..., : c.nope_dim], rotate(query[..., c.nope_dim :], tokens.position)], dim=-1)
        latent, rope_key = self.linear["latent_down"](x).split([c.latent_rank, c.rope_dim], dim=-1)
        entry = torch.cat([rms_norm(latent, c.eps), rotate(rope_key, tokens.position)], dim=-1)
        self.cache[tokens.sequence, tokens.position] = entry

        logits = self.indexer(x, compressed, tokens, is_prefill)
        visible = torch.arange(logits.shape[1], device=x.device) <= tokens.position.unsqueeze(1)
        trace["query"], trace["latent cache"] = query, entry
        trace["index logits"] = torch.where(visible, logits, 0)
        chosen = trace["chosen tokens"] = largest(logits, tokens.position, c.index_topk)

        cached = self.cache[tokens.sequence.unsqueeze(1), chosen.clamp(min=0)]
        latents, rope_keys = cached.split([c.latent_rank, c.rope_dim], dim=-1)
        attended = latent_attention(query, latents, rope_keys, chosen >= 0, self.weights, c)
        trace["attention output"] = self.linear["attention_out"](attended.bfloat16())
        return trace["attention output"]

    def _moe(self, x: Tensor, tokens: Tokens, is_prefill: bool, trace: dict[str, Tensor]) -> Tensor:
        c = self.config
        chosen, weight = uk.bf16_mega_gate(
            x, self.gate, c.num_active, use_shared_as_routed=False, num_shared_experts=0,
            routed_scaling_factor=c.routed_scaling_factor, ep_rank=0, bias=self.gate_bias,
        )  # fmt: skip
        trace["chosen experts"], trace["expert weights"] = chosen, weight
        outputs = self.experts.contiguous(x, chosen) if is_prefill else self.experts.masked(x, chosen)
        routed = (outputs.float() * weight.unsqueeze(-1)).sum(1)
        shared = self.linear["shared_down"](swiglu(self.linear["shared_up"](x)))
        trace["moe output"] = (routed + shared.float()).bfloat16()
        return trace["moe output"]
