"""Time of packing float32 scales for Ascend, against the same steps written with torch operations.

One JSON line per case: median microseconds of both, measured alternately in this process, their ratio, and the ratio of
the fastest runs, which other load on the machine disturbs less.
Run: python benchmarks/scale_packing.py
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from unikernels.scale_layouts import ScaleFormat, Scales, convert_scales

REPEATS = 101
CASES = [(8192, 7168, 1, 128), (8192, 7168, 1, 32), (4096, 7168, 128, 128), (128, 7168, 1, 128), (1, 7168, 1, 128)]


def pack_with_torch(sf: Tensor, mn: int, gran_mn: int, repeat: int) -> Tensor:
    """Check, take exponents, repeat along both axes, pair along K, and make MN contiguous: seven torch operations."""
    bits = sf.view(torch.int32)
    if bool((bits & -0x7F800001).any()):
        raise ValueError("not a power of two")
    exponents = (bits >> 23).to(torch.uint8)
    if gran_mn > 1:
        exponents = exponents.repeat_interleave(gran_mn, 0)[:mn]
    if repeat > 1:
        exponents = exponents.repeat_interleave(repeat, 1)
    return exponents.view(torch.int16).t().contiguous().t()


def microseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e6 * (time.perf_counter() - start)


def main() -> None:
    """Print one line per case."""
    generator = torch.Generator().manual_seed(0)
    for mn, k, gran_mn, gran_k in CASES:
        rows = -(-mn // gran_mn)
        sf = torch.exp2(torch.randint(-20, 20, (rows, k // gran_k), generator=generator).float())
        scales = Scales(sf, ScaleFormat.FP32, gran_mn, gran_k, mn, k)

        def packer(scales: Scales = scales) -> Tensor:
            return convert_scales(scales, ScaleFormat.UE8M0X2_INT16).data

        def plain(sf: Tensor = sf, mn: int = mn, gran_mn: int = gran_mn, repeat: int = gran_k // 32) -> Tensor:
            return pack_with_torch(sf, mn, gran_mn, repeat)

        if not torch.equal(packer(), plain()):
            raise AssertionError(f"results differ for {mn=} {k=} {gran_mn=} {gran_k=}")
        times = [(microseconds(packer), microseconds(plain)) for _ in range(REPEATS)]
        ours, theirs = zip(*times, strict=True)
        line = {
            "case": f"float32 [{rows}, {k // gran_k}] per {gran_mn}x{gran_k} -> int16 [{mn}, {k // 64}]",
            "packer_us": round(statistics.median(ours), 1),
            "torch_us": round(statistics.median(theirs), 1),
            "ratio": round(statistics.median(theirs) / statistics.median(ours), 2),
            "ratio_of_fastest": round(min(theirs) / min(ours), 2),
            "threads": torch.get_num_threads(),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
