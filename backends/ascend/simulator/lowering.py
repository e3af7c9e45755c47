"""TileLang functions to Ascend C and its launch description, through the cache.

The only module that imports TileLang, and only when something has to be lowered. It neither compiles nor runs kernels.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cache import Cache, digest
from .errors import LaunchError


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as the TileLang function declares it: a tensor with (symbolic) shape, or a scalar."""

    name: str
    dtype: str
    is_tensor: bool
    shape: tuple[str, ...] = ()  # Python expressions over scalar names
    strides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """Launch facts of one device function."""

    symbol: str
    grid: str  # Python expression over scalar names
    read_only: tuple[int, ...]  # positions of pointer parameters the function never writes
    names: dict[str, str]  # device pointer name -> argument name, where they differ


@dataclass(frozen=True, slots=True)
class Lowered:
    """Generated source and everything needed to launch it without TileLang."""

    source: str
    arguments: tuple[Argument, ...]
    functions: tuple[DeviceFunction, ...]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(data: bytes) -> Lowered:
        raw = json.loads(data)
        arguments = tuple(
            Argument(a["name"], a["dtype"], a["is_tensor"], tuple(a["shape"]), tuple(a["strides"]))
            for a in raw["arguments"]
        )
        functions = tuple(
            DeviceFunction(f["symbol"], f["grid"], tuple(f["read_only"]), f["names"]) for f in raw["functions"]
        )
        return Lowered(raw["source"], arguments, functions)


def template_folder() -> Path:
    """Where the installed TileLang keeps the device headers that generated code includes."""
    distribution = importlib.metadata.distribution("tilelang")
    located = Path(str(distribution.locate_file("tilelang"))) / "src"
    if located.is_dir():
        return located
    import tilelang

    return Path(tilelang.__file__).parent / "src"


_BINARY = {
    "Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "Div": "//", "Mod": "%",
    "LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!=", "And": "and", "Or": "or",
}  # fmt: skip
_CALLS = {"shift_right": ">>", "shift_left": "<<", "bitwise_and": "&", "bitwise_or": "|"}


def python_expression(expression: Any) -> str:
    """A TileLang integer expression as a Python expression over variable names (extents are never negative)."""
    if isinstance(expression, int):
        return str(expression)
    kind = type(expression).__name__
    if kind == "IntImm":
        return str(int(expression.value))
    if kind in ("Var", "SizeVar"):
        return str(expression.name)
    if kind in _BINARY:
        return f"({python_expression(expression.a)} {_BINARY[kind]} {python_expression(expression.b)})"
    if kind in ("Min", "Max"):
        return f"{kind.lower()}({python_expression(expression.a)}, {python_expression(expression.b)})"
    if kind == "Cast":
        return python_expression(expression.value)
    if kind == "Select":
        condition, yes, no = (
            python_expression(getattr(expression, n)) for n in ("condition", "true_value", "false_value")
        )
        return f"({yes} if {condition} else {no})"
    if kind == "Call":
        name = str(expression.op.name).rpartition(".")[2]
        if name in _CALLS:
            left, right = map(python_expression, expression.args)
            return f"({left} {_CALLS[name]} {right})"
        if name == "if_then_else":
            condition, yes, no = map(python_expression, expression.args)
            return f"({yes} if {condition} else {no})"
    raise LaunchError(f"the launch uses an expression the simulator cannot evaluate: {expression} ({kind})")


def _arguments(prim_func: Any) -> tuple[Argument, ...]:
    arguments = []
    for parameter in prim_func.params:
        buffer = prim_func.buffer_map.get(parameter) if hasattr(prim_func.buffer_map, "get") else None
        if buffer is None and parameter in prim_func.buffer_map:
            buffer = prim_func.buffer_map[parameter]
        if buffer is None:
            arguments.append(Argument(str(parameter.name), str(parameter.dtype), False))
            continue
        arguments.append(
            Argument(
                str(buffer.data.name),
                str(buffer.dtype),
                True,
                tuple(map(python_expression, buffer.shape)),
                tuple(map(python_expression, buffer.strides)),
            )
        )
    return tuple(arguments)


def _renamed(artifact: Any, missing: set[str]) -> dict[str, str]:
    """A tensor used only through T.view appears under the view's name; the host wrapper knows whose data it is."""
    text = artifact.host_mod.script()
    names = {}
    for view in missing:
        match = re.search(rf"\b{re.escape(view)}\b[^\n]*tvm_struct_get\((\w+?)_handle\b", text)
        if match:
            names[view] = match.group(1)
    return names


def _functions(artifact: Any, arguments: tuple[Argument, ...]) -> tuple[DeviceFunction, ...]:
    known = {a.name for a in arguments}
    functions = []
    for function in artifact.device_mod.functions.values():
        pointers = [str(p.name) for p in function.params if str(p.dtype) == "handle"]
        missing = {p for p in pointers if p not in known}
        grid = function.attrs["thread_extent"]["blockIdx.x"]
        read_only = tuple(int(i) for i in function.attrs.get("tl.readonly_param_indices", ()))
        functions.append(
            DeviceFunction(
                str(function.attrs["global_symbol"]),
                python_expression(grid),
                read_only,
                _renamed(artifact, missing) if missing else {},
            )
        )
    return tuple(functions)


def edits_sources() -> bool:
    """Whether the program has registered a function that rewrites generated sources: what it does is in no cache key."""
    if "tvm_ffi" not in sys.modules:
        return False
    get = importlib.import_module("tvm_ffi").get_global_func
    return get("tilelang_callback_ascend_postproc", allow_missing=True) is not None


def lower(prim_func: Any, pass_configs: dict[str, Any] | None, cache: Cache) -> Lowered:
    """Lower a TileLang function for the Ascend target, or find it in the cache."""
    version = importlib.metadata.version("tilelang")
    configs = {str(k): v for k, v in (pass_configs or {}).items()}
    script = prim_func.script(show_meta=False)
    key = digest(script, json.dumps(configs, sort_keys=True, default=str), version, "lowered-1")
    edited = edits_sources()
    stored = None if edited else cache.load("json", key)
    if stored is not None:
        return Lowered.from_json(stored)
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "ascend"})
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a failing lowering is reported by its exception, once
    try:
        with tvm.transform.PassContext(opt_level=3, config=configs), target:
            artifact = tilelang.lower(prim_func, target=target, enable_host_codegen=False, enable_device_compile=False)
    finally:
        logging.disable(level)
    arguments = _arguments(prim_func)
    lowered = Lowered(artifact.kernel_source, arguments, _functions(artifact, arguments))
    if not edited:
        cache.store("json", key, lowered.to_json())
    return lowered
