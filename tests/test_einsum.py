"""einsum and fp8_einsum: every expression against torch.einsum, FP8 outputs bit for bit, and the rules of arguments."""

from __future__ import annotations

import pytest
import torch

import unikernels as uk
from unikernels.epilogue import Alpha, BF16StochasticRounding, FP8CastWithClamp
from unikernels.errors import ArgumentTypeError, InvalidArgumentError
from unikernels.scale_layouts import ScaleFormat, Scales, convert_scales

FP8 = torch.float8_e4m3fn
SIZES = {"b": 33, "h": 3, "r": 40, "d": 24}


@pytest.fixture(params=["cpu", "reference"], autouse=True)
def _backend(request):
    with uk.use_backend(request.param):
        yield


def integers(letters, sizes=SIZES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, [sizes[one] for one in letters], generator=generator).bfloat16()


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("expr", ["bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr"])
def test_bf16_forms(expr, out):
    a, b = (integers(letters, seed=seed) for seed, letters in enumerate(expr.split("->")[0].split(",")))
    exact = torch.einsum(expr, a.double(), b.double())
    d = torch.full(exact.shape, 7.0, dtype=out)
    uk.einsum(expr, a, b, d)
    assert torch.equal(d, exact.to(out))
    c = torch.full(exact.shape, 3.0, dtype=out)
    uk.einsum(expr, a, b, d, c)
    assert torch.equal(d, (exact + 3).to(out))
    assert (c == 3).all()
    if out is torch.float32:
        uk.einsum(expr, a, b, d, d, Alpha(-1.0))
        assert (d == 3).all()


def test_rows_may_be_padded_and_guards_stay():
    a, b = integers("bhr"), integers("hdr", seed=1)
    exact = torch.einsum("bhr,hdr->bhd", a.double(), b.double())
    wide_b = torch.full((3, 24, 48), torch.nan).bfloat16()
    wide_b[..., :40] = b
    wide_d = torch.full((33, 3, 30), 7.0)
    uk.einsum("bhr,hdr->bhd", a, wide_b[..., :40], wide_d[..., :24])
    assert torch.equal(wide_d[..., :24].double(), exact)
    assert (wide_d[..., 24:] == 7).all()


def test_reduction_over_the_batch():
    generator = torch.Generator().manual_seed(5)
    a = torch.randint(-2, 3, (130, 64, 64), generator=generator).bfloat16()
    b = torch.randint(-2, 3, (130, 128, 64), generator=generator).bfloat16()
    exact = torch.einsum("bmk,bnk->mn", a.double(), b.double())
    d = torch.full((64, 128), 5.0)
    uk.einsum("bmk,bnk->mn", a, b, d, d)
    assert torch.equal(d.double(), exact + 5)
    low = torch.empty(64, 128, dtype=torch.bfloat16)
    uk.einsum("bmk,bnk->mn", a, b, low)
    assert torch.equal(low, exact.bfloat16())
    with pytest.raises(InvalidArgumentError, match="c is d is expected, got no c"):
        uk.einsum("bmk,bnk->mn", a, b, d)
    with pytest.raises(InvalidArgumentError, match="got another tensor"):
        uk.einsum("bmk,bnk->mn", a, b, d, d.clone())
    with pytest.raises(InvalidArgumentError, match="bfloat16 d takes no c"):
        uk.einsum("bmk,bnk->mn", a, b, low, low)
    with pytest.raises(InvalidArgumentError, match="expected a contiguous"):
        uk.einsum("bmk,bnk->mn", a[:, ::2], b, d[::2], d[::2])


@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 1), (1, 5, 2), (3, 1, 1), (1, 1, 3)])
def test_reduction_of_thin_matrices(m, n, k):
    a, b = torch.arange(4.0 * m * k).view(4, m, k).bfloat16(), torch.arange(4.0 * n * k).view(4, n, k).bfloat16()
    d = torch.zeros(m, n)
    uk.einsum("bmk,bnk->mn", a, b, d, d)
    assert torch.equal(d, torch.einsum("bmk,bnk->mn", a.float(), b.float()))


@pytest.mark.parametrize("expr", ["bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr"])
@pytest.mark.parametrize("empty", ["b", "r", "d"])
def test_empty(expr, empty):
    sizes = {**SIZES, empty: 0}
    a, b = (integers(letters, sizes) for letters in expr.split("->")[0].split(","))
    d = torch.full([sizes[one] for one in expr[-3:]], torch.nan)
    uk.einsum(expr, a, b, d)
    assert (d == 0).all()
    uk.einsum(expr, a, b, d, torch.full_like(d, 5.0))
    assert (d == 5).all()


def test_sixth_argument_of_older_versions():
    a, b, d = integers("bhr"), integers("hdr"), torch.empty(33, 3, 24)
    uk.einsum("bhr,hdr->bhd", a, b, d, None, True)
    again = torch.empty_like(d)
    uk.einsum("bhr,hdr->bhd", a, b, again, use_cublaslt=False)
    assert torch.equal(d, again)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"expr": "bhr, hdr -> bhd"}, r"expected exactly one of 'bmk,bnk->mn', 'bhr,hdr->bhd'.*no spaces"),
        ({"expr": None}, "expr is None"),
        ({"a": torch.ones(33, 3, 40)}, "a has dtype torch.float32, expected bfloat16"),
        ({"a": torch.ones(33, 40).bfloat16()}, "a has 2 dimensions"),
        ({"a": torch.ones(33, 40, 3).bfloat16().mT}, r"a has strides \(120, 1, 3\), expected a unit stride"),
        ({"b": torch.ones(3, 24, 41).bfloat16()}, "summed dimension 40 and 41"),
        ({"b": torch.ones(4, 24, 40).bfloat16()}, "batch 3 and 4"),
        ({"d": torch.ones(33, 3, 25)}, r"d has shape \(33, 3, 25\), expected \(33, 3, 24\)"),
        ({"c": torch.ones(33, 3, 24).bfloat16()}, "c has dtype"),
        (
            {"epilogue": FP8CastWithClamp(torch.ones(1, dtype=torch.int32))},
            "d has dtype torch.float32, expected float8",
        ),
        ({"use_cublaslt": None}, "use_cublaslt is None"),
    ],
)
def test_refusals(change, text):
    call = {"expr": "bhr,hdr->bhd", "a": integers("bhr"), "b": integers("hdr"), "d": torch.full((33, 3, 24), 7.0)}
    call |= change
    with pytest.raises(InvalidArgumentError, match=text):
        uk.einsum(**call)
    assert "d" in change or (call["d"] == 7).all()


def test_epilogues_need_rows():
    with pytest.raises(InvalidArgumentError, match="takes no epilogue BF16StochasticRounding"):
        uk.einsum(
            "bhd,bhr->hdr",
            integers("bhd"),
            integers("bhr"),
            torch.empty(3, 24, 40).bfloat16(),
            epilogue=BF16StochasticRounding(),
        )


class TestFp8:
    B, H, R, D = 6, 2, 256, 128

    def tokens(self, form=ScaleFormat.FP32, gran_k=128):
        """a [b, h, r] with per-token scales, in values and as passed."""
        generator = torch.Generator().manual_seed(6)
        x = torch.randn(self.B, self.H, self.R, generator=generator) * torch.exp2(
            torch.randint(-5, 6, (self.B, self.H, 1), generator=generator)
        )
        heads = [uk.per_token_cast_to_fp8(x[:, h].contiguous(), True, gran_k) for h in range(self.H)]
        data = torch.stack([one for one, _ in heads], 1)
        sf = torch.stack([one for _, one in heads])  # [h, b, blocks]
        values = data.double() * sf.permute(1, 0, 2).double().repeat_interleave(gran_k, 2)
        packed = convert_scales(Scales(sf, ScaleFormat.FP32, 1, gran_k, self.B, self.R), form, gran_k=gran_k).data
        return values, (data, packed.permute(1, 0, 2))

    def weights(self):
        """b [h, d, r] with 128 x 128 block scales."""
        generator = torch.Generator().manual_seed(7)
        heads = [
            uk.per_block_cast_to_fp8(torch.randn(self.D, self.R, generator=generator), True) for _ in range(self.H)
        ]
        data, sf = (torch.stack(part) for part in zip(*heads, strict=True))
        values = data.double() * sf.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
        return values, (data, sf)

    def test_default_recipe(self):
        (a_values, a), (b_values, b) = self.tokens(), self.weights()
        d = torch.empty(self.B, self.H, self.D)
        uk.fp8_einsum("bhr,hdr->bhd", a, b, d)
        assert uk.testing.calc_diff(d, torch.einsum("bhr,hdr->bhd", a_values, b_values)) < 1e-12

    def test_backward_forms(self):
        (_, _), (b_values, b) = self.tokens(), self.weights()
        x = torch.randn(self.B, self.H, self.D, generator=torch.Generator().manual_seed(8))
        heads = [uk.per_token_cast_to_fp8(x[:, h].contiguous(), True) for h in range(self.H)]
        data, sf = (torch.stack(part, 1) for part in zip(*heads, strict=True))
        d = torch.empty(self.B, self.H, self.R)
        uk.fp8_einsum("bhd,hdr->bhr", (data, sf), b, d)
        values = data.double() * sf.double().repeat_interleave(128, 2)
        assert uk.testing.calc_diff(d, torch.einsum("bhd,hdr->bhr", values, b_values)) < 1e-12

    def test_weight_form(self):
        tokens, gran_k = 256, 128
        generator = torch.Generator().manual_seed(9)
        passed, values = [], []
        for size in (16, 20):
            x = torch.randn(self.H, size, tokens, generator=generator)
            heads = [uk.per_token_cast_to_fp8(one, True, gran_k) for one in x]
            data, sf = (torch.stack(part) for part in zip(*heads, strict=True))  # [h, size, b], [h, size, b / gran_k]
            values.append((data.double() * sf.double().repeat_interleave(gran_k, 2)).permute(2, 0, 1))
            passed.append((data.permute(2, 0, 1).contiguous(), sf.permute(2, 0, 1).contiguous()))
        c = torch.randn(self.H, 16, 20, generator=generator)
        d = torch.empty_like(c)
        uk.fp8_einsum("bhd,bhr->hdr", *passed, d, c, (1, 1, 128))
        assert uk.testing.calc_diff(d, c + torch.einsum("bhd,bhr->hdr", *values)) < 1e-12
        with pytest.raises(InvalidArgumentError, match="needs one scale per row"):
            uk.fp8_einsum("bhd,bhr->hdr", *passed, d, c)

    @pytest.mark.parametrize("form", [ScaleFormat.UE8M0X4_INT32, ScaleFormat.UE8M0X2_INT16])
    def test_packed_scales(self, form):
        gran_k = 32
        a_values, a = self.tokens(form, gran_k)
        generator = torch.Generator().manual_seed(7)
        heads = [
            uk.per_token_cast_to_fp8(torch.randn(self.D, self.R, generator=generator), True, gran_k)
            for _ in range(self.H)
        ]
        data, sf = (torch.stack(part) for part in zip(*heads, strict=True))
        words = convert_scales(Scales(sf, ScaleFormat.FP32, 1, gran_k, self.D, self.R), form).data
        values = data.double() * sf.double().repeat_interleave(gran_k, 2)
        d = torch.empty(self.B, self.H, self.D)
        uk.fp8_einsum("bhr,hdr->bhd", a, (data, words), d, recipe=(1, 1, gran_k))
        assert uk.testing.calc_diff(d, torch.einsum("bhr,hdr->bhd", a_values, values)) < 1e-12
        # Whatever the strides of the scales are.
        again = torch.empty_like(d)
        uk.fp8_einsum(
            "bhr,hdr->bhd", (a[0], a[1].contiguous()), (data, words.contiguous()), again, recipe=(1, 1, gran_k)
        )
        assert torch.equal(d, again)

    def test_fp8_output_is_the_cast_of_the_bf16_output(self):
        a, b = self.tokens()[1], self.weights()[1]
        low = torch.empty(self.B, self.H, self.D, dtype=torch.bfloat16)
        uk.fp8_einsum("bhr,hdr->bhd", a, b, low)
        data, sf = uk.per_token_cast_to_fp8(low.flatten(1), True, 32, True)
        for form in ("pair", "epilogue"):
            d = torch.empty(self.B, self.H, self.D, dtype=FP8)
            sfd = torch.full((self.H * self.D // 128, 8), -1, dtype=torch.int32).T[: self.B]
            if form == "pair":
                uk.fp8_einsum("bhr,hdr->bhd", a, b, [d, sfd])
            else:
                uk.fp8_einsum("bhr,hdr->bhd", a, b, d, epilogue=FP8CastWithClamp(sfd))
            assert torch.equal(d.flatten(1).view(torch.uint8), data.view(torch.uint8))
            assert torch.equal(sfd, sf)

    def test_clamp_counts_over_all_heads(self):
        a, b = self.tokens()[1], self.weights()[1]
        low = torch.empty(self.B, self.H, self.D, dtype=torch.bfloat16)
        uk.fp8_einsum("bhr,hdr->bhd", a, b, low)
        limit = float(low.float().abs().median())
        count = torch.full((1,), 99, dtype=torch.uint32)
        d, sfd = torch.empty_like(low, dtype=FP8), torch.zeros(2, 6, dtype=torch.int32).T
        uk.fp8_einsum("bhr,hdr->bhd", a, b, d, epilogue=FP8CastWithClamp(sfd, limit, count))
        assert int(count) == int((low.float().abs() > limit).sum()) > 0

    @pytest.mark.parametrize(
        ("change", "error", "text"),
        [
            ({"d": (torch.empty(6, 2, 128, dtype=FP8),)}, ArgumentTypeError, "d is a tuple of 1"),
            ({"epilogue": Alpha(2.0)}, InvalidArgumentError, "excludes an epilogue"),
            (
                {"c": torch.zeros(6, 2, 128, dtype=FP8)},
                InvalidArgumentError,
                "c is not supported together with FP8CastWithClamp",
            ),
            (
                {"d": (torch.empty(6, 2, 128), torch.zeros(2, 6, dtype=torch.int32).T)},
                InvalidArgumentError,
                "d has dtype",
            ),
            (
                {"d": (torch.empty(6, 2, 128, dtype=FP8), torch.zeros(6, 2, dtype=torch.int32))},
                InvalidArgumentError,
                "MN-major",
            ),
            ({"a": torch.ones(6, 2, 256).to(FP8)}, ArgumentTypeError, "expected a pair"),
            ({"expr": "bmk,bnk->mn"}, InvalidArgumentError, "expected exactly one of 'bhr,hdr->bhd'"),
        ],
    )
    def test_refusals(self, change, error, text):
        d = (torch.empty(self.B, self.H, self.D, dtype=FP8), torch.zeros(2, self.B, dtype=torch.int32).T)
        call = {"expr": "bhr,hdr->bhd", "a": self.tokens()[1], "b": self.weights()[1], "d": d} | change
        with pytest.raises(error, match=text):
            uk.fp8_einsum(**call)

    def test_fp8_output_of_another_form(self):
        square = (torch.ones(2, 128, 128).to(FP8), torch.ones(2, 1, 1))
        a = (torch.ones(6, 2, 128).to(FP8), torch.ones(6, 2, 1))
        d = (torch.empty(6, 2, 128, dtype=FP8), torch.zeros(2, 6, dtype=torch.int32).T)
        uk.fp8_einsum("bhr,hdr->bhd", a, square, d)
        with pytest.raises(InvalidArgumentError, match="an FP8 output is offered for 'bhr,hdr->bhd' only"):
            uk.fp8_einsum("bhd,hdr->bhr", a, square, d)

    def test_scale_shapes_are_named(self):
        a, (data, sf) = self.tokens()[1], self.weights()[1]
        with pytest.raises(InvalidArgumentError, match=r"sfb has shape \(2, 1, 1\), expected \(2, 1, 2\)"):
            uk.fp8_einsum("bhr,hdr->bhd", a, (data, sf[..., :1]), torch.empty(self.B, self.H, self.D))
