"""Turns generated Ascend C into a C++ translation unit for the host compiler, keeping its line numbers.

Only text is changed here: launch signatures are read, UB base addresses, SIMT and SIMD calls are redirected to the
core. No compiler is run and no meaning of a builtin lives here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KERNEL = re.compile(r'extern "C" __global__ (__cube__|__vector__|__mix__\(\d+, ?\d+\)) void (\w+)\(([^)]*)\)')
_UB_BASE = re.compile(r"\(__ubuf__\s+([\w:]+)\s*\*\)\s*(\d+)\b")
_SIMT = re.compile(r"__simt_vf__\s+(?:__launch_bounds__\(\d+\)\s+)?inline void (\w+)\(")
_SIMD = re.compile(r"__simd_vf__\s+inline void (\w+)\(")
_VF_CALL = re.compile(r"asc_vf_call<(\w+)>\(")
_SCATTER = re.compile(r"^(\s*)(ascend_nd2nz_scatter<[^>]*>\(.*\));", re.M)
_LOCKSTEP = re.compile(
    r"asc_sync|asc_shfl|asc_reduce|asc_ballot|asc_activemask|asc_a[nl][yl]\(|AllReduce|coalesced_threads|laneid"
)
_PRINTS = re.compile(r"debug_print|printf")
_POINTER_FROM_MEMORY = re.compile(r"\(\*\(__gm__ [\w:]+ ?\* ?\*\)\(&")
_ATOMIC = re.compile(r"asc_set_atomic_(?!none)|asc_atomic_")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a device function: `ctype` without qualifiers, `pointer` for GM tensors."""

    name: str
    ctype: str
    pointer: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """One device function: its symbol, which cores run it, and its parameters in call order."""

    symbol: str
    kind: str  # "cube", "vector" or "mixed"
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Translation:
    """The compilable text and what the launch needs to know about it."""

    text: str
    signatures: tuple[Signature, ...]
    uses_simd: bool
    inter_block: bool  # blocks wait for each other
    has_atomics: bool
    follows_pointers: bool  # tensors are reached through addresses kept in other tensors


def read_signatures(source: str) -> tuple[Signature, ...]:
    """The device functions of a generated source, in source order."""
    signatures = []
    for kind, symbol, parameters in _KERNEL.findall(source):
        kinds = {"__cube__": "cube", "__vector__": "vector"}
        signatures.append(Signature(symbol, kinds.get(kind, "mixed"), tuple(map(_parameter, _split(parameters)))))
    return tuple(signatures)


def _split(arguments: str) -> list[str]:
    return [a for a in (part.strip() for part in arguments.split(",")) if a]


def _parameter(text: str) -> Parameter:
    words = re.sub(r"__gm__|__restrict__|\bconst\b", " ", text).replace("*", " * ").split()
    return Parameter(words[-1], " ".join(w for w in words[:-1] if w != "*"), "*" in words)


def _closing(text: str, start: int, opening: str = "{", closing: str = "}") -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == opening) - (text[position] == closing)
        if depth == 0 and text[position] == closing:
            return position
    raise ValueError("unbalanced brackets in the generated source")


def _rewrite_simt(text: str) -> tuple[str, dict[str, int]]:
    """Gives SIMT functions their thread index as a parameter; returns how each has to be run (bit 0: lock-step)."""
    modes: dict[str, int] = {}
    position = 0
    while match := _SIMT.search(text, position):
        open_brace = text.index("{", _closing(text, match.end() - 1, "(", ")"))
        close_brace = _closing(text, open_brace)
        body = text[open_brace:close_brace]
        modes[match.group(1)] = bool(_LOCKSTEP.search(body)) | (bool(_PRINTS.search(body)) << 1)
        empty = text[match.end() :].lstrip().startswith(")")
        head = text[match.start() : match.end()] + "::usim::ThreadIndex usim_thread" + ("" if empty else ", ")
        body = re.sub(r"\bthreadIdx\b", "usim_thread", body)
        changed = head + text[match.end() : open_brace] + body
        text = text[: match.start()] + changed + text[close_brace:]
        position = match.start() + len(changed)
    return text, modes


def _rewrite_calls(text: str, modes: dict[str, int]) -> str:
    def launch(match: re.Match[str]) -> str:
        name = match.group(1)
        return f'::usim::vf_call<{name}, {modes.get(name, 1)}>("{name}", '

    text = _VF_CALL.sub(launch, text)
    for name in _SIMD.findall(text):
        call = re.compile(rf"^(\s*)({name}\(.*\));", re.M)
        text = call.sub(rf'\1::usim::simd_call("{name}", [=] {{ \2; }});', text)
    return _SCATTER.sub(r'\1::usim::simd_call("ascend_nd2nz_scatter", [=] { \2; });', text)


def _entries(signatures: tuple[Signature, ...]) -> str:
    lines = ['#include "usim/entry.h"']
    for s in signatures:
        arguments = ", ".join(
            f"*({p.ctype}**)usim_args[{i}]" if p.pointer else f"*({p.ctype}*)usim_args[{i}]"
            for i, p in enumerate(s.parameters)
        )
        lines.append(
            f'extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) '
            f"void usim_entry_{s.symbol}(void** usim_args) {{ {s.symbol}({arguments}); }}"
        )
    return "\n".join(lines) + "\n"


def translate(source: str) -> Translation:
    """Make generated Ascend C compilable by a host compiler. Line n of the result is line n of `source`."""
    signatures = read_signatures(source)
    uses_simd = bool(_SIMD.search(source)) or "nd2nz_copy" in source or "simd_inst" in source
    text = _UB_BASE.sub(r"((\1*)(::usim::ub_base() + \2))", source)
    text, modes = _rewrite_simt(text)
    text = _rewrite_calls(text, modes)
    text = re.sub(r"\bdevice_assert(?:_with_msg)?\(", "::usim::device_assert(", text)
    if "debug_print" in text:
        # Two copies of these functions exist, told apart by the vendor's compiler; here one is made visible.
        last = list(re.finditer(r"^#include .*\n", text, re.M))[-1].end()
        text = text[:last] + "using namespace __asc_simt_vf; " + text[last:]
    return Translation(
        text=text.rstrip("\n") + "\n" + _entries(signatures),
        signatures=signatures,
        uses_simd=uses_simd,
        inter_block="asc_sync_inter_" in source,
        has_atomics=bool(_ATOMIC.search(source)),
        follows_pointers=bool(_POINTER_FROM_MEMORY.search(source)),
    )
