"""GM to L1 copies and fills against the index formulas of the instruction reference (c.1), with random parameters."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from unikernels.backends.ascend.simulator import (
    CapacityError,
    MisalignedError,
    OutOfBoundsError,
    UnimplementedBuiltinError,
)

NZ = """
  for (int i = 0; i < {count}; ++i) {{
    const int* q = reinterpret_cast<const int*>(P) + i * 8;
    asc_set_gm2l1_nz_para(1, q[0], q[1], 0);
    {copy}(({ctype}*)((uint64_t)q[2]), ({ctype}*)(X + q[3]), (uint64_t)q[4], static_cast<asc_load_l2_cache_mode>(0), q[5], q[6], 0, 0);
    {between}
  }}
"""


def formula(memory, source, p, esize, column_major):
    """The loops of c.1, one 32-byte unit at a time."""
    n_stride, c0_stride, dst, src, pitch, n, d, _ = p
    c0 = 32 // esize
    for i in range(n):
        for group in range((d + c0 - 1) // c0):
            unit = np.zeros(32, np.uint8)
            for e in range(min(c0, d - group * c0)):
                k = group * c0 + e
                at = src + (k * pitch + i * esize if column_major else i * pitch + k * esize)
                unit[e * esize : (e + 1) * esize] = source[at : at + esize]
            at = dst + (i * n_stride + group * c0_stride) * 32
            memory[at : at + 32] = unit


@pytest.mark.parametrize("column_major", [False, True], ids=["nd2nz", "dn2nz"])
@pytest.mark.parametrize(("ctype", "esize"), [("int8_t", 1), ("int16_t", 2), ("float", 4)])
def test_random_copies_follow_the_formula(run_ascend, ctype, esize, column_major):
    rng = random.Random(f"{ctype}-{column_major}")
    source = np.random.default_rng(7).integers(0, 256, 1 << 16, dtype=np.uint8)
    parameters = []
    base = 0
    for _ in range(24):
        n, d = rng.randrange(1, 40), rng.randrange(1, 70)
        rows, width = (d, n) if column_major else (n, d)
        pitch = width * esize + rng.choice([0, 1, 5, 64])
        src = rng.randrange(0, 64)
        assert src + rows * pitch < 1 << 16
        c0_stride = n + rng.choice([0, 1, 7])
        groups = (d * esize + 31) // 32
        parameters.append([1, c0_stride, base, src, pitch, n, d, 0])
        base += ((groups - 1) * c0_stride + n + 3) * 32
    assert base <= 524288
    body = NZ.format(
        count=len(parameters),
        copy="asc_copy_gm2l1_dn2nz" if column_major else "asc_copy_gm2l1_nd2nz",
        ctype=ctype,
        between="",
    )
    tensors = {"P": torch.tensor(parameters, dtype=torch.int32), "X": torch.from_numpy(source)}
    report = run_ascend(body, tensors, memories=True)
    expected = np.full(524288, 0xFF, np.uint8)
    for p in parameters:
        formula(expected, source, p, esize, column_major)
    assert np.array_equal(np.frombuffer(report.memories["L1"], np.uint8), expected)


def test_fill_writes_repeat_blocks_and_skips_gaps(run_ascend):
    body = """
      asc_fill_l1((uint16_t*)64, 0x3f80u, { .repeat = 3, .blk_num = 2, .dst_gap = 5 });
      asc_fill_l1((uint32_t*)8192, 0x01020304u, { .repeat = 1, .blk_num = 1, .dst_gap = 0 });
      asc_fill_l1((uint32_t*)0, 0u, { .repeat = 0, .blk_num = 4, .dst_gap = 0 });
    """
    report = run_ascend(body, {"X": torch.zeros(4)}, memories=True)
    expected = np.full(524288, 0xFF, np.uint8)
    for r in range(3):
        expected[64 + r * 224 : 64 + r * 224 + 64].view(np.uint16)[:] = 0x3F80
    expected[8192:8224].view(np.uint32)[:] = 0x01020304
    assert np.array_equal(np.frombuffer(report.memories["L1"], np.uint8), expected)


COPY = "asc_set_gm2l1_nz_para(1, 1, 16, 0); asc_copy_gm2l1_nd2nz((half*){dst}, {src}, {pitch}, static_cast<asc_load_l2_cache_mode>(0), 16, 16, 0, {small});"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"src": "X + 1"}, OutOfBoundsError, r"nearest is 'X' \(512 bytes\): the access covers bytes 2 to 514"),
        ({"pitch": 34}, OutOfBoundsError, r"covers bytes 0 to 542"),
        ({"dst": 524288 - 256}, CapacityError, r"L1\[0x7ff00:0x80100\] exceeds the 524288 bytes of L1"),
        ({"dst": 48}, MisalignedError, r"0x30 in L1 is not a multiple of 32"),
        ({"small": 1}, UnimplementedBuiltinError, r"smallc0"),
    ],
)
def test_a_wrong_argument_is_named(run_ascend, arguments, error, text):
    tensors = {"X": torch.zeros(16, 16, dtype=torch.float16)}
    good = {"dst": 0, "src": "X", "pitch": 32, "small": 0}
    run_ascend(COPY.format(**good), tensors)
    with pytest.raises(error, match=text) as caught:
        run_ascend(COPY.format(**{**good, **arguments}), tensors)
    assert caught.value.builtin == "asc_copy_gm2l1_nd2nz"
    assert caught.value.line > 0


def test_a_negative_fill_extent_is_refused(run_ascend):
    with pytest.raises(OutOfBoundsError, match=r"repeat -2.*15-bit"):
        run_ascend(
            "asc_fill_l1((uint16_t*)0, 0u, { .repeat = static_cast<uint64_t>(-2), .blk_num = 1, .dst_gap = 0 });",
            {"X": torch.zeros(4)},
        )
