"""Tile sizes of the dense GEMM: a pure function of the problem's shape, with memory limits by formula.

The costs are a coarse model for choosing between tiles, not a prediction of run time (the simulator makes those).
"""

from __future__ import annotations

from .gemm_variant import ELEMENT_BITS, PAIR, STREAMED_VERSIONS, Element, Epilogue, Tiles

#: Bytes of the on-chip memories of one cube core and, for UB, of one vector core beside its SIMT data cache.
CAPACITY = {"L1": 512 * 1024, "L0A": 64 * 1024, "L0B": 64 * 1024, "L0C": 256 * 1024, "UB": 216 * 1024}

_SHAPES = ((128, 256), (256, 128), (128, 128), (64, 256), (32, 256), (16, 256))
_K_BYTES = {"L1": 512, "L0": 128}  # contiguous bytes along K of one step, for K-major operands
_GM_BYTES_PER_CYCLE = 100
_MAC_BITS_PER_CYCLE = 16 * 16 * 16 * 16  # 4096 MAC of 16 bits; half the bits, twice the MAC
_STORE_BYTES_PER_CYCLE = 128
_TILE_CYCLES = 600  # filling and draining the pipes once per tile


def footprint(tiles: Tiles, element: Element, is_scaled: bool, out_bytes: int, epilogue: Epilogue) -> dict[str, int]:
    """Return the bytes each on-chip memory needs, all buffer versions counted."""
    bits = ELEMENT_BITS[element]
    data = (tiles.m + tiles.n) * tiles.k * bits // 8
    scales = (tiles.m + tiles.n) * (tiles.k // PAIR) * 2 if is_scaled else 0
    half = tiles.m // 2 * tiles.n  # the two vector cores share the rows of a tile
    ub_bytes = {"store": 0, "scale": 4 + out_bytes}.get(epilogue, 4 + 2 * out_bytes)
    return {
        "L1": STREAMED_VERSIONS * (data + scales),
        "L0A": STREAMED_VERSIONS * tiles.m * tiles.k_step * bits // 8,
        "L0B": STREAMED_VERSIONS * tiles.n * tiles.k_step * bits // 8,
        "L0C": tiles.m * tiles.n * 4,
        "UB": half * ub_bytes,
    }


def fits(tiles: Tiles, element: Element, is_scaled: bool, out_bytes: int, epilogue: Epilogue) -> bool:
    """Return whether all buffers of a kernel fit on chip."""
    needed = footprint(tiles, element, is_scaled, out_bytes, epilogue)
    return all(needed[memory] <= limit for memory, limit in CAPACITY.items())


def transposed_row_multiple(element: Element) -> int:
    """Return the granularity of a transposing L1 -> L0 copy along the rows: 32 bytes, at least one 16-row fractal."""
    return max(16, 32 * 8 // ELEMENT_BITS[element])


def _candidates(element: Element) -> list[Tiles]:
    bits = ELEMENT_BITS[element]
    found = []
    for m, n in _SHAPES:
        step = _K_BYTES["L0"] * 8 // bits
        while STREAMED_VERSIONS * max(m, n) * step * bits // 8 > CAPACITY["L0A"]:
            step //= 2
        found.append(Tiles(m, n, _K_BYTES["L1"] * 8 // bits, step))
    return found


def cost(tiles: Tiles, m: int, n: int, k: int, element: Element, num_cores: int, copies: int = 1) -> float:
    """Return core cycles of the busiest core: the slower of loading and multiplying, plus storing, per tile."""
    bits = ELEMENT_BITS[element]
    rounds = -(-(copies * -(-m // tiles.m) * -(-n // tiles.n)) // num_cores)
    loading = (min(tiles.m, m) + min(tiles.n, n)) * k * bits / 8 / _GM_BYTES_PER_CYCLE
    multiplying = tiles.m * tiles.n * k * bits / _MAC_BITS_PER_CYCLE
    storing = min(tiles.m, m) * min(tiles.n, n) * 4 / _STORE_BYTES_PER_CYCLE
    return rounds * (max(loading, multiplying) + storing + _TILE_CYCLES)


def choose(
    m: int,
    n: int,
    k: int,
    element: Element,
    is_scaled: bool,
    out_bytes: int,
    epilogue: Epilogue,
    num_cores: int,
    row_multiple: int = 16,
    copies: int = 1,
    within: int | None = None,
) -> Tiles:
    """Return the cheapest tile sizes that fit; the smallest of equally cheap ones.

    Args:
        row_multiple: what tile rows must be a multiple of; see `transposed_row_multiple`.
        copies: products of this shape that are computed together (groups, batch entries).
        within: what the rows of A in a tile must divide; None allows any.
    """
    usable = [
        one
        for one in _candidates(element)
        if one.m % row_multiple == 0
        and one.n % row_multiple == 0
        and (within is None or within % one.m == 0)
        and fits(one, element, is_scaled, out_bytes, epilogue)
    ]
    return min(usable, key=lambda one: (cost(one, m, n, k, element, num_cores, copies), one.m * one.n))
