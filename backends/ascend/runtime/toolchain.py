"""Where TileLang finds the compiler and the linker for NPUs, by its own rule (`tilelang.contrib.bisheng`).

Repeated here because importing TileLang takes a second, and asking whether a backend can run must not.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def find_bisheng() -> str | None:
    """Return the compiler: ``BISHENG_HOME/bin``, then PATH."""
    home = os.environ.get("BISHENG_HOME")
    if home:
        candidate = os.path.join(home, "bin", "bisheng")
        if os.path.isfile(candidate):
            return candidate
    return shutil.which("bisheng")


def find_linker() -> str | None:
    """Return ``ld.lld``: below the folders that CANN's variables name, then beside the compiler, then on PATH."""
    homes = [os.environ.get(name) for name in ("BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    candidates = [folder / "ld.lld" for home in homes if home for folder in (Path(home) / "bin", Path(home))]
    bisheng = find_bisheng()
    if bisheng is not None:
        candidates.append(Path(bisheng).with_name("ld.lld"))
    found = next((str(candidate) for candidate in candidates if candidate.is_file()), None)
    return found or shutil.which("ld.lld")


def missing() -> list[str]:
    """Return the tools that are not there, each with where it was looked for."""
    lacking = []
    if find_bisheng() is None:
        lacking.append("TileLang's compiler `bisheng`, which is neither in BISHENG_HOME/bin nor on PATH")
    if find_linker() is None:
        lacking.append(
            "the linker `ld.lld`, which is not below BISHENG_HOME, ASCEND_HOME_PATH or ASCEND_TOOLKIT_HOME, not beside "
            "`bisheng` and not on PATH"
        )
    return lacking
