"""Random numbers, print and assert: TileLang's own templates compiled unchanged (reference e.1.6)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from unikernels.backends.ascend.simulator.errors import DeviceAssertError

Run = Callable[..., torch.Tensor]
RANDOM = "#include <tl_templates/ascend/philox_rng.h>"


def philox(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Philox-4x32, ten rounds, on arrays [..., 4] of counters and [..., 2] of keys."""
    c, k = counter.astype(np.uint64), key.astype(np.uint64)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[..., 0] * np.uint64(0xD2511F53), c[..., 2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = np.stack(
            [(p1 >> shift) ^ c[..., 1] ^ k[..., 0], p1 & low, (p0 >> shift) ^ c[..., 3] ^ k[..., 1], p0 & low], -1
        )
        k = (k + np.array([0x9E3779B9, 0xBB67AE85], np.uint64)) & low
    return c.astype(np.uint32)


def test_philox_matches_the_published_known_answers() -> None:
    ones = np.full(4, 0xFFFFFFFF, np.uint32)
    assert [hex(v) for v in philox(np.zeros(2, np.uint32), np.zeros(4, np.uint32))] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]
    assert [hex(v) for v in philox(ones[:2], ones)] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def test_random_words_uniform_and_normal_numbers(run_simt: Run) -> None:
    seed, draws, threads = 0x1234567890, 6, 64
    body = f"""
  tl::AscendPhiloxState state; int t = threadIdx.x;
  tl::philox_init(&state, {seed}, t, 8);
  for (int i = 0; i < {draws}; ++i) ((uint32_t*)out)[t * {draws} + i] = tl::philox_rand(&state);
  tl::philox_init(&state, {seed}, t, 0);
  float2 u = tl::philox_rand_uniform2(&state); float2 z = tl::philox_rand_normal2(&state);
  float* f = (float*)(out + {4 * draws * threads}) + 4 * t;
  f[0] = u.x; f[1] = u.y; f[2] = z.x; f[3] = z.y;
"""
    output = torch.zeros(4 * (draws + 4) * threads, dtype=torch.uint8)
    out = run_simt(body, [], output, threads=str(threads), extra=RANDOM).numpy()
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    counter = np.zeros((threads, 2, 4), np.uint32)
    counter[:, :, 0], counter[:, :, 2] = [2, 3], np.arange(threads)[:, None]  # offset 8 is two blocks of four words
    words = philox(key, counter).reshape(threads, 8)
    assert (out[: 4 * draws * threads].view(np.uint32).reshape(threads, draws) == words[:, :draws]).all()
    counter[:, 0, 0] = 0
    u = philox(key, counter[:, 0]).astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    f = out[4 * draws * threads :].view(np.float32).reshape(threads, 4)
    np.testing.assert_allclose(f[:, :2], u[:, :2], rtol=3e-7)
    radius, angle = np.sqrt(-2 * np.log(u[:, 2].astype(np.float64))), 2 * np.pi * u[:, 3].astype(np.float64)
    np.testing.assert_allclose(
        f[:, 2:], np.stack([radius * np.sin(angle), radius * np.cos(angle)], 1), rtol=2e-5, atol=2e-6
    )


def test_print_shows_every_type_once(run_simt: Run, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
  if (threadIdx.x == 3) {
    debug_print_var("f", 1.5f); debug_print_var("h", half(2)); debug_print_var("b", bfloat16_t(-1)); debug_print_var("i", int32_t(-7));
    debug_print_var("flag", true); debug_print_msg("here"); debug_print_buffer_value("buf", "x", 3, ((float*)in)[3]);
  }
  ((float*)out)[threadIdx.x] = ((float*)in)[threadIdx.x];
"""
    run_simt(body, [torch.arange(64.0)], torch.zeros(256, dtype=torch.uint8))
    text = capfd.readouterr().out
    for line in (
        "msg='f' BlockIdx=0: dtype=float32 value=1.500000", "msg='h' BlockIdx=0: dtype=float16 value=2.000000",
        "msg='b' BlockIdx=0: dtype=bfloat16 value=-1.000000", "msg='i' BlockIdx=0: dtype=int value=-7",
        "msg='flag' BlockIdx=0: dtype=bool value=true", "msg='here' BlockIdx=0", "buffer=x, index=3, dtype=float32 value=3.000000",
    ):  # fmt: skip
        assert text.count(line) == 1, (line, text)


@pytest.mark.parametrize("check", ["on", "off"])
def test_assert_stops_the_kernel_and_names_the_line(run_simt: Run, check: str) -> None:
    body = 'float v = ((float*)in)[threadIdx.x];\ndevice_assert_with_msg(v < {limit}, "value too large"); ((float*)out)[threadIdx.x] = v;'
    output = torch.zeros(256, dtype=torch.uint8)
    run_simt(body.format(limit=1000), [torch.arange(64.0)], output, threads="64", check=check)
    assert torch.equal(output.view(torch.float32), torch.arange(64.0))
    with pytest.raises(DeviceAssertError, match="value too large") as caught:
        run_simt(body.format(limit=40), [torch.arange(64.0)], output, threads="64", check=check)
    assert caught.value.block == 0
    assert caught.value.line == 6  # the second line of the body
