"""Copies between UB, GM and L1, with padding, strides, compact packing and atomics (c.7, c.9)."""

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
    UninitialisedError,
)

IN = "asc_copy_gm2ub_align((__ubuf__ uint8_t*)({dst} + ub), (uint8_t*)X + {src}, {bursts}, {length}, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), {src_stride}, {dst_stride});"
OUT = "asc_copy_ub2gm_align((uint8_t*)Y + {dst}, (__ubuf__ uint8_t*)({src} + ub), {bursts}, {length}, static_cast<asc_store_l2_cache_mode>(0), {dst_stride}, {src_stride});"
UB = "uint8_t* ub = (uint8_t*)((__ubuf__ uint8_t *)0);\n"
ORDER = "asc_sync_notify(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0));\n"


def test_random_strided_copies_in_and_out(run_ascend):
    rng = random.Random(1)
    x = np.random.default_rng(2).integers(0, 256, 1 << 16, dtype=np.uint8)
    ub, y = np.full(262144, 0xFF, np.uint8), np.zeros(1 << 17, np.uint8)
    calls_in, calls_out, base, out = [], [], 0, 0
    for _ in range(30):
        bursts, length = rng.randrange(1, 9), rng.randrange(1, 200)
        compact = rng.random() < 0.3
        dst_stride = length if compact else (length + 31) // 32 * 32 + 32 * rng.randrange(0, 3)
        src_stride = length + rng.randrange(0, 50)
        src = rng.randrange(0, 1000)
        calls_in.append(
            IN.format(dst=base, src=src, bursts=bursts, length=length, src_stride=src_stride, dst_stride=dst_stride)
        )
        gm_stride = length + rng.randrange(0, 20)
        calls_out.append(
            OUT.format(dst=out, src=base, bursts=bursts, length=length, dst_stride=gm_stride, src_stride=dst_stride)
        )
        for b in range(bursts):
            ub[base + b * dst_stride :][:length] = x[src + b * src_stride :][:length]
            y[out + b * gm_stride :][:length] = x[src + b * src_stride :][:length]
        base += ((bursts - 1) * dst_stride + length + 31) // 32 * 32
        out += bursts * gm_stride + rng.randrange(0, 7)
    tensors = {"X": torch.from_numpy(x), "Y": torch.zeros(1 << 17, dtype=torch.uint8)}
    report = run_ascend(UB + "\n".join(calls_in) + ORDER + "\n".join(calls_out), tensors, kind="vector", memories=True)
    assert np.array_equal(np.frombuffer(report.memories["UB of AIV0"], np.uint8), ub)
    assert np.array_equal(tensors["Y"].numpy(), y)


@pytest.mark.parametrize(
    ("ctype", "bits", "dtype"),
    [("uint8_t", 0x5A, np.uint8), ("uint16_t", 0x3F80, np.uint16), ("uint32_t", 0x7F800000, np.uint32)],
)
def test_pads_surround_each_burst(run_ascend, ctype, bits, dtype):
    esize = np.dtype(dtype).itemsize
    length = 5 * esize
    body = (
        UB
        + f"""
      asc_set_copy_pad_val(({ctype}){bits}u);
      asc_copy_gm2ub_align((__ubuf__ {ctype}*)(ub + 64), ({ctype}*)X, 3, {length}, 2, 3, 1, static_cast<asc_load_l2_cache_mode>(0), 100, 64);
    """
    )
    x = np.random.default_rng(4).integers(0, 256, 4096, dtype=np.uint8)
    report = run_ascend(body, {"X": torch.from_numpy(x)}, kind="vector", memories=True)
    expected = np.full(262144, 0xFF, np.uint8)
    for b in range(3):
        row = np.concatenate(
            [
                np.full(2, bits, dtype).view(np.uint8),
                x[b * 100 : b * 100 + length],
                np.full(3, bits, dtype).view(np.uint8),
            ]
        )
        expected[64 + b * 64 : 64 + b * 64 + row.size] = row
    assert np.array_equal(np.frombuffer(report.memories["UB of AIV0"], np.uint8), expected)


ATOMICS = {
    ("add", "float"): (torch.float32, np.add),
    ("max", "float16"): (torch.float16, np.maximum),
    ("min", "int16"): (torch.int16, np.minimum),
    ("add", "int8"): (torch.int8, np.add),
    ("add", "int32"): (torch.int32, np.add),
    ("add", "float16"): (torch.float16, np.add),
    ("max", "float"): (torch.float32, np.maximum),
    ("min", "int32"): (torch.int32, np.minimum),
    ("add", "bfloat"): (torch.bfloat16, None),
}


@pytest.mark.parametrize(("operation", "name"), list(ATOMICS))
def test_armed_stores_combine_elements(run_ascend, operation, name):
    dtype, function = ATOMICS[operation, name]
    torch.manual_seed(5)
    x, y = torch.randint(-120, 120, (96,)).to(dtype), torch.randint(-120, 120, (96,)).to(dtype)
    bytes_ = 96 * dtype.itemsize
    body = (
        UB
        + IN.format(dst=0, src=0, bursts=1, length=bytes_, src_stride=0, dst_stride=0)
        + ORDER
        + f"asc_set_atomic_{operation}_{name}();\n"
        + OUT.format(dst=0, src=0, bursts=1, length=bytes_, dst_stride=0, src_stride=0)
        + "asc_set_atomic_none();\nasc_sync_pipe(PIPE_MTE3);\n"
    )
    t = {"X": x, "Y": y.clone()}
    run_ascend(body, t, kind="vector")
    expected = (
        (x.float() + y.float()).to(dtype) if function is None else torch.from_numpy(function(x.numpy(), y.numpy()))
    )
    assert torch.equal(t["Y"], expected)


def test_every_armed_mode_has_a_setter(run_ascend):
    setters = "".join(
        f"asc_set_atomic_{o}_{n}();"
        for o in ("add", "max", "min")
        for n in ("float", "float16", "bfloat", "int8", "int16", "int32")
    )
    run_ascend(setters + "asc_set_atomic_none();", {"X": torch.zeros(1)}, kind="vector")


def test_ub_to_l1_counts_in_blocks_with_gaps(run_ascend):
    x = np.random.default_rng(6).integers(0, 256, 4096, dtype=np.uint8)
    body = (
        UB
        + """
      if ASC_IS_AIV {
        if (asc_get_sub_block_id() == 1) {
          asc_copy_gm2ub_align((__ubuf__ uint8_t*)ub, (uint8_t*)X, 1, 4096, 0, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);
          asc_sync_notify(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0)); asc_sync_wait(PIPE_MTE2, PIPE_MTE3, static_cast<event_t>(0));
          asc_copy_ub2l1((void*)1024, (void*)(ub + 64), 3, 4, 1, 2);
        }
      }
    """
    )
    report = run_ascend(body, {"X": torch.from_numpy(x)}, kind="mixed", memories=True)
    expected = np.full(524288, 0xFF, np.uint8)
    for b in range(3):
        expected[1024 + b * 192 :][:128] = x[64 + b * 160 :][:128]
    assert np.array_equal(np.frombuffer(report.memories["L1"], np.uint8), expected)


COPY_IN = {"dst": 0, "src": 0, "bursts": 2, "length": 64, "src_stride": 64, "dst_stride": 64}


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"dst": 16}, MisalignedError, r"destination address 0x10 in UB of AIV0 is not a multiple of 32"),
        (
            {"dst_stride": 72},
            MisalignedError,
            r"stride 72 is neither a multiple of 32 bytes nor equal to the burst length 64",
        ),
        ({"dst": 262144 - 64}, CapacityError, r"exceeds the 262144 bytes of UB of AIV0"),
        ({"src_stride": 100}, OutOfBoundsError, r"nearest is 'X' \(128 bytes\): the access covers bytes 100 to 164"),
    ],
)
def test_a_wrong_copy_in_is_named(run_ascend, changes, error, text):
    t = {"X": torch.zeros(32)}
    run_ascend(UB + IN.format(**COPY_IN), t, kind="vector")
    with pytest.raises(error, match=text):
        run_ascend(UB + IN.format(**{**COPY_IN, **changes}), t, kind="vector")


def test_a_wrong_copy_out_is_named(run_ascend):
    t = {"X": torch.zeros(32), "Y": torch.zeros(16)}
    out = OUT.format(dst=0, src=0, bursts=1, length=64, dst_stride=0, src_stride=0)
    run_ascend(UB + IN.format(**COPY_IN) + ORDER + out, t, kind="vector")
    with pytest.raises(OutOfBoundsError, match=r"writes 64 bytes of GM outside every tensor.*covers bytes 4 to 68"):
        run_ascend(UB + IN.format(**COPY_IN) + ORDER + out.replace("Y + 0", "Y + 4"), t, kind="vector")
    with pytest.raises(
        UninitialisedError, match=r"stores UB byte 0 to byte 0 of tensor 'Y', but nothing has written it"
    ):
        run_ascend(UB + out, t, kind="vector")


def test_undefined_padding_is_refused(run_ascend):
    body = (
        UB
        + "asc_copy_gm2ub_align((__ubuf__ uint8_t*)ub, (uint8_t*)X, 1, 64, 1, 0, 0, static_cast<asc_load_l2_cache_mode>(0), 0, 0);"
    )
    with pytest.raises(UnimplementedBuiltinError, match="const_pad = 0"):
        run_ascend(body, {"X": torch.zeros(32)}, kind="vector")


def test_a_padding_block_is_stored_with_a_warning_and_nothing_else(run_ascend):
    """A compact NZ tile: 3 rows of one 32-byte block per column group, and a padding block that nothing writes."""
    t = {"X": torch.arange(48, dtype=torch.float32), "Y": torch.zeros(64)}
    rows = {"bursts": 1, "src_stride": 0, "dst_stride": 0}

    def tile(length=96):
        first = IN.format(**rows, dst=0, src=0, length=96)
        return UB + first + IN.format(**rows, dst=128, src=96, length=length) + ORDER

    def store(src, length):
        return OUT.format(dst=0, src=src, bursts=1, length=length, dst_stride=0, src_stride=0)

    report = run_ascend(tile() + store(0, 256), t, kind="vector")
    assert torch.equal(t["Y"].reshape(2, 32)[:, :24], t["X"].reshape(2, 24))
    assert report.warnings == ("asc_copy_ub2gm_align stores padding blocks that nothing has written to tensor 'Y'",)
    with pytest.raises(UninitialisedError, match="stores UB byte 220 to byte 220"):  # not a whole block
        run_ascend(tile(92) + store(0, 256), t, kind="vector")
    with pytest.raises(UninitialisedError, match="stores UB byte 192"):  # two blocks
        run_ascend(tile(64) + store(0, 256), t, kind="vector")
    with pytest.raises(UninitialisedError, match="stores UB byte 96"):  # nothing in front of it
        run_ascend(tile() + store(96, 96), t, kind="vector")
