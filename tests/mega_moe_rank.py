"""One rank of tests/test_mega_moe_ranks.py: run as `python mega_moe_rank.py <rank> <world> <port>`; asserts and exits.

Every rank builds the whole problem from one seed, so that it can compute the expected result alone.
"""

from __future__ import annotations

import datetime
import sys

import torch
import torch.distributed as dist

import unikernels as uk
from unikernels.errors import InvalidArgumentError, UnikernelsError
from unikernels.operations.mega_mhc import shared_scale_rows
from unikernels.utils import pack_ue8m0_to_int, per_token_cast_to_fp4, per_token_cast_to_fp8

EXPERTS, TOPK, HIDDEN, WIDTH = 8, 3, 256, 128


def stored(values, kind):
    """Return values as (data, packed scales), or in bf16."""
    if kind == "bf16":
        return values.bfloat16()
    cast = per_token_cast_to_fp4 if kind == "fp4" else per_token_cast_to_fp8
    data, sf = cast(values.flatten(0, -2), True, 32)
    shape = values.shape[:-1]
    return data.view(*shape, -1), pack_ue8m0_to_int(sf).view(*shape, -1)


class Layer:
    """All tokens and all experts of a layer, and how tokens are spread over ranks."""

    def __init__(self, mma_type, counts, num_shared=0, clamp=None):
        self.mma_type, self.counts, self.num_shared, self.clamp = mma_type, counts, num_shared, clamp
        generator = torch.Generator().manual_seed(7)
        total = sum(counts)
        act_kind, weight_kind = {"fp8xfp4": ("fp8", "fp4"), "fp8xfp8": ("fp8", "fp8"), "bf16xbf16": ("bf16",) * 2}[
            mma_type
        ]

        def randn(*shape):
            return torch.randn(shape, generator=generator)

        x = stored(randn(total, HIDDEN), act_kind)
        self.x, self.x_sf = (x, None) if act_kind == "bf16" else x
        self.topk_idx = torch.randint(-1, EXPERTS, (total, TOPK), generator=generator)
        self.topk_weights = torch.rand(total, TOPK, generator=generator)
        self.l1 = stored(randn(EXPERTS, 2 * WIDTH, HIDDEN) / 16, weight_kind)
        self.l2 = stored(randn(EXPERTS, HIDDEN, WIDTH) / 11, weight_kind)
        self.shared = ()
        if num_shared:
            shared = num_shared * WIDTH
            self.shared = (
                stored(randn(2 * shared, HIDDEN) / 16, act_kind),
                stored(randn(HIDDEN, shared) / 11, act_kind),
            )

    def run(self, group, tokens, experts, num_calls=1):
        """Return (y, stats, buffer) of a call with a slice of the tokens and of the experts."""
        buffer = uk.get_symm_buffer_for_mega_moe(
            group,
            EXPERTS,
            max(*self.counts, tokens.stop - tokens.start),
            TOPK,
            HIDDEN,
            WIDTH,
            self.num_shared,
            mma_type=self.mma_type,
        )
        weights = uk.transform_weights_for_mega_moe(part(self.l1, experts), part(self.l2, experts))
        options = {"activation_clamp": self.clamp}
        if self.num_shared:
            shared = uk.transform_weights_for_mega_moe(*self.shared)
            options |= {"shared_l1_weights": shared[0], "shared_l2_weights": shared[1]}
        stats = torch.full((experts.stop - experts.start,), 100, dtype=torch.int32)
        function = uk.bf16_mega_moe if self.mma_type == "bf16xbf16" else uk.fp8_fp4_mega_moe
        for _ in range(num_calls):
            self.fill(buffer, tokens)
            y = torch.full((tokens.stop - tokens.start, HIDDEN), 7.0, dtype=torch.bfloat16)
            function(y, *weights, buffer, cumulative_local_expert_recv_stats=stats, **options)
        return y, stats, buffer, weights

    def fill(self, buffer, tokens):
        """Write the inputs of a call; whatever lies behind them is garbage."""
        count = tokens.stop - tokens.start
        buffer.topk_idx.fill_(EXPERTS + 5)
        buffer.x[:count], buffer.topk_idx[:count] = self.x[tokens], self.topk_idx[tokens]
        buffer.topk_weights[:count] = self.topk_weights[tokens]
        if self.x_sf is not None:
            buffer.x_sf[:count] = self.x_sf[tokens]
            if self.num_shared:
                tile = uk.get_block_m_for_mega_moe(
                    buffer.num_ranks, EXPERTS, buffer.num_max_tokens_per_rank, count, TOPK, self.mma_type
                )
                rows = shared_scale_rows(count, tile, torch.device("cpu"))
                buffer.shared_l1_acts_sf[rows] = self.x_sf[tokens]


def part(weights, experts):
    return weights[experts] if isinstance(weights, torch.Tensor) else tuple(one[experts] for one in weights)


def check_results(group, layer, num_calls=1):
    """Compare all ranks' results with one process that has all tokens and all experts."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    start = sum(layer.counts[:rank])
    tokens, local = slice(start, start + layer.counts[rank]), EXPERTS // ranks
    experts = slice(rank * local, (rank + 1) * local)
    y, stats, buffer, _ = layer.run(group, tokens, experts, num_calls)
    alone, all_stats, _, _ = layer.run(None, slice(0, sum(layer.counts)), slice(0, EXPERTS), num_calls)
    assert alone.float().std() > 0.1
    assert torch.equal(y, alone[tokens]), (layer.mma_type, rank, ranks, (y.float() - alone[tokens].float()).abs().max())
    assert torch.equal(stats, all_stats[experts]), (stats, all_stats)
    assert len(buffer.handle.buffer_ptrs) == ranks
    assert buffer.handle.buffer_ptrs[rank] == buffer.buffer.data_ptr()
    buffer.destroy()
    with uk.use_backend("reference"):
        expected, expected_stats, _, _ = layer.run(group, tokens, experts, num_calls)
    assert uk.testing.calc_diff(y.float(), expected.float()) < 1e-6
    assert torch.equal(stats, expected_stats)


def raised(function):
    """Return the error of a call; a call without one fails the test."""
    try:
        function()
    except UnikernelsError as error:
        return error
    raise AssertionError("the call must be refused")


def check_refusals(group):
    """One rank's mistake is an error on every rank, and the next right call works."""
    rank = dist.get_rank(group)
    layer = Layer("fp8xfp8", (4, 4, 4, 4))
    local = slice(2 * rank, 2 * rank + 2)
    first, _, buffer, weights = layer.run(group, slice(4 * rank, 4 * rank + 4), local)

    def call(y=None, **options):
        layer.fill(buffer, slice(4 * rank, 4 * rank + 4))
        if rank == 2 and options.pop("has_bad_routing", False):
            buffer.topk_idx[1, 2] = EXPERTS
        options.pop("has_bad_routing", None)
        y = torch.empty(4, HIDDEN, dtype=torch.bfloat16) if y is None else y
        uk.fp8_fp4_mega_moe(y, *weights, buffer, **options)
        return y

    error = raised(lambda: call(torch.empty(12 if rank == 1 else 4, HIDDEN, dtype=torch.bfloat16)))
    assert isinstance(error, InvalidArgumentError) == (rank == 1), error
    assert "y has 12 rows (tokens), sym_buffer holds at most 8 per rank" in str(error)
    assert rank == 1 or "because another rank refused its call. rank 1: fp8_fp4_mega_moe" in str(error)
    assert torch.equal(call(), first)

    error = raised(lambda: call(has_bad_routing=True))
    assert "sym_buffer.topk_idx[1, 2] is 8, expected -1 (no expert) or an expert 0..7" in str(error), error
    error = raised(lambda: call(recipe=(1, 1, 128)))  # the same mistake everywhere
    assert "recipe is (1, 1, 128)" in str(error)
    error = raised(lambda: call(activation_clamp=1.0 if rank == 3 else 2.0))
    assert "activation_clamp (inf = None) differs between ranks: rank 0 2.0, rank 1 2.0, rank 2 2.0, rank 3 1.0" in str(
        error
    )

    # A mistake that only one rank makes: it raises at once, and the caller's own collectives stay in step.
    if rank == 1:
        assert "recipe" in str(raised(lambda: call(recipe=(1, 1, 64))))
    dist.barrier(group)
    if rank != 1:
        assert "rank 1: fp8_fp4_mega_moe: recipe is (1, 1, 64)" in str(raised(call))
    assert torch.equal(call(), first)

    sizes = (8, TOPK, HIDDEN if rank else 2 * HIDDEN, WIDTH)
    error = raised(lambda: uk.SymmBuffer(group, EXPERTS, *sizes))
    assert "SymmBuffer: hidden differs between ranks: rank 0 512, rank 1 256" in str(error), error
    error = raised(lambda: uk.SymmBuffer(group, EXPERTS, 8, TOPK, HIDDEN, WIDTH if rank else 100))
    assert "intermediate_hidden is 100, expected a multiple of 128" in str(error), error
    second = uk.SymmBuffer(group, EXPERTS, 8, TOPK, HIDDEN, WIDTH, mma_type="fp8xfp8", base=buffer)
    assert second.x.data_ptr() == buffer.x.data_ptr()

    def other_buffer():
        layer.fill(buffer, slice(4 * rank, 4 * rank + 4))
        uk.fp8_fp4_mega_moe(torch.empty(4, HIDDEN, dtype=torch.bfloat16), *weights, second if rank == 0 else buffer)

    assert "sym_buffer (number of the buffer) differs between ranks" in str(raised(other_buffer))
    error = raised(lambda: uk.SymmBuffer(group, EXPERTS, 8, TOPK, HIDDEN, WIDTH) if rank == 0 else call())
    assert "the ranks make different calls: rank 0 SymmBuffer, rank 1 fp8_fp4_mega_moe" in str(error), error


def main():
    rank, world, port = (int(one) for one in sys.argv[1:])
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world, timeout=timeout)
    pairs = [dist.new_group([first, first + 1], timeout=timeout) for first in range(0, world, 2)]
    singles = [dist.new_group([one], timeout=timeout) for one in range(world)]
    everyone = dist.group.WORLD
    for mma_type in ("fp8xfp4", "fp8xfp8", "bf16xbf16"):
        check_results(everyone, Layer(mma_type, (5, 0, 40, 3)), num_calls=2)
        check_results(pairs[rank // 2], Layer(mma_type, (3, 21), num_shared=1, clamp=1.0))
    check_results(singles[rank], Layer("fp8xfp4", (6,)))
    check_results(everyone, Layer("fp8xfp4", (0, 0, 0, 2)))  # almost idle
    check_refusals(everyone)
    error = raised(lambda: uk.SymmBuffer(pairs[1 - rank // 2], EXPERTS, 8, TOPK, HIDDEN, WIDTH))
    assert "not a member of group" in str(error)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
