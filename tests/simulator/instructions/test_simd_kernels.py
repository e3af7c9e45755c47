"""Whole SIMD kernels written in TileLang, with every check on."""

import pytest
import torch

tilelang = pytest.importorskip("tilelang")
import tilelang.ascend.language as T  # noqa: E402

from unikernels.backends.ascend.simulator import simulate  # noqa: E402


def quantise(rows, columns):
    @T.prim_func
    def k(
        X: T.Tensor((rows, columns), "float32"),
        Y: T.Tensor((rows, columns), "float8_e4m3fn"),
        S: T.Tensor((rows, 64), "float32"),
    ):
        with T.Kernel(2) as bx:
            x = T.alloc_shared((rows // 2, columns), "float32")
            y = T.alloc_shared((rows // 2, columns), "float8_e4m3fn")
            s = T.alloc_shared((rows // 2, 64), "float32")
            T.copy(X[bx * (rows // 2) : (bx + 1) * (rows // 2), :], x)
            with T.SimdVF():
                for r in T.serial(rows // 2):
                    m = T.simd.alloc_var("float32")
                    m = T.simd.vdup(0.0, "float32")
                    for j in T.serial(columns // 64):
                        m = T.simd.vmax(m, T.simd.vabs(T.simd.vld(x[r, j * 64])))
                    scale = T.simd.vmuls(T.simd.vdupv(T.simd.vcmax(m)), 1.0 / 448.0)
                    T.simd.vsts(s[r, 0], scale)
                    for j in T.serial(columns // 64):
                        q = T.simd.vcvt(T.simd.vdiv(T.simd.vld(x[r, j * 64]), scale), "float8_e4m3fn")
                        T.simd.vsts(y[r, j * 64], q, dist="PK4_B32")
            T.copy(y, Y[bx * (rows // 2) : (bx + 1) * (rows // 2), :])
            T.copy(s, S[bx * (rows // 2) : (bx + 1) * (rows // 2), :])

    return k


def softmax(rows, columns):
    @T.prim_func
    def k(X: T.Tensor((rows, columns), "bfloat16"), Y: T.Tensor((rows, columns), "bfloat16")):
        with T.Kernel(1) as _bx:
            x = T.alloc_shared((rows, columns), "bfloat16")
            e = T.alloc_shared((2, columns), "float32")
            T.copy(X, x)
            with T.SimdVF():
                for r in T.serial(rows):
                    m = T.simd.alloc_var("float32")
                    total = T.simd.alloc_var("float32")
                    m = T.simd.vdup(-1e30, "float32")
                    total = T.simd.vdup(0.0, "float32")
                    for j in T.serial(columns // 128):
                        v = T.simd.vld(x[r, j * 128])
                        m = T.simd.vmax(
                            m, T.simd.vmax(T.simd.vcvt(v, "float32", part=0), T.simd.vcvt(v, "float32", part=1))
                        )
                    peak = T.simd.vdupv(T.simd.vcmax(m))
                    for j in T.serial(columns // 128):
                        v = T.simd.vld(x[r, j * 128])
                        even = T.simd.vexpdif(T.simd.vcvt(v, "float32", part=0), peak)
                        odd = T.simd.vexp(T.simd.vsub(T.simd.vcvt(v, "float32", part=1), peak))
                        total = T.simd.vadd(total, T.simd.vadd(even, odd))
                        T.simd.vsts(e[0, j * 64], even)
                        T.simd.vsts(e[1, j * 64], odd)
                    T.simd.mem_bar("VST_VLD")
                    s = T.simd.vdupv(T.simd.vcadd(total))
                    for j in T.serial(columns // 128):
                        even = T.simd.vdiv(T.simd.vld(e[0, j * 64]), s)
                        odd = T.simd.vdiv(T.simd.vld(e[1, j * 64]), s)
                        low, high = T.simd.vintlv(even, odd)
                        T.simd.vsts(x[r, j * 128], T.simd.vcvt(low, "bfloat16"), dist="PK_B32")
                        T.simd.vsts(x[r, j * 128 + 64], T.simd.vcvt(high, "bfloat16"), dist="PK_B32")
            T.copy(x, Y)

    return k


@pytest.mark.parametrize("check", ["on", "off"])
def test_quantisation_per_row(check):
    x = torch.randn(8, 512, generator=torch.Generator().manual_seed(0))
    y, s = torch.empty(8, 512, dtype=torch.float8_e4m3fn), torch.empty(8, 64)
    simulate(quantise(8, 512), x, y, s, check=check)
    scale = x.abs().amax(1, keepdim=True) * torch.tensor(1.0 / 448.0)
    assert torch.equal(s, scale.expand(8, 64))
    assert torch.equal(y.view(torch.uint8), (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


def test_softmax_of_bfloat16_rows():
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = torch.empty_like(x)
    simulate(softmax(4, 256), x, y)
    torch.testing.assert_close(y, x.float().softmax(-1).bfloat16(), rtol=2**-7, atol=0)
