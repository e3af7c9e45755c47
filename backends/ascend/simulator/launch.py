"""simulate(): bind tensors and scalars to a kernel, run it in the core, turn faults into exceptions.

Binding and reporting only; lowering, compiling and execution are elsewhere.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from . import _simulator
from .cache import Cache
from .compiler import compile_kernel, source_line
from .errors import FAULTS, KernelFaultError, LaunchError
from .lowering import Argument, Lowered, edits_sources, lower, template_folder
from .report import Recording, Report
from .rewrite import Parameter, Signature, Translation, translate

_SCALAR_FORMATS = {
    "int8_t": "b", "uint8_t": "B", "bool": "?", "int16_t": "h", "uint16_t": "H", "int32_t": "i", "uint32_t": "I",
    "int64_t": "q", "uint64_t": "Q", "float": "f", "double": "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel that is ready to run: its description, its text and its library, checked and unchecked on demand."""

    lowered: Lowered
    translation: Translation
    cache: Cache
    _libraries: dict[tuple[bool, bool], tuple[Path, Any]] = field(default_factory=dict, compare=False, repr=False)

    def library(self, *, check: bool, saturate: bool) -> tuple[Path, Any]:
        """The shared library for one mode, found and loaded once: looking into the cache costs more than a small launch."""
        known = self._libraries.get((check, saturate))
        if known is not None:
            return known
        path = compile_kernel(
            self.translation.text,
            self.translation.signatures[0].symbol,
            check=check,
            simd=self.translation.uses_simd,
            saturate=saturate,
            templates=template_folder(),
            cache=self.cache,
        )
        self._libraries[check, saturate] = path, _load(str(path))
        return self._libraries[check, saturate]


@functools.lru_cache(maxsize=256)
def _load(path: str) -> Any:
    return _simulator.Kernel(path)


@functools.lru_cache(maxsize=1)
def shared_cache() -> Cache:
    """The cache of this process, in the folder chosen by UNIKERNELS_SIMULATOR_CACHE or the user's cache folder."""
    return Cache()


_compiled: dict[tuple[int, str], tuple[Any, CompiledKernel]] = {}


def prepare(kernel: Any, pass_configs: dict[str, Any] | None = None, cache: Cache | None = None) -> CompiledKernel:
    """Lower and translate a TileLang function, JIT kernel or generated source description."""
    cache = cache or shared_cache()
    if isinstance(kernel, CompiledKernel):
        return kernel
    if isinstance(kernel, Lowered):
        return CompiledKernel(kernel, translate(kernel.source), cache)
    prim_func = getattr(kernel, "prim_func", kernel)
    if not hasattr(prim_func, "buffer_map"):
        raise LaunchError(
            f"simulate() takes a TileLang prim_func, a jit kernel or a prepared kernel, got {type(kernel).__name__}. "
            "Call a kernel factory first and pass what it returns."
        )
    # Same object, same configuration: skip printing the script, which costs more than a small kernel's run.
    key = (id(prim_func), repr(sorted((pass_configs or {}).items(), key=str)))
    known = _compiled.get(key)
    if known is not None and known[0] is prim_func and known[1].cache is cache and not edits_sources():
        return known[1]
    lowered = lower(prim_func, pass_configs, cache)
    prepared = CompiledKernel(lowered, translate(lowered.source), cache)
    if not edits_sources():
        _compiled[key] = (prim_func, prepared)
    return prepared


def _bind_arguments(
    arguments: tuple[Argument, ...], values: tuple[Any, ...], scalars: dict[str, Any]
) -> dict[str, Any]:
    bound: dict[str, Any] = {}
    positional = list(values)
    for argument in arguments:
        if argument.name in scalars:
            bound[argument.name] = scalars[argument.name]
        elif positional:
            bound[argument.name] = positional.pop(0)
        else:
            expected = ", ".join(a.name for a in arguments)
            raise LaunchError(f"argument '{argument.name}' is missing; the kernel takes ({expected})")
    if positional:
        raise LaunchError(f"{len(values)} positional arguments given, but the kernel takes {len(arguments)}")
    unknown = set(scalars) - {a.name for a in arguments}
    if unknown:
        raise LaunchError(f"the kernel has no argument named {sorted(unknown)}; it takes {[a.name for a in arguments]}")
    return bound


_TORCH_NAMES = {
    "float8_e4m3": "float8_e4m3fn", "e4m3_float8": "float8_e4m3fn", "e5m2_float8": "float8_e5m2",
    "handle": "int64", "boolean": "bool",
}  # fmt: skip


def _check_tensor(argument: Argument, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise LaunchError(f"argument '{argument.name}' must be a torch tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise LaunchError(
            f"argument '{argument.name}' is on {tensor.device}; the simulator reads CPU tensors: pass {argument.name}.cpu()"
        )
    expected = re.sub(r"x\d+$", "", _TORCH_NAMES.get(argument.dtype, argument.dtype))
    given = str(tensor.dtype).removeprefix("torch.")
    # fp4 and e8m0 travel as bytes in torch; sizes, not names, decide there.
    opaque = "float4" in expected or "e8m0" in expected or given == "uint8"
    if given != expected and not opaque:
        raise LaunchError(f"argument '{argument.name}' has dtype {given}, expected {expected}")


def _logical(argument: Argument, tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    """Shape and strides in elements of the declared dtype; torch holds two 4-bit values per byte."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    if "float4" in argument.dtype and shape:
        shape[-1] *= 2
        strides = [*(s * 2 for s in strides[:-1]), strides[-1]]
    return shape, strides


def _solve_shapes(arguments: tuple[Argument, ...], bound: dict[str, Any]) -> dict[str, int]:
    """Values of the symbolic sizes, read off the tensors that declare them."""
    sizes: dict[str, int] = {a.name: bound[a.name] for a in arguments if not a.is_tensor}
    for argument in arguments:
        if not argument.is_tensor:
            continue
        tensor = bound[argument.name]
        _check_tensor(argument, tensor)
        if tensor.dim() != len(argument.shape):
            raise LaunchError(
                f"argument '{argument.name}' has shape {tuple(tensor.shape)}, expected {len(argument.shape)} dimensions ({', '.join(argument.shape)})"
            )
        shape, strides = _logical(argument, tensor)
        for values, names in ((shape, argument.shape), (strides, argument.strides)):
            for value, name in zip(values, names, strict=False):
                if name.isidentifier():
                    sizes.setdefault(name, int(value))
    for argument in arguments:
        if argument.is_tensor:
            _check_shape(argument, bound[argument.name], sizes)
    return sizes


@functools.lru_cache(maxsize=1024)
def _code(expression: str) -> CodeType:
    return compile(expression, "<size>", "eval")


def _evaluate(expression: str, sizes: dict[str, int]) -> int:
    return int(eval(_code(expression), {"__builtins__": {}, "min": min, "max": max}, sizes))


def _check_shape(argument: Argument, tensor: torch.Tensor, sizes: dict[str, int]) -> None:
    expected = [_evaluate(e, sizes) for e in argument.shape]
    shape, strides = _logical(argument, tensor)
    if shape != expected:
        packed = ", two values per byte along the last" if "float4" in argument.dtype else ""
        raise LaunchError(
            f"argument '{argument.name}' has shape {tuple(tensor.shape)}, expected {tuple(expected)} ({', '.join(argument.shape)}{packed})"
        )
    if argument.strides:
        wanted = [_evaluate(e, sizes) for e in argument.strides]
        if wanted != strides:
            raise LaunchError(f"argument '{argument.name}' has strides {tuple(strides)}, expected {tuple(wanted)}")
    elif not tensor.is_contiguous():
        raise LaunchError(
            f"argument '{argument.name}' is not contiguous (strides {tuple(tensor.stride())}); pass {argument.name}.contiguous()"
        )


def _torch_dtype(name: str) -> torch.dtype:
    plain = re.sub(r"x\d+$", "", _TORCH_NAMES.get(name, name))
    if plain == "float4_e2m1fn":
        plain = "float4_e2m1fn_x2"
    return getattr(torch, plain, torch.uint8)  # what torch has no type for travels as bytes


def allocate_outputs(arguments: tuple[Argument, ...], inputs: list[Any], outputs: list[int]) -> dict[int, torch.Tensor]:
    """Fresh tensors for the arguments at positions `outputs`; `inputs` are the others, in order."""
    remaining = iter(inputs)
    given: dict[int, Any] = {i: next(remaining, None) for i in range(len(arguments)) if i not in outputs}
    sizes: dict[str, int] = {}
    for index, value in given.items():
        argument = arguments[index]
        if not argument.is_tensor:
            sizes[argument.name] = value
        elif isinstance(value, torch.Tensor):
            for extent, name in zip(value.shape, argument.shape, strict=False):
                if name.isidentifier():
                    sizes.setdefault(name, int(extent))
    made = {}
    for index in outputs:
        argument = arguments[index]
        shape = [_evaluate(e, sizes) for e in argument.shape]
        if "float4" in argument.dtype:
            shape[-1] //= 2
        made[index] = torch.empty(shape, dtype=_torch_dtype(argument.dtype))
    return made


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first to behind the last element that the tensor's strides reach."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _pack_scalar(parameter: Parameter, value: Any) -> bytes:
    if parameter.ctype in ("half", "bfloat16_t"):
        dtype = torch.float16 if parameter.ctype == "half" else torch.bfloat16
        return struct.pack("<h", int(torch.tensor(float(value), dtype=dtype).view(torch.int16)))
    code = _SCALAR_FORMATS.get(parameter.ctype)
    if code is None:
        raise LaunchError(f"scalar '{parameter.name}' has the unsupported type {parameter.ctype}")
    try:
        return struct.pack("<" + code, float(value) if code in "fd" else int(value))
    except struct.error as error:
        raise LaunchError(f"scalar '{parameter.name}' = {value!r} does not fit {parameter.ctype}: {error}") from None


def _fault(fault: dict[str, Any], signature: Signature, path: Path) -> KernelFaultError:
    name = path_name = signature.symbol
    lines = [source_line(path, site, path_name) for site in fault["sites"]]
    message = fault["message"]
    for index, line in enumerate(lines[:-1]):
        message = message.replace("{" + str(index) + "}", f"line {line}" if line else "unknown line")
    where = f"simulator: kernel '{name}', block {fault['block']}, core {fault['core']}"
    if fault["pipe"]:
        where += f", pipe {fault['pipe']}, {fault['builtin']}"
    if lines[-1]:
        where += f", line {lines[-1]}"
    error = FAULTS[fault["kind"]](f"{where}: {message}.")
    error.kernel, error.block, error.core, error.pipe = name, fault["block"], fault["core"], fault["pipe"]
    error.builtin, error.line = fault["builtin"], lines[-1]
    return error


def _pointed_to(bound: dict[str, Any], arguments: tuple[Argument, ...]) -> list[tuple[str, int, int, bool]]:
    """Memory that tables of pointers among the arguments lead to: the storages of live tensors, as (name, address, bytes).

    A table holds addresses only; how far the memory behind each reaches is known to the tensor that owns it.
    """
    tables = [a.name for a in arguments if a.is_tensor and a.dtype == "int64"]
    # type(), not isinstance(): asking every object for its class would wake lazy and deprecated ones.
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    alive = [t for t in tensors if t.layout is torch.strided and t.device.type == "cpu"]
    spans = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in alive)}
    passed = {t.untyped_storage().data_ptr() for t in bound.values() if isinstance(t, torch.Tensor)}
    found: dict[int, tuple[str, int, int, bool]] = {}
    for name in tables:
        for index, pointer in enumerate(bound[name].reshape(-1).tolist()):
            for base, size in spans.items():
                if base <= pointer < base + size and base not in passed:
                    found.setdefault(base, (f"{name}[{index}]", base, size, True))
    return list(found.values())


def _library_name(signatures: tuple[Signature, ...]) -> str:
    return signatures[0].symbol


def simulate(
    kernel: Any,
    *tensors: Any,
    pass_configs: dict[str, Any] | None = None,
    check: str = "on",
    functional: bool = True,
    seed: int | None = None,
    saturate: bool = False,
    threads: int | None = None,
    memories: bool = False,
    **scalars: Any,
) -> Report:
    """Run a TileLang Ascend kernel on CPU tensors, in place, and report what happened.

    Args:
        kernel: a TileLang ``prim_func`` (or an object with one, such as a jit kernel).
        tensors: the kernel's arguments in its own order; CPU tensors of the declared dtypes and shapes. Outputs are
            written in place.
        pass_configs: TileLang pass configuration used for lowering.
        check: "on" raises a `KernelFaultError` subclass for every hazard; "off" runs a build without checks, at full speed.
        functional: False runs the cores' programs without moving data, which is enough to time large problems; with check="off"
            only, because checks follow the data.
        seed: None runs in program order, the same every time; a number interleaves pipes and cores at random.
        saturate: conversions and mmad in saturate mode (CTRL[48] = 0) instead of the default Inf/NaN mode.
        threads: worker threads for independent blocks; default: the machine's processors.
        memories: keep the on-chip memories of block 0 as they are when it ends, in ``report.memories``.
        scalars: arguments by name.

    Raises:
        LaunchError: an argument does not fit the signature, or checks are asked for without data.
        KernelFaultError: the kernel broke a rule of the machine (one subclass per hazard).
        UnimplementedBuiltinError: the kernel uses something the simulator does not have.
    """
    if check not in ("on", "off"):
        raise LaunchError(f"check must be 'on' or 'off', got {check!r}")
    if check == "on" and not functional:
        raise LaunchError("check='on' follows data, and functional=False moves none; pass check='off' with it")
    prepared = prepare(kernel, pass_configs)
    lowered = prepared.lowered
    bound = _bind_arguments(lowered.arguments, tensors, scalars)
    sizes = _solve_shapes(lowered.arguments, bound)
    path, library = prepared.library(check=check == "on", saturate=saturate)
    options = {
        "check": check == "on",
        "functional": functional,
        "record": True,
        "saturate": saturate,
        "threads": 1 if prepared.translation.has_atomics else (threads or os.cpu_count() or 1),
        "seed": seed,
        "memories": memories,
    }
    signatures = {s.symbol: s for s in prepared.translation.signatures}
    behind_pointers = _pointed_to(bound, lowered.arguments) if prepared.translation.follows_pointers else []
    recordings: list[Recording] = []
    warnings: list[str] = []
    kept: dict[str, bytes] = {}
    for function in lowered.functions:
        signature = signatures[function.symbol]
        values: list[Any] = []
        specs: list[tuple[str, int, int, bool]] = []
        for position, parameter in enumerate(signature.parameters):
            name = function.names.get(parameter.name, parameter.name)
            if parameter.pointer:
                tensor = bound[name]
                specs.append((name, tensor.data_ptr(), _span(tensor), position not in function.read_only))
                values.append(tensor.data_ptr())
            else:
                values.append(_pack_scalar(parameter, sizes[name]))
        grid = _evaluate(function.grid, sizes)
        if grid <= 0:
            continue
        result = _simulator.run(
            library,
            function.symbol,
            signature.kind,
            grid,
            values,
            specs + behind_pointers,
            prepared.translation.inter_block,
            options,
        )
        if "fault" in result:
            raise _fault(result["fault"], signature, path) from None
        warnings += result["warnings"]
        kept.update(result["memories"])
        recordings.append(
            Recording(
                function.symbol,
                signature.kind,
                grid,
                tuple(s[0] for s in specs + behind_pointers),
                result["recordings"],
                path,
            )
        )
    return Report(tuple(recordings), tuple(warnings), kept)
