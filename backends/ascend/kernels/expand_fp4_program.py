"""The TileLang program that turns FP4 bytes (two E2M1) into pairs of E4M3 bytes, on the vector cores.

Importing this module imports TileLang.
"""

# mypy: ignore-errors
# TileLang rewrites these functions from their source: annotations are tensor types, assignments declare buffers.

from typing import Any

import tilelang.ascend.language as T

from .expand_fp4_variant import ExpandVariant

THREADS = 256


def build(variant: ExpandVariant) -> Any:
    """Return the prim_func (codes [bytes] uint8, pairs [bytes] uint16).

    E2M1 magnitude 0 is E4M3 0x00, 1 (0.5) is 0x30, and any other m is 0x30 + 4m; the sign moves from bit 3 to bit 7. The
    code 0x8 becomes +0.
    """
    N = T.dynamic("N")
    block, cores = variant.block, variant.num_cores

    @T.prim_func
    def expand_fp4(codes: T.Tensor((N,), "uint8"), pairs: T.Tensor((N,), "uint16")):
        with T.Kernel(cores) as core:
            packed = T.alloc_shared((block,), "uint8")
            expanded = T.alloc_shared((block,), "uint16")
            T.annotate_buffer_versions({packed: 2, expanded: 2})
            for step in range(T.ceildiv(T.ceildiv(N, block) - core, cores)):
                start = T.alloc_var("int32")
                start = (step * cores + core) * block
                T.assume(start >= 0 and start < N)
                T.copy(codes[start : start + block], packed)
                with T.SimtVF(threads=THREADS):
                    for i in T.Parallel(block):
                        byte = T.alloc_var("int32")
                        low = T.alloc_var("int32")
                        high = T.alloc_var("int32")
                        byte = T.cast(packed[i], "int32")
                        low = (byte & 7) * 4 + 48 + (byte & 8) * 16
                        low = T.if_then_else((byte & 7) == 1, 48 + (byte & 8) * 16, low)
                        low = T.if_then_else((byte & 7) == 0, 0, low)
                        byte = byte >> 4
                        high = (byte & 7) * 4 + 48 + (byte & 8) * 16
                        high = T.if_then_else((byte & 7) == 1, 48 + (byte & 8) * 16, high)
                        high = T.if_then_else((byte & 7) == 0, 0, high)
                        expanded[i] = T.cast(low + high * 256, "uint16")
                T.copy(expanded, pairs[start : start + block])

    return expand_fp4
