"""Dense GEMM on every backend: faults users met, empty problems, and each argument rule with its message."""

from __future__ import annotations

import re

import pytest
import torch

import unikernels as uk
from unikernels import _registry
from unikernels.epilogue import FP8CastWithClamp
from unikernels.errors import ArgumentTypeError, InvalidArgumentError

# Ascend has default recipes and limits of its own: tests/kernels/ascend.
BACKENDS = [
    name
    for name, reason in _registry.available_backends().items()
    if reason is None and name not in ("reference", "ascend")
]


@pytest.fixture(params=BACKENDS)
def backend(request):
    with uk.use_backend(request.param):
        yield request.param


def fp8(m, k, value=1.0):
    return torch.full((m, k), value).to(torch.float8_e4m3fn)


def fp4_ones(m, k):
    return torch.full((m, k // 2), 0x22, dtype=torch.int8)


def ones_f32(*shape):
    return torch.ones(shape)


def packed_ones(mn, k_words, dtype, value=None):
    value = {torch.int32: 0x7F7F7F7F, torch.int16: 0x7F7F}[dtype] if value is None else value
    return torch.full((k_words, mn), value, dtype=dtype).T


def out(m, n, dtype=torch.float32):
    return torch.full((m, n), 7.0, dtype=dtype)


class TestScales:
    @pytest.mark.parametrize("k", [512, 1024])
    def test_row_major_packed_scales_are_taken_by_their_strides(self, backend, k):
        d = out(4, 256)
        sfb = packed_ones(256, k // 512, torch.int32).contiguous()
        assert k == 512 or sfb.stride(-1) == 1
        uk.fp8_gemm_nt((fp8(4, k), packed_ones(4, k // 512, torch.int32)), (fp8(256, k), sfb), d)
        assert (d == k).all()

    def test_packed_scales_where_float32_is_usual(self, backend):
        d = out(4, 128)
        a, b = (fp8(4, 512), packed_ones(4, 1, torch.int32)), (fp8(128, 512), packed_ones(128, 1, torch.int32))
        uk.fp8_gemm_nt(a, b, d)
        assert (d == 512).all()

    def test_fp4_weights_without_their_recipe_are_refused_with_a_hint(self, backend):
        a, b = (fp8(1, 256), ones_f32(1, 2)), (fp4_ones(128, 256), ones_f32(128, 8))
        with pytest.raises(InvalidArgumentError, match=r"(?s)sfb has shape \(128, 8\), expected \(1, 2\).*recipe_b"):
            uk.fp8_fp4_gemm_nt(a, b, out(1, 128))
        d = out(1, 128)
        uk.fp8_fp4_gemm_nt(a, b, d, recipe_a=(1, 128), recipe_b=(1, 32))
        assert (d == 256).all()

    def test_last_partial_block_of_columns_has_its_own_scale(self, backend):
        sfb = ones_f32(5, 2)
        sfb[4] = 4.0
        d = out(1, 576)
        uk.fp8_gemm_nt((fp8(1, 256), ones_f32(1, 2)), (fp8(576, 256), sfb), d)
        assert (d[:, :512] == 256).all()
        assert (d[:, 512:] == 1024).all()
        with pytest.raises(InvalidArgumentError, match=r"sfb has shape \(4, 2\), expected \(5, 2\)"):
            uk.fp8_gemm_nt((fp8(1, 256), ones_f32(1, 2)), (fp8(576, 256), sfb[:4]), d)

    @pytest.mark.parametrize("as_pairs", [False, True])
    def test_three_groups_of_byte_scales(self, backend, as_pairs):
        exponents = torch.tensor([127, 128, 129], dtype=torch.uint8).repeat(2, 1)
        if as_pairs:
            padding = torch.tensor([[0xAB]], dtype=torch.uint8).repeat(2, 1)
            exponents = torch.cat([exponents, padding], 1).view(2, 2, 2)
        d = out(2, 4)
        one = torch.full((4, 3), 127, dtype=torch.uint8)
        uk.fp8_gemm_nt((fp8(2, 96), exponents), (fp8(4, 96), one), d, recipe=(1, 1, 32))
        assert (d == 32 + 64 + 128).all()

    def test_arbitrary_float32_scales_are_not_rounded_to_powers_of_two(self):
        d = out(1, 128)
        a = (fp8(1, 128), torch.full((1, 1), 1.25))
        b = (fp8(128, 128), torch.full((1, 1), 1.5))
        uk.fp8_gemm_nt(a, b, d)
        assert (d == 240).all()


class TestNumerics:
    def test_long_k(self, backend):
        d = out(1, 128)
        uk.fp8_gemm_nt((fp8(1, 32768), ones_f32(1, 256)), (fp8(128, 32768), ones_f32(1, 256)), d)
        assert (d == 32768).all()
        a = fp8(1, 128, 0.0)
        a[0, 0], a[0, 1] = 448, 7.5
        uk.fp8_gemm_nt((a, ones_f32(1, 1)), (fp8(128, 128), ones_f32(1, 1)), d)
        assert (d == 455.5).all()

    @pytest.mark.parametrize("n", [33, 40])
    def test_rows_do_not_mix_when_n_is_no_multiple_of_the_tile(self, backend, n):
        a = torch.tensor([1.0, 2, 4, 8]).bfloat16()[:, None].expand(4, 64).contiguous()
        b = torch.ones(n, 64).bfloat16()
        for _ in range(5):
            d = out(4, n, torch.bfloat16)
            uk.bf16_gemm_nt(a, b, d)
            assert (d == 64 * torch.tensor([1.0, 2, 4, 8]).bfloat16()[:, None]).all()

    def test_odd_strides_and_offsets(self, backend):
        base = torch.randn(64 * 65 + 1, generator=torch.Generator().manual_seed(1)).bfloat16()
        b = torch.eye(64).bfloat16()
        wide = torch.ones(64, 63).bfloat16().mT
        for a in (base[:-1].as_strided((64, 64), (65, 1)), base[1:].as_strided((64, 64), (64, 1)), wide):
            d = out(a.shape[0], 64)
            uk.bf16_gemm_nt(a, b, d)
            assert torch.equal(d, a.float())
        a8 = torch.ones(4, 129).to(torch.float8_e4m3fn)[:, :128]
        d = out(4, 128)
        uk.fp8_gemm_nt((a8, ones_f32(4, 1)), (fp8(128, 128), ones_f32(1, 1)), d)
        assert (d == 128).all()

    def test_nan_payload_gives_nan(self, backend):
        a = fp8(2, 128)
        a.view(torch.uint8)[0, 5] = 0x7F
        d = out(2, 128)
        uk.fp8_gemm_nt((a, ones_f32(2, 1)), (fp8(128, 128), ones_f32(1, 1)), d)
        assert d[0].isnan().all()
        assert (d[1] == 128).all()

    def test_c_may_be_d_another_tensor_or_missing(self, backend):
        a = torch.ones(4, 64).bfloat16()
        c = torch.full((4, 4), 5.0)
        d = out(4, 4)
        uk.bf16_gemm_nt(a, a, d, c=c)
        assert (d == 69).all()
        assert (c == 5).all()
        uk.bf16_gemm_nt(a, a, d, c=d)
        assert (d == 133).all()

    def test_writes_stay_inside_d(self, backend):
        buffer = torch.full((6, 12), 7.0).bfloat16()
        d = buffer[1:5, 2:7]
        a = torch.ones(4, 64).bfloat16()
        uk.bf16_gemm_nt(a, torch.ones(5, 64).bfloat16(), d)
        assert (d == 64).all()
        assert int((buffer == 7).sum()) == 6 * 12 - 20

    def test_packed_dtypes_are_the_same_bytes(self, backend):
        data = torch.randint(0, 256, (64, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
        labels = [torch.int8, torch.uint8] + ([torch.float4_e2m1fn_x2] if hasattr(torch, "float4_e2m1fn_x2") else [])
        results = []
        for dtype in labels:
            d = out(4, 64)
            uk.fp8_fp4_gemm_nt((fp8(4, 64), ones_f32(4, 2)), (data.view(dtype), ones_f32(64, 2)), d, recipe=(1, 1, 32))
            results.append(d)
        assert all(torch.equal(result, results[0]) for result in results)

    def test_fp4_in_both_majors(self, backend):
        for b, sfb in (
            (fp4_ones(64, 64), ones_f32(64, 2)),
            (uk.transpose_packed_fp4(fp4_ones(64, 64)).mT, ones_f32(64, 2)),
        ):
            d = out(64, 64)
            uk.fp8_fp4_gemm_nt((fp8(64, 64), ones_f32(64, 2)), (b, sfb), d, recipe=(1, 1, 32))
            assert (d == 64).all()


class TestEmpty:
    @pytest.mark.parametrize(("m", "n"), [(0, 8), (8, 0), (0, 0)])
    def test_nothing_is_touched(self, backend, m, n):
        d = out(m, n)
        uk.bf16_gemm_nt(torch.ones(m, 64).bfloat16(), torch.ones(n, 64).bfloat16(), d)
        uk.fp8_gemm_nt((fp8(m, 128), ones_f32(m, 1)), (fp8(n, 128), ones_f32(-(-n // 128), 1)), d)

    def test_k_0_gives_c_or_zeros(self, backend):
        a = torch.ones(4, 0).bfloat16()
        d, c = out(4, 4), torch.full((4, 4), 5.0)
        uk.bf16_gemm_nt(a, a, d, c=d)
        assert (d == 7).all()
        uk.bf16_gemm_nt(a, a, d, c=c)
        assert (d == 5).all()
        uk.bf16_gemm_nt(a, a, d)
        assert (d == 0).all()


class TestCallingForms:
    def test_lists_are_pairs_too(self, backend):
        d = out(4, 128)
        uk.fp8_gemm_nt([fp8(4, 128), ones_f32(4, 1)], [fp8(128, 128), ones_f32(1, 1)], d)
        assert (d == 128).all()

    def test_a_tensor_where_a_pair_belongs(self, backend):
        with pytest.raises(TypeError, match=r"fp8_fp4_gemm_nt: a is a Tensor, expected a pair \(data, scales\)"):
            uk.fp8_gemm_nt(fp8(4, 128), (fp8(128, 128), ones_f32(1, 1)), out(4, 128))

    def test_both_names_of_the_epilogue(self, backend):
        a = torch.ones(4, 64).bfloat16()
        for words in ({"epilogue": uk.epilogue.Alpha(0.5)}, {"epilogue_class": uk.epilogue.Alpha(0.5)}, {"alpha": 0.5}):
            d = out(4, 4)
            uk.bf16_gemm_nt(a, a, d, **words)
            assert (d == 32).all()


def _call(**changes):
    """Call fp8_gemm_nt on a sound problem with some arguments replaced."""
    arguments = {
        "a": (fp8(4, 128), ones_f32(4, 1)),
        "b": (fp8(128, 128), ones_f32(1, 1)),
        "d": out(4, 128),
    }
    arguments.update(changes)
    uk.fp8_gemm_nt(**arguments)


_SHARED = torch.zeros(4, 128)

BROKEN = {
    "k-mismatch": ({"b": (fp8(128, 64), ones_f32(1, 1))}, r"a has k=128 .* but b has k=64"),
    "a-dtype": (
        {"a": (torch.ones(4, 128), ones_f32(4, 1))},
        r"a has dtype torch.float32, expected float8_e4m3fn, or packed FP4",
    ),
    "e5m2": ({"a": (torch.ones(4, 128).to(torch.float8_e5m2), ones_f32(4, 1))}, r"a has dtype torch.float8_e5m2"),
    "a-ndim": ({"a": (fp8(4, 128)[None], ones_f32(4, 1))}, r"a has 3 dimensions \(shape \(1, 4, 128\)\), expected 2"),
    "a-strides": ({"a": (fp8(8, 256)[::2, ::2], ones_f32(4, 1))}, r"a has strides \(512, 2\), expected a unit stride"),
    "sfa-shape": ({"a": (fp8(4, 128), ones_f32(4, 2))}, r"sfa has shape \(4, 2\), expected \(4, 1\)"),
    "sfa-dtype": ({"a": (fp8(4, 128), ones_f32(4, 1).half())}, r"sfa has dtype torch.float16"),
    "d-shape": ({"d": out(4, 127)}, r"d has shape \(4, 127\), expected \(4, 128\): \(m, n\)"),
    "d-dtype": ({"d": out(4, 128, torch.float16)}, r"d has dtype torch.float16, expected bfloat16 or float32"),
    "d-column-major": ({"d": out(128, 4).T}, r"d has strides \(1, 4\), expected a unit stride in the last dimension"),
    "d-expanded": ({"d": out(1, 128).expand(4, 128)}, r"its elements overlap in memory"),
    "d-not-a-tensor": ({"d": None}, r"d is a NoneType, expected a torch.Tensor"),
    "c-dtype": ({"c": out(4, 128, torch.bfloat16)}, r"c has dtype torch.bfloat16, expected float32"),
    "c-shape": ({"c": out(1, 128)}, r"c has shape \(1, 128\), expected \(4, 128\)"),
    "recipe-twice": ({"recipe": (1, 128, 128), "recipe_a": (1, 128)}, r"give either recipe or recipe_a and recipe_b"),
    "recipe-half": ({"recipe_a": (1, 128)}, r"recipe_b is missing"),
    "recipe-length": ({"recipe": (1, 128)}, r"recipe is \(1, 128\), expected 3 integers"),
    "recipe-value": ({"recipe": (1, 128, 64)}, r"32 or 128 along K"),
    "compiled-dims": ({"compiled_dims": "xy"}, r"compiled_dims is 'xy', expected a string of the letters m, n, k"),
    "alpha-and-epilogue": ({"alpha": 1.0, "epilogue": uk.epilogue.Identity()}, r"give alpha or epilogue, not both"),
    "alpha-type": ({"alpha": "2"}, r"alpha is '2' \(str\), expected a Python number"),
    "epilogue-type": ({"epilogue": "relu"}, r"epilogue is 'relu', expected an object such as"),
    "device": ({"d": torch.empty(4, 128, device="meta")}, r"a is on cpu, the other tensors are on meta"),
    "d-is-sfa": ({"a": (fp8(4, 128), _SHARED[:, :1]), "d": _SHARED}, r"d shares memory with sfa"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_argument_is_named_before_anything_is_written(name, backend):
    changes, message = BROKEN[name]
    d = changes.get("d")
    before = d.clone() if isinstance(d, torch.Tensor) and not d.is_meta else None
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        _call(**changes)
    assert str(caught.value).startswith("fp8_fp4_gemm_nt: ")
    assert isinstance(caught.value, RuntimeError)  # DeepGEMM's host errors are RuntimeErrors
    if before is not None:
        assert torch.equal(d.nan_to_num(), before.nan_to_num())


def test_c_overlapping_d_is_refused(backend):
    buffer = torch.zeros(5, 128)
    with pytest.raises(InvalidArgumentError, match="d shares memory with c"):
        _call(d=buffer[1:], c=buffer[:4])
    whole = torch.zeros(4, 256)
    with pytest.raises(InvalidArgumentError, match="c starts where d does but has strides"):
        _call(d=whole[:, :128], c=whole.view(8, 128)[:4])


def test_output_must_not_overlap_an_operand(backend):
    memory = torch.zeros(4, 128, dtype=torch.float32)
    a = memory.view(torch.uint8).view(-1)[: 4 * 128].view(4, 128).view(torch.float8_e4m3fn)
    with pytest.raises(InvalidArgumentError, match="d shares memory with a"):
        _call(a=(a, ones_f32(4, 1)), d=memory)


def test_wrong_argument_types_are_type_errors_too():
    with pytest.raises(ArgumentTypeError, match=re.escape("alpha is '2'")):
        _call(alpha="2")


class TestFp8Output:
    def test_equals_the_two_steps_bit_by_bit(self, backend):
        generator = torch.Generator().manual_seed(3)
        a = torch.randn(37, 256, generator=generator).bfloat16()
        b = torch.randn(256, 256, generator=generator).bfloat16()
        d = torch.empty(37, 256, dtype=torch.bfloat16)
        uk.bf16_gemm_nt(a, b, d)
        data, sf = uk.per_token_cast_to_fp8(d, True, 32, True)
        quantised = torch.empty(37, 256, dtype=torch.float8_e4m3fn)
        sfd = torch.empty(2, 40, dtype=torch.int32)[:, :37].T
        uk.bf16_gemm_nt(a, b, quantised, epilogue=FP8CastWithClamp(sfd))
        assert torch.equal(quantised.view(torch.uint8), data.view(torch.uint8))
        assert torch.equal(sfd, sf)

    def test_clamp_counts(self, backend):
        a = torch.ones(2, 128).bfloat16()
        b = torch.ones(128, 128).bfloat16()
        b[:5] *= 2
        d = torch.empty(2, 128, dtype=torch.float8_e4m3fn)
        sfd = torch.empty(1, 4, dtype=torch.int32)[:, :2].T
        count = torch.tensor([99], dtype=torch.uint32)
        uk.bf16_gemm_nt(a, b, d, epilogue=FP8CastWithClamp(sfd, 128.0, count))
        assert count.item() == 10
        exponents = sfd.flatten().view(torch.uint8).view(2, 4)
        values = d.float() * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
        assert (values == 128).all()

    def test_wrong_scale_output(self, backend):
        a = torch.ones(2, 128).bfloat16()
        b = torch.ones(128, 128).bfloat16()
        d = torch.empty(2, 128, dtype=torch.float8_e4m3fn)
        with pytest.raises(InvalidArgumentError, match=r"epilogue.sfd has shape \(2, 2\), expected \(2, 1\)"):
            uk.bf16_gemm_nt(a, b, d, epilogue=FP8CastWithClamp(torch.empty(2, 2, dtype=torch.int32)))
        with pytest.raises(InvalidArgumentError, match="c is not supported together with FP8CastWithClamp"):
            uk.bf16_gemm_nt(a, b, d, c=d, epilogue=FP8CastWithClamp(torch.empty(2, 1, dtype=torch.int32)))

    def test_outputs_may_not_share_memory(self, backend):
        memory = torch.ones(256 * 256, dtype=torch.bfloat16)
        a, b = memory[:512].view(2, 256), torch.ones(256, 256).bfloat16()
        sfd = torch.zeros(2, 4, dtype=torch.int32).T[:2]
        count = torch.zeros(1, dtype=torch.uint32)
        d = torch.ones(2, 256).to(torch.float8_e4m3fn)
        in_a, in_d = (one.view(torch.int32).flatten()[:8].view(2, 4).T[:2] for one in (a, d))
        for epilogue, text in (
            (FP8CastWithClamp(in_a), "epilogue.sfd shares memory with a"),
            (FP8CastWithClamp(in_d), "epilogue.sfd shares memory with d"),
            (
                FP8CastWithClamp(sfd, 1.0, sfd.view(torch.uint32)[:1, 0]),
                "clamped_count shares memory with epilogue.sfd",
            ),
            (FP8CastWithClamp(sfd, 1.0, count.to("meta")), "epilogue.clamped_count is on meta, .* are on cpu"),
            (FP8CastWithClamp(sfd.to("meta")), "epilogue.sfd is on meta, .* are on cpu"),
        ):
            with pytest.raises(InvalidArgumentError, match=text):
                uk.bf16_gemm_nt(a, b, d, epilogue=epilogue)
        assert d.float().eq(1).all()
        uk.bf16_gemm_nt(a, b, d, epilogue=FP8CastWithClamp(sfd, 1.0, count))


def test_stochastic_rounding_is_unbiased_and_repeatable(backend):
    generator = torch.Generator().manual_seed(4)
    a, b = torch.randn(256, 64, generator=generator).bfloat16(), torch.randn(256, 64, generator=generator).bfloat16()
    exact = torch.empty(256, 256)
    uk.bf16_gemm_nt(a, b, exact)
    first, second = (torch.empty(256, 256, dtype=torch.bfloat16) for _ in range(2))
    for d in (first, second):
        uk.bf16_gemm_nt(a, b, d, epilogue=uk.epilogue.BF16StochasticRounding())
    assert torch.equal(first, second)
    error = (first.float() - exact) / (exact.abs() * 2**-8)
    assert error.abs().max() <= 2.0
    assert abs(error.mean().item()) < 0.01  # 65536 draws of a deviation below 0.6 each: standard error 0.002


def test_stochastic_rounding_sees_no_negative_zeros(backend):
    """The bits of a zero sum take part in the draws of its neighbours: 0 + 1 * -0 is +0."""
    a, b = torch.full((2, 1), 1.01).bfloat16(), torch.linspace(1, 2, 256).view(256, 1).bfloat16()
    found = []
    for name in (backend, "reference"):
        for zero in (0.0, -0.0):
            b[1::4] = zero
            d = torch.empty(2, 256, dtype=torch.bfloat16)
            with uk.use_backend(name):
                uk.bf16_gemm_nt(a, b, d, epilogue=uk.epilogue.BF16StochasticRounding())
            found.append(d)
    assert all(torch.equal(found[0], d) for d in found)


@pytest.mark.slow
def test_offsets_beyond_2_to_31(backend):
    m, n, k = 524416, 4096, 128
    a, b = (fp8(m, k), ones_f32(m, 1)), (fp8(n, k), ones_f32(n // 128, 1))
    d = torch.empty(m, n, dtype=torch.bfloat16)
    uk.fp8_gemm_nt(a, b, d)
    assert (d[:256] == 128).all()
    assert (d[-256:] == 128).all()
