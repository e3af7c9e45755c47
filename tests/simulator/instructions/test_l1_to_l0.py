"""L1 to L0A/L0B, straight and transposing, and L1 to scale slots, against the formulas of c.2 to c.4."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from unikernels.backends.ascend.simulator import CapacityError, MisalignedError

# The first 128 KB of L1 are loaded with known bytes: 4096 rows of one 32-byte unit.
LOAD = """
  asc_set_gm2l1_nz_para(1, 1, 4096, 0);
  asc_copy_gm2l1_nd2nz((int8_t*)0, (int8_t*)X, 32, static_cast<asc_load_l2_cache_mode>(0), 4096, 32, 0, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));
  asc_sync_wait(PIPE_MTE2, PIPE_MTE1, static_cast<event_t>(0));
"""
SOURCE = np.random.default_rng(11).integers(0, 256, 131072, dtype=np.uint8)
WIDTHS = {"float4_e2m1x2_t": 4, "float8_e4m3_t": 8, "bfloat16_t": 16, "float": 32}


def element(memory, byte, index, bits):
    if bits == 4:
        return memory[byte + index // 2] >> (index % 2 * 4) & 15
    return memory[byte + index * bits // 8 : byte + (index + 1) * bits // 8].copy()


def put(memory, byte, index, bits, value):
    if bits == 4:
        shift = index % 2 * 4
        memory[byte + index // 2] = memory[byte + index // 2] & (0xF0 >> shift) | value << shift
    else:
        memory[byte + index * bits // 8 : byte + (index + 1) * bits // 8] = value


def straight(out, p):
    m_start, k_start, m_step, k_step, src_stride, dst_stride, src, dst = p
    for k in range(k_step):
        for m in range(m_step):
            at = src + ((k_start + k) * src_stride + m_start + m) * 512
            to = dst + (k * dst_stride + m) * 512
            out[to : to + 512] = SOURCE[at : at + 512]


def transposing(out, p, bits):
    m_start, k_start, m_step, k_step, src_stride, dst_stride, src, dst = p
    c0 = 256 // bits
    for kk in range(16 * m_step):
        for x in range(c0 * k_step):
            at = src + (((k_start + x // c0) * src_stride + m_start) * 16 + kk) * 32
            to = dst + ((kk // c0) * dst_stride + x // 16) * 512 + (x % 16) * 32
            put(out, to, kk % c0, bits, element(SOURCE, at, x % c0, bits))


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("ctype", list(WIDTHS))
@pytest.mark.parametrize("transpose", [False, True], ids=["straight", "transposing"])
def test_random_loads_follow_the_formula(run_ascend, ctype, transpose, which):
    bits = WIDTHS[ctype]
    rng = random.Random(f"{ctype}{transpose}{which}")
    unit_m = {4: 4, 8: 2}.get(bits, 1) if transpose else 1
    unit_k = 2 if transpose and bits == 32 else 1
    calls, expected = [], np.full(65536, 0xFF, np.uint8)
    base = 0
    for _ in range(5):
        m_step, k_step = unit_m * rng.randrange(1, 3), unit_k * rng.randrange(1, 3)
        m_start, k_start = rng.randrange(0, 3), rng.randrange(0, 3)
        src_stride = m_start + m_step + rng.randrange(0, 3)
        c0 = 256 // bits
        groups, columns = ((16 * m_step + c0 - 1) // c0, c0 * k_step // 16) if transpose else (k_step, m_step)
        dst_stride = columns + rng.randrange(0, 2)
        p = (m_start, k_start, m_step, k_step, src_stride, dst_stride, 512 * rng.randrange(0, 16), base)
        base += groups * dst_stride * 512
        transposing(expected, p, bits) if transpose else straight(expected, p)
        name = f"asc_copy_l12l0{which}" + ("_transpose" if transpose else "")
        calls.append(f"{name}(({ctype}*){p[7]}, ({ctype}*){p[6]}, {', '.join(map(str, p[:6]))});")
    assert base <= 65536
    report = run_ascend(LOAD + "\n".join(calls), {"X": torch.from_numpy(SOURCE)}, memories=True)
    assert np.array_equal(np.frombuffer(report.memories["L0" + which.upper()], np.uint8), expected)


@pytest.mark.parametrize("which", ["a", "b"])
def test_scale_slots_receive_blocks_row_block_by_row_block(run_ascend, which):
    call = f"asc_copy_l12l0{which}_mx(64, (fp8_e8m0_t*)1024, 1, 2, 3, 2, 5, 4);"
    report = run_ascend(LOAD + call, {"X": torch.from_numpy(SOURCE)}, memories=True)
    expected = np.full(4096, 0xFF, np.uint8)
    for x in range(3):
        for y in range(2):
            at, to = 1024 + ((1 + x) * 5 + 2 + y) * 32, 64 + (x * 4 + y) * 32
            expected[to : to + 32] = SOURCE[at : at + 32]
    assert np.array_equal(np.frombuffer(report.memories[f"L0{which.upper()}_MX"], np.uint8), expected)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ("asc_copy_l12l0a((half*)256, (half*)0, 0, 0, 1, 1, 1, 1);", MisalignedError, "0x100 in L0A is not a multiple of 512"),
        ("asc_copy_l12l0a((half*)65024, (half*)0, 0, 0, 2, 1, 2, 2);", CapacityError, "exceeds the 65536 bytes of L0A"),
        ("asc_copy_l12l0b((half*)0, (half*)524288, 0, 0, 1, 1, 1, 1);", CapacityError, "exceeds the 524288 bytes of L1"),
        ("asc_copy_l12l0a_transpose((int8_t*)0, (int8_t*)0, 0, 0, 1, 1, 1, 2);", MisalignedError, "squares of 2 row blocks, but m_step is 1"),
        ("asc_copy_l12l0a_transpose((float*)0, (float*)0, 0, 0, 1, 1, 1, 2);", MisalignedError, "squares of 2 column groups"),
        ("asc_copy_l12l0a_mx(4080, (fp8_e8m0_t*)0, 0, 0, 1, 1, 1, 1);", MisalignedError, "0xff0 in L0A_MX"),
        ("asc_copy_l12l0b_mx(4096, (fp8_e8m0_t*)0, 0, 0, 1, 1, 1, 1);", CapacityError, "4096 bytes of L0B_MX"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(run_ascend, call, error, text):
    with pytest.raises(error, match=text):
        run_ascend(LOAD + call, {"X": torch.from_numpy(SOURCE)})
