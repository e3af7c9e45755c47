"""Kernel code that would end the process becomes an error: wild pointers, division by zero, too much stack."""

from __future__ import annotations

import pytest
import torch

from unikernels.backends.ascend.simulator import OutOfBoundsError, simulate

VECTOR = "__simt_vf__ __launch_bounds__(32) inline void f(__gm__ int32_t* A, __ubuf__ int32_t* u) {{ {body} }}\n"
SYNC = "asc_syncthreads();"  # threads with barriers run on stacks of their own


@pytest.fixture(params=["on", "off"])
def check(request):
    return request.param


def test_the_scalar_program_follows_a_wild_pointer(run_ascend, check):
    a = torch.zeros(8, dtype=torch.int32)
    with pytest.raises(OutOfBoundsError, match=r"k_kernel.*pipe S.*line \d+: .*host address 64,.*never set"):
        run_ascend("  A[0] = *(int32_t*)(intptr_t)(A[0] + 64);", {"A": a}, kind="vector", check=check)
    run_ascend("  A[0] = A[1] + 64;", {"A": a}, kind="vector", check=check)  # the process is alive
    assert a[0] == 64


@pytest.mark.parametrize("barrier", ["", SYNC])
def test_a_thread_follows_a_wild_pointer(run_ascend, check, barrier):
    a = torch.zeros(32, dtype=torch.int32)
    body = barrier + "A[threadIdx.x] = *(int32_t*)(intptr_t)(A[threadIdx.x] + 128);"
    with pytest.raises(OutOfBoundsError, match=r"pipe V, asc_vf_call.*host address 128"):
        run_ascend(
            "  asc_vf_call<f>(cce::dim3(32), A, (__ubuf__ int32_t*)0);",
            {"A": a},
            kind="vector",
            functions=VECTOR.format(body=body),
            check=check,
        )


@pytest.mark.parametrize("barrier", ["", SYNC])
def test_division_by_zero(run_ascend, check, barrier):
    a = torch.zeros(32, dtype=torch.int32)
    call = "  asc_vf_call<f>(cce::dim3(32), A, (__ubuf__ int32_t*)0);"
    with pytest.raises(OutOfBoundsError, match="divides an integer by zero"):
        run_ascend(
            call,
            {"A": a},
            kind="vector",
            functions=VECTOR.format(body=barrier + "A[threadIdx.x] = 7 / A[threadIdx.x];"),
            check=check,
        )
    a.fill_(2)
    run_ascend(
        call,
        {"A": a},
        kind="vector",
        functions=VECTOR.format(body=barrier + "A[threadIdx.x] = 7 / A[threadIdx.x];"),
        check=check,
    )
    assert (a == 3).all()


def test_local_arrays_that_fit_no_stack(run_ascend, check):
    a = torch.zeros(32, dtype=torch.int32)
    body = (
        SYNC + "volatile int32_t big[{n}]; for (int i = 0; i < {n}; ++i) big[i] = i; A[threadIdx.x] = big[threadIdx.x];"
    )
    call = "  asc_vf_call<f>(cce::dim3(32), A, (__ubuf__ int32_t*)0);"
    run_ascend(call, {"A": a}, kind="vector", functions=VECTOR.format(body=body.format(n=64)), check=check)
    assert torch.equal(a, torch.arange(32, dtype=torch.int32))
    with pytest.raises(OutOfBoundsError, match="more stack than the simulator gives"):
        run_ascend(call, {"A": a}, kind="vector", functions=VECTOR.format(body=body.format(n=1 << 15)), check=check)


def test_a_fault_in_one_block_of_many_is_that_blocks(run_ascend, check):
    a = torch.arange(8, dtype=torch.int32)
    with pytest.raises(OutOfBoundsError, match="block 4,"):
        run_ascend("  A[block_idx] = 12 / (4 - A[block_idx]);", {"A": a}, kind="vector", grid=8, check=check, threads=2)


def test_tables_of_pointers_lead_to_live_tensors():
    tilelang = pytest.importorskip("tilelang")
    import tilelang.ascend.language as T

    @T.prim_func
    def copy_all(sources: T.Tensor((2,), T.ptr), out: T.Tensor((2, 64), "float32")):
        with T.Kernel(1):
            for i in range(2):
                source = T.make_tensor(sources[i], (64,), "float32")
                staged = T.alloc_shared((64,), "float32")
                T.copy(source[0], staged)
                T.copy(staged, out[i, :])

    assert tilelang
    tensors = [torch.randn(64), torch.randn(64)]
    table, out = torch.tensor([t.data_ptr() for t in tensors]), torch.empty(2, 64)
    simulate(copy_all, table, out)
    assert torch.equal(out, torch.stack(tensors))
    short = torch.randn(32)
    with pytest.raises(OutOfBoundsError, match="outside every tensor"):
        simulate(copy_all, torch.tensor([tensors[0].data_ptr(), short.data_ptr()]), out)
    with pytest.raises(OutOfBoundsError, match="outside every tensor"):
        simulate(copy_all, torch.tensor([tensors[0].data_ptr(), 4096]), out)
