"""Tile sizes that were chosen by predicted time, from data/tuned_gemm.json; shapes it does not name take the heuristic's.

`unikernels tune --backend ascend` writes the table (ahead_of_time.py). No TileLang here.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..programs.gemm_variant import Element, GemmForm, Tiles
from .gemm_tiles import Sizes, fits, row_class

TABLE = Path(__file__).parent / "data" / "tuned_gemm.json"


@dataclass(frozen=True, slots=True, order=True)
class TunedKey:
    """What a tuned configuration is for: the kernel without its tiles, and a problem's size."""

    element: Element
    is_scaled: bool
    a_is_k_major: bool
    b_is_k_major: bool
    out: str
    num_cores: int
    m: int
    n: int
    k: int

    @property
    def form(self) -> GemmForm:
        return GemmForm(
            self.element, self.is_scaled, self.a_is_k_major, self.b_is_k_major, self.out, "store", self.num_cores
        )

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.m, self.n, self.k)

    def in_class(self) -> TunedKey:
        """Return the key that stands for all M of a class."""
        return replace(self, m=row_class(self.m))


@dataclass(frozen=True, slots=True)
class Tuned:
    """A configuration and the predicted cycles of a problem of its class's size."""

    tiles: Tiles
    cycles: int


def tuned_tiles(form: GemmForm, sizes: Sizes) -> Tiles | None:
    """Return the tuned tiles for a problem, None if the table has none: it is for single products, stored as they are."""
    if sizes.copies != 1 or form.epilogue != "store" or form.packed:
        return None
    key = TunedKey(
        form.element, form.is_scaled, form.a_is_k_major, form.b_is_k_major, form.out, form.num_cores,
        sizes.m, sizes.n, sizes.k,
    )  # fmt: skip
    found = _committed().get(key.in_class())
    return found.tiles if found else None


@functools.cache
def _committed() -> dict[TunedKey, Tuned]:
    return load(TABLE)


def load(file: Path) -> dict[TunedKey, Tuned]:
    """Read a table; a file that does not exist is an empty one.

    Raises:
        ValueError: the file is no such table, or a configuration does not fit the on-chip memories.
    """
    if not file.exists():
        return {}
    try:
        rows = [_row(row) for row in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is no table of tuned tiles ({error}). Remove it, or choose another file.") from error
    table = {}
    for key, tuned in rows:
        if not fits(key.form, tuned.tiles):
            raise ValueError(f"{file} holds tiles that do not fit on chip: {tuned.tiles} for {key}.")
        table[key] = tuned
    return table


def _row(row: dict[str, Any]) -> tuple[TunedKey, Tuned]:
    tuned = Tuned(Tiles(*row.pop("tiles")), row.pop("cycles"))
    return TunedKey(**row), tuned


def save(file: Path, table: dict[TunedKey, Tuned]) -> None:
    """Write a table, sorted, one row per line; whoever reads the file meanwhile finds the old one or the new one."""
    rows = []
    for key, tuned in sorted(table.items(), key=lambda item: item[0]):
        tiles = [tuned.tiles.m, tuned.tiles.n, tuned.tiles.k, tuned.tiles.k_step]
        rows.append(json.dumps({**asdict(key), "tiles": tiles, "cycles": tuned.cycles}))
    written = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        written.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)
