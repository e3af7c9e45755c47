"""The table of instructions, generated from the one list the core is built from.

``python -m unikernels.backends.ascend.simulator.coverage`` rewrites the table in docs/simulator.md of a checkout.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

from . import _simulator
from .compiler import find_compiler, include_folder

BEGIN = "<!-- generated: instructions, by unikernels.backends.ascend.simulator.coverage -->"
END = "<!-- end of generated -->"
_PROBE = '#include "c_api/asc_simd.h"\n#include "simt_api/asc_simt.h"\n'
_GROUPS = (
    ("SIMT: barriers, warp functions, atomics", "simt_"),
    ("SIMD: registers, loads, stores, arithmetic, permutations, reductions", "simd"),
    ("scalar", "sync.h"),
)


def header_builtins() -> dict[str, list[str]]:
    """Builtins the device headers implement, by group: what is left after preprocessing, without the core's own."""
    command = [*find_compiler(), "-std=c++20", "-E", "-DUSIM_SIMD", f"-I{include_folder()}", "-x", "c++", "-"]
    text = subprocess.run(command, input=_PROBE, capture_output=True, text=True, check=True).stdout
    core = {name for name, _, _, _ in _simulator.INSTRUCTIONS}
    groups: dict[str, set[str]] = {title: set() for title, _ in _GROUPS}
    file = ""
    for line in text.splitlines():
        if line.startswith("# "):
            file = line.split('"')[1].rpartition("/")[2]
            continue
        for title, prefix in _GROUPS:
            if file.startswith(prefix):
                groups[title] |= set(re.findall(r"\b(asc_[a-z0-9_]+)\s*\(", line)) - core
    return {title: sorted(names) for title, names in groups.items()}


def table() -> str:
    """The instruction table as Markdown."""
    lines = ["| builtin | pipe | group | reference section |", "|---|---|---|---|"]
    for name, pipe, group, section in _simulator.INSTRUCTIONS:
        lines.append(f"| `{name}` | {'named by the call' if pipe == '*' else pipe} | {group} | {section} |")
    lines += ["", "Builtins implemented in the device headers (`include/usim/`):", ""]
    for title, names in header_builtins().items():
        lines += [f"{title}:", ""]
        lines += textwrap.wrap(", ".join(f"`{name}`" for name in names) + ".", 120, break_long_words=False)
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def update(document: Path) -> None:
    """Replace the generated part of a document."""
    text = document.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    document.write_text(f"{text[:start]}\n\n{table()}\n\n{text[end:]}")


if __name__ == "__main__":
    update(Path(__file__).parents[3] / "docs" / "simulator.md")
