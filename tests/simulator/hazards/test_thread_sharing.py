"""Threads of one SIMT function that share words and bytes of the UB between two barriers: who disturbs whom."""

from __future__ import annotations

import itertools

import pytest
import torch

from unikernels.backends.ascend.simulator import RaceError

SIZES = (1, 2, 4, 8)
CASES = "".join(
    f"case {size}: if (write) *(__ubuf__ {kind}*)(u + offset) = ({kind})(7 * threadIdx.x + 3); "
    f"else seen += *(__ubuf__ {kind}*)(u + offset); break;"
    for size, kind in zip(SIZES, ("uint8_t", "uint16_t", "uint32_t", "uint64_t"), strict=True)
)
# Three rounds of two threads, read from G: size (0 = nothing), offset and direction; a barrier after the first round.
FUNCTIONS = f"""
__simt_vf__ __launch_bounds__(2) inline void f(__ubuf__ uint8_t* u, __gm__ int32_t* g) {{
  uint64_t seen = 0;
  for (int32_t round = 0; round < 3; ++round) {{
    __gm__ int32_t* one = g + (round * 2 + threadIdx.x) * 3;
    const int32_t size = one[0], offset = one[1], write = one[2];
    switch (size) {{ {CASES} default: break; }}
    if (round == 0) asc_syncthreads();
  }}
  *(__ubuf__ uint8_t*)(u + 128 + threadIdx.x) = (uint8_t)seen;
}}
"""
BODY = """
  asc_copy_gm2ub_align((__ubuf__ uint8_t*)0, (uint8_t*)X, 1, 256, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_V, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_V, static_cast<event_t>(0));
  __ubuf__ uint8_t *u = (__ubuf__ uint8_t *)0;
  asc_vf_call<f>(cce::dim3(2), u, G);
"""
NOTHING = (0, 0, 0)


@pytest.fixture
def run(run_ascend):
    """run(thread 0, thread 1, thread 0, thread 1, ...): the rounds before and after the barrier."""

    def run(*accesses):
        rounds = torch.tensor([*accesses, *[NOTHING] * (6 - len(accesses))], dtype=torch.int32)
        run_ascend(BODY, {"G": rounds, "X": torch.arange(256, dtype=torch.uint8)}, kind="vector", functions=FUNCTIONS)

    return run


WRITES = [(1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize("sizes", list(itertools.product(SIZES, SIZES)), ids=str)
def test_overlapping_accesses_of_any_two_sizes_are_a_race(run, sizes):
    for first, second in WRITES:
        for offset in range(8 - 8 % sizes[1], 8 + sizes[0], sizes[1]):
            with pytest.raises(RaceError, match=r"thread \d of f (reads|writes) UB byte \d+, which thread \d "):
                run(NOTHING, NOTHING, (sizes[0], 8, first), NOTHING, NOTHING, (sizes[1], offset, second))


@pytest.mark.parametrize("sizes", list(itertools.product(SIZES, SIZES)), ids=str)
def test_neighbouring_accesses_of_any_two_sizes_are_none(run, sizes):
    for first, second in itertools.product((0, 1), repeat=2):
        behind = 8 + max(sizes)
        run(NOTHING, NOTHING, (sizes[0], 8, first), (sizes[1], behind, second), (sizes[0], 8, 1), (sizes[1], behind, 1))


@pytest.mark.parametrize("size", SIZES)
def test_what_several_threads_read_none_may_write(run, size):
    read = (size, 8, 0)
    run(NOTHING, NOTHING, read, (1, 8, 0), (1, 8, 0), read)
    with pytest.raises(RaceError, match=r"writes UB byte 8, which several threads read"):
        run(NOTHING, NOTHING, read, read, NOTHING, (size, 8, 1))


def test_a_barrier_forgets_words_and_bytes_alike(run):
    """Bytes recorded one by one before a barrier do not speak for their word after it, nor the other way round."""
    for before, after in itertools.product(((1, 9, 1), (4, 8, 1)), repeat=2):
        run(before, NOTHING, NOTHING, after)
        with pytest.raises(RaceError, match="which thread 0 "):
            run(before, NOTHING, (4, 8, 1), NOTHING, NOTHING, (1, 11, 0))


def test_races_are_found_after_a_million_barriers(run_ascend):
    """Barrier intervals are numbered with 20 bits; when the numbers start again, old records must not count."""
    functions = """
__simt_vf__ __launch_bounds__(2) inline void f(__ubuf__ float* u, int32_t shift) {
  for (int32_t i = 0; i < 1050000; ++i) {
    if (i % 2 == (int32_t)threadIdx.x) u[0] += 1.0f;
    asc_syncthreads();
  }
  u[threadIdx.x] = 1.0f;
  u[2] = u[(threadIdx.x + shift) % 2];
}
"""
    call = "__ubuf__ float *u = (__ubuf__ float *)0; asc_vf_call<f>(cce::dim3(2), u, {shift});"
    load = BODY.split("__ubuf__ uint8_t *u")[0]
    tensors = {"X": torch.zeros(256, dtype=torch.uint8)}
    run_ascend(load + call.format(shift=0), tensors, kind="vector", functions=functions)
    with pytest.raises(RaceError, match=r"writes UB byte 4, which thread 0 reads"):
        run_ascend(load + call.format(shift=1), tensors, kind="vector", functions=functions)
