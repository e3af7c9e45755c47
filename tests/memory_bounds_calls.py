"""Run by test_memory_bounds.py in a process of its own: operands that end, or start, where readable memory does."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import mmap

import torch

import unikernels as uk

PAGE = mmap.PAGESIZE
PROT_NONE = 0
_mappings = []


def at_the_end_of_memory(tensor, at_start=False):
    """Return a copy with the same strides; a read past its last byte (or before its first) ends the process."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    num_bytes = elements * tensor.element_size()
    pages = -(-num_bytes // PAGE)
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    guard, offset = (0, PAGE) if at_start else (pages * PAGE, pages * PAGE - num_bytes)
    assert protect(ctypes.c_void_p(address + guard), ctypes.c_size_t(PAGE), PROT_NONE) == 0
    _mappings.append(memory)
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=offset)
    copy = flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return copy.copy_(tensor)


def fp8(rows, k, gran_mn, word):
    data = torch.ones(rows, k).to(torch.float8_e4m3fn)
    return data, scales(rows, k, gran_mn, word)


def fp4(rows, k, gran_mn, word):
    return torch.full((rows, k // 2), 0x22, dtype=torch.int8), scales(rows, k, gran_mn, word)


def scales(rows, k, gran_mn, word):
    blocks = -(-k // 32)
    if word is torch.float32:
        return torch.ones(-(-rows // gran_mn), blocks)
    words = -(-blocks // word.itemsize)
    return torch.full((rows, words), 0x7F7F7F7F if word is torch.int32 else 0x7F7F, dtype=word)


def quantised(m, n, k, make_b, word, majors):
    gran_n = 128 if word is torch.float32 else 1
    a, b = fp8(m, k, 1, word), make_b(n, k, gran_n, word)
    if "m" in majors:
        a = a[0].view(torch.uint8).T.contiguous().T.view(torch.float8_e4m3fn), a[1].T.contiguous().T
    if "n" in majors and make_b is fp8:
        b = b[0].view(torch.uint8).T.contiguous().T.view(torch.float8_e4m3fn), b[1].T.contiguous().T
    a, b = ([at_the_end_of_memory(one) for one in pair] for pair in (a, b))
    for dtype in (torch.bfloat16, torch.float32):
        d = at_the_end_of_memory(torch.full((m, n), 7.0, dtype=dtype))
        uk.fp8_fp4_gemm_nt(a, b, d, recipe=(1, gran_n, 32))
        assert d.eq(k).all(), (m, n, k, make_b.__name__, word, majors, dtype)


def plain(m, n, k, majors):
    a, b = torch.ones(m, k).bfloat16(), torch.ones(n, k).bfloat16()
    a, b = a.T.contiguous().T if "m" in majors else a, b.T.contiguous().T if "n" in majors else b
    d = at_the_end_of_memory(torch.full((m, n), 7.0))
    uk.bf16_gemm_nt(at_the_end_of_memory(a), at_the_end_of_memory(b), d)
    assert d.eq(k).all(), (m, n, k, majors)


def guarded_pair(pair, at_start):
    return [at_the_end_of_memory(one, at_start) for one in pair]


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def stacked(make, groups, rows, k, gran_mn, word):
    return [torch.stack(parts) for parts in zip(*(make(rows, k, gran_mn, word) for _ in range(groups)), strict=True)]


def m_grouped(n, k, make_b, word, at_start):
    """Labels of no group, odd group sizes, masks: the first and the last rows belong to no group."""
    gran_n = 128 if word is torch.float32 else 1
    recipe = (1, gran_n, 32)
    b = guarded_pair(stacked(make_b, 2, n, k, gran_n, word), at_start)
    for labels in ([-1] * 3 + [0] * 5 + [-1] * 2 + [1] * 34 + [-1], [1, -1, 0, 1, 0, -1, 1] * 5):
        a = guarded_pair(fp8(len(labels), k, 1, word), at_start)
        d = at_the_end_of_memory(torch.full((len(labels), n), 7.0), at_start)
        layout = at_the_end_of_memory(int32(*labels), at_start)
        uk.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, layout, recipe=recipe)
        assert d[int32(*labels) >= 0].eq(k).all(), (n, k, make_b.__name__, word, labels)
    a = guarded_pair(fp8(133, k, 1, word), at_start)
    d = at_the_end_of_memory(torch.full((133, n), 7.0), at_start)
    ends = at_the_end_of_memory(int32(3, 133), at_start)
    uk.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ends, recipe=recipe, use_psum_layout=True)
    assert d[[*range(3), *range(128, 133)]].eq(k).all(), (n, k, make_b.__name__, word, "psum")
    a = guarded_pair(stacked(fp8, 2, 7, k, 1, word), at_start)
    d = at_the_end_of_memory(torch.full((2, 7, n), 7.0), at_start)
    counts = at_the_end_of_memory(int32(5, 7), at_start)
    uk.m_grouped_fp8_fp4_gemm_nt_masked(a, b, d, counts, 7, recipe=recipe)
    assert d[0, :5].eq(k).all(), (n, k, make_b.__name__, word, "masked")
    assert d[1].eq(k).all(), (n, k, make_b.__name__, word, "masked")


def k_grouped(m, n, sizes, at_start):
    """Groups along K that end with the operands, one of them empty."""
    total = sum(sizes)
    a, b = (guarded_pair((torch.ones(total, mn).bfloat16(),), at_start)[0] for mn in (m, n))
    d = at_the_end_of_memory(torch.full((len(sizes), m, n), 7.0), at_start)
    c = at_the_end_of_memory(torch.ones(len(sizes), m, n), at_start)
    ks = at_the_end_of_memory(int32(*sizes), at_start)
    uk.k_grouped_bf16_gemm_tn_contiguous(a, b, d, sizes, ks, c)
    for group, size in enumerate(sizes):
        assert d[group].eq(size + 1).all(), (m, n, sizes, group)


def main():
    faulthandler.enable()
    torch.set_num_threads(1)
    for m, n, k, majors in itertools.product((1, 5, 34, 70), (1, 33, 130), (2, 70, 96, 130), ("", "m", "n")):
        plain(m, n, k, majors)
        _mappings.clear()
    words = (torch.float32, torch.int32, torch.int16)
    for m, n, k, make_b, word, majors in itertools.product(
        (1, 5, 34, 70), (3, 130), (70, 160), (fp8, fp4), words, ("", "mn")
    ):
        quantised(m, n, k, make_b, word, majors)
        _mappings.clear()
    for n, k, make_b, word, at_start in itertools.product((3, 130), (70, 160), (fp8, fp4), words, (False, True)):
        m_grouped(n, k, make_b, word, at_start)
        _mappings.clear()
    for m, n, sizes, at_start in itertools.product((1, 33), (5, 130), ([128, 0, 256], [384]), (False, True)):
        k_grouped(m, n, sizes, at_start)
        _mappings.clear()
    print("stayed inside")


main()
