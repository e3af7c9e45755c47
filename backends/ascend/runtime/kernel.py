"""What a kernel is to the executors: a TileLang program and the variant of it, named but not yet built.

Nothing here imports TileLang, so that a kernel that is compiled already costs no import of it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE = "unikernels.backends.ascend.programs"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One variant of one TileLang program.

    Attributes:
        program: module in the programs folder with a function ``build(variant)`` that returns a TileLang prim_func.
        variant: everything the program is specialised on; a frozen dataclass whose repr says all of it.
    """

    program: str
    variant: Hashable

    def build(self) -> Any:
        """Return the prim_func; imports TileLang."""
        return importlib.import_module(f"{_PACKAGE}.{self.program}").build(self.variant)

    def key(self) -> str:
        """Return a name that changes with the variant and with the text of the program, for caches on disk."""
        return hashlib.sha256(f"{self.program}\n{self.variant!r}\n{_text_digest(self.program)}".encode()).hexdigest()[
            :40
        ]


@functools.cache
def _text_digest(program: str) -> str:
    """Digest of the modules a program is made of: its own, shared steps and the variants', the only ones programs import."""
    folder = Path(__file__).parents[1] / "programs"
    found = hashlib.sha256()
    shared = sorted([*folder.glob("*_steps.py"), *folder.glob("*variant*.py")])
    for path in [folder / f"{program}.py", *shared]:
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
