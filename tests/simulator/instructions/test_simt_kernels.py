"""Whole SIMT kernels written in TileLang, with every check on: exact or close to torch, and no false alarm."""

import pytest
import torch

tilelang = pytest.importorskip("tilelang")
import tilelang.ascend.language as T  # noqa: E402

from unikernels.backends.ascend.simulator import simulate  # noqa: E402


def rmsnorm(rows, columns, cores):
    @T.prim_func
    def k(
        X: T.Tensor((rows, columns), "bfloat16"),
        W: T.Tensor((columns,), "bfloat16"),
        Y: T.Tensor((rows, columns), "bfloat16"),
    ):
        with T.Kernel(cores) as bx:
            x = T.alloc_shared((8, columns), "bfloat16")
            w = T.alloc_shared((columns,), "bfloat16")
            squares = T.alloc_shared((8, columns), "float32")
            total = T.alloc_shared((8,), "float32")
            T.copy(W, w)
            for i in range(rows // (8 * cores)):
                r = (i * cores + bx) * 8
                T.copy(X[r : r + 8, :], x)
                with T.SimtVF(threads=256):
                    for a, b in T.Parallel(8, columns):
                        squares[a, b] = T.cast(x[a, b], "float32") * T.cast(x[a, b], "float32")
                    T.reduce_sum(squares, total, dim=1)
                    for a, b in T.Parallel(8, columns):
                        x[a, b] = T.cast(
                            T.cast(x[a, b], "float32") * T.rsqrt(total[a] / columns + 1e-6) * T.cast(w[b], "float32"),
                            "bfloat16",
                        )
                T.copy(x, Y[r : r + 8, :])

    return k


def softmax(rows, columns):
    @T.prim_func
    def k(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(2) as bx:
            x = T.alloc_shared((rows // 2, columns), "float32")
            m = T.alloc_shared((rows // 2,), "float32")
            s = T.alloc_shared((rows // 2,), "float32")
            T.copy(X[bx * (rows // 2) : (bx + 1) * (rows // 2), :], x)
            with T.SimtVF(threads=128):
                T.reduce_max(x, m, dim=1)
                for a, b in T.Parallel(rows // 2, columns):
                    x[a, b] = T.exp(x[a, b] - m[a])
                T.reduce_sum(x, s, dim=1)
                for a, b in T.Parallel(rows // 2, columns):
                    x[a, b] = x[a, b] / s[a]
            T.copy(x, Y[bx * (rows // 2) : (bx + 1) * (rows // 2), :])

    return k


def swiglu_fp8(rows, columns):
    @T.prim_func
    def k(
        X: T.Tensor((rows, 2 * columns), "bfloat16"),
        Y: T.Tensor((rows, columns), "float8_e4m3fn"),
        S: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(2) as bx:
            x = T.alloc_shared((rows // 2, 2 * columns), "bfloat16")
            y = T.alloc_shared((rows // 2, columns), "float32")
            magnitude = T.alloc_shared((rows // 2, columns), "float32")
            peak = T.alloc_shared((rows // 2,), "float32")
            q = T.alloc_shared((rows // 2, columns), "float8_e4m3fn")
            scale = T.alloc_shared((rows // 2,), "float32")
            T.copy(X[bx * (rows // 2) : (bx + 1) * (rows // 2), :], x)
            with T.SimtVF(threads=64):
                for a, b in T.Parallel(rows // 2, columns):
                    g = T.cast(x[a, b], "float32")
                    y[a, b] = g / (1.0 + T.exp(-g)) * T.cast(x[a, columns + b], "float32")
                    magnitude[a, b] = T.abs(y[a, b])
                T.reduce_max(magnitude, peak, dim=1)
                for a in T.Parallel(rows // 2):
                    scale[a] = T.max(peak[a], 1e-4) / 448.0
                for a, b in T.Parallel(rows // 2, columns):
                    q[a, b] = T.cast(y[a, b] / scale[a], "float8_e4m3fn")
            T.copy(q, Y[bx * (rows // 2) : (bx + 1) * (rows // 2), :])
            T.copy(scale, S[bx * (rows // 2) : (bx + 1) * (rows // 2)])

    return k


def histogram(n, bins, cores):
    @T.prim_func
    def k(X: T.Tensor((n,), "int32"), H: T.Tensor((bins,), "int32"), M: T.Tensor((1,), "float32")):
        with T.Kernel(cores) as bx:
            x = T.alloc_shared((n // cores,), "int32")
            T.copy(X[bx * (n // cores) : (bx + 1) * (n // cores)], x)
            with T.SimtVF(threads=128):
                for i in T.Parallel(n // cores):
                    T.atomic_add(H[x[i]], 1)
                    T.atomic_max(M[0], T.cast(x[i], "float32"))

    return k


def top_k(columns, count):
    @T.prim_func
    def k(X: T.Tensor((columns,), "float32"), V: T.Tensor((count,), "float32"), J: T.Tensor((count,), "int32")):
        with T.Kernel(1) as _bx:
            x = T.alloc_shared((1, columns), "float32")
            best = T.alloc_shared((1,), "float32")
            where = T.alloc_shared((1, columns), "int32")
            first = T.alloc_shared((1,), "int32")
            values = T.alloc_shared((count,), "float32")
            indices = T.alloc_shared((count,), "int32")
            T.copy(X, x[0, :])
            with T.SimtVF(threads=128):
                for i in T.serial(count):
                    T.reduce_max(x, best, dim=1)
                    for _, b in T.Parallel(1, columns):
                        where[0, b] = T.if_then_else(x[0, b] == best[0], b, columns)
                    T.reduce_min(where, first, dim=1)
                    for _, b in T.Parallel(1, columns):
                        if b == first[0]:
                            values[i] = x[0, b]
                            indices[i] = b
                            x[0, b] = -T.infinity("float32")
            T.copy(values, V)
            T.copy(indices, J)

    return k


def warp_exchange(n):
    @T.prim_func
    def k(X: T.Tensor((n,), "int32"), Y: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int64")):
        with T.Kernel(1) as _bx:
            x = T.alloc_shared((n,), "int32")
            y = T.alloc_shared((n,), "int32")
            b = T.alloc_shared((n,), "int64")
            T.copy(X, x)
            with T.SimtVF(threads=n):
                tx = T.get_thread_binding()
                y[tx] = x[tx] * 2
                T.sync_warp()
                v = T.alloc_var("int32")
                v = y[(tx // 32) * 32 + 31 - tx % 32]
                b[tx] = T.cast(T.ballot(x[tx] > 0), "int64")
                T.sync_warp()
                y[tx] = v
            T.copy(y, Y)
            T.copy(b, B)

    return k


def random_numbers(n):
    @T.prim_func
    def k(U: T.Tensor((n,), "float32"), Z: T.Tensor((n,), "float32")):
        with T.Kernel(2) as bx:
            u = T.alloc_shared((n // 2,), "float32")
            z = T.alloc_shared((n // 2,), "float32")
            with T.SimtVF(threads=128):
                T.rng_init(1234)
                for i in T.Parallel(n // 2):
                    u[i] = T.rng_rand_float()
                    z[i] = T.rng_rand_float(dist="normal")
            T.copy(u, U[bx * (n // 2)])
            T.copy(z, Z[bx * (n // 2)])

    return k


def attention(queries, keys, width):
    @T.prim_func
    def k(
        Q: T.Tensor((queries, width), "bfloat16"),
        K: T.Tensor((keys, width), "bfloat16"),
        V: T.Tensor((width, keys), "bfloat16"),
        O: T.Tensor((queries, width), "float32"),  # noqa: E741
    ):
        with T.Kernel(1) as _bx:
            q1 = T.alloc_l1((queries, width), "bfloat16")
            k1 = T.alloc_l1((keys, width), "bfloat16")
            v1 = T.alloc_l1((width, keys), "bfloat16")
            p1 = T.alloc_l1((queries, keys), "bfloat16")
            s0 = T.alloc_l0c((queries, keys), "float32")
            o0 = T.alloc_l0c((queries, width), "float32")
            s = T.alloc_shared((queries // 2, keys), "float32")
            p = T.alloc_shared((queries // 2, keys), "bfloat16")
            m = T.alloc_shared((queries // 2,), "float32")
            total = T.alloc_shared((queries // 2,), "float32")
            T.copy(Q, q1)
            T.copy(K, k1)
            T.copy(V, v1)
            T.gemm(q1, k1, s0, transpose_B=True, clear_accum=True)
            T.dual_copy(s0, s)
            # 64 threads span one row: with more rows in flight TileLang's reduction mixes the rows' results.
            with T.SimtVF(threads=64):
                for i, j in T.Parallel(queries // 2, keys):
                    s[i, j] = s[i, j] * 0.125
                T.reduce_max(s, m, dim=1)
                for i, j in T.Parallel(queries // 2, keys):
                    s[i, j] = T.exp(s[i, j] - m[i])
                T.reduce_sum(s, total, dim=1)
                for i, j in T.Parallel(queries // 2, keys):
                    p[i, j] = T.cast(s[i, j] / total[i], "bfloat16")
            T.dual_copy(p, p1)
            T.gemm(p1, v1, o0, transpose_B=True, clear_accum=True)
            T.copy(o0, O)

    return k


def test_attention_through_cube_and_vector_cores():
    generator = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(n, 64, generator=generator).bfloat16() for n in (64, 128, 128))
    o = torch.empty(64, 64)
    simulate(attention(64, 128, 64), q, k, v.T.contiguous(), o)
    want = (q.float() @ k.float().T / 8).softmax(-1).bfloat16().float() @ v.float()
    # A probability next to a bfloat16 rounding boundary may fall on either side.
    torch.testing.assert_close(o, want, rtol=0, atol=2e-2)


def test_rmsnorm():
    torch.manual_seed(0)
    x, w = torch.randn(32, 512).bfloat16(), torch.randn(512).bfloat16()
    y = torch.empty_like(x)
    simulate(rmsnorm(32, 512, 2), x, w, y)
    want = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w.float()).bfloat16()
    torch.testing.assert_close(y, want, rtol=2**-7, atol=0)


def test_softmax():
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    y = torch.empty_like(x)
    simulate(softmax(8, 256), x, y)
    torch.testing.assert_close(y, x.softmax(-1), rtol=2e-6, atol=1e-8)


def test_swiglu_with_fp8_output():
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(2)).bfloat16()
    y, s = torch.empty(8, 128, dtype=torch.float8_e4m3fn), torch.empty(8)
    simulate(swiglu_fp8(8, 128), x, y, s)
    product = torch.nn.functional.silu(x[:, :128].float()) * x[:, 128:].float()
    scale = product.abs().amax(1).clamp(1e-4) / 448
    torch.testing.assert_close(s, scale, rtol=1e-6, atol=0)
    # A value next to a rounding boundary may fall on either side: one step of e4m3 at most.
    torch.testing.assert_close(y.float() * s[:, None], product, rtol=1 / 15, atol=float(s.max()) * 2**-9)


def test_histogram_with_atomics_of_several_blocks():
    x = torch.randint(0, 50, (2048,), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    h, m = torch.zeros(64, dtype=torch.int32), torch.full((1,), -1.0)
    simulate(histogram(2048, 64, 4), x, h, m)
    assert torch.equal(h, torch.bincount(x, minlength=64).int())
    assert m.item() == x.max()


def test_top_k_by_selection():
    x = torch.randn(512, generator=torch.Generator().manual_seed(4))
    values, indices = torch.empty(6), torch.empty(6, dtype=torch.int32)
    simulate(top_k(512, 6), x, values, indices)
    want = x.topk(6)
    assert torch.equal(values, want.values)
    assert torch.equal(indices.long(), want.indices)


def test_warp_barrier_and_ballot():
    x = torch.randint(-5, 5, (128,), dtype=torch.int32, generator=torch.Generator().manual_seed(5))
    y, b = torch.empty_like(x), torch.empty(128, dtype=torch.int64)
    simulate(warp_exchange(128), x, y, b)
    assert torch.equal(y, 2 * x.view(4, 32).flip(1).flatten())
    want = ((x.view(4, 32) > 0).long() << torch.arange(32)).sum(1)
    assert torch.equal(b, want.repeat_interleave(32))


def test_random_numbers_are_reproducible_and_well_distributed():
    u, z, again = torch.empty(4096), torch.empty(4096), torch.empty(4096)
    simulate(random_numbers(4096), u, z)
    simulate(random_numbers(4096), again, torch.empty(4096), check="off")
    assert torch.equal(u, again)
    assert u.unique().numel() > 4090
    assert abs(u.mean() - 0.5) < 0.02
    assert 0 < u.min() < 0.01
    assert abs(z.mean()) < 0.06
    assert abs(z.std() - 1) < 0.05
