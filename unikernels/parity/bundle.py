"""Recorded results: what one machine computed, checked on another without the two meeting.

A bundle is one safetensors file: inputs and outputs of each case, and a JSON header in its metadata. Reading it never
runs code from it: only the ids of cases are taken, and the calls they stand for come from this library. A checksum over
everything finds damage and edits by hand; it does not prove who made the file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..errors import ParityError, UnsupportedOperationError
from ..operations import LEVELS, Case, Operation
from . import runner

FORMAT_VERSION = 1
_KEY = "unikernels"


def record(
    path: Path,
    cases: Sequence[tuple[Operation, Case]],
    backend: str,
    progress: Callable[[], None] = lambda: None,
) -> int:
    """Run cases under `backend` and write inputs and outputs to `path`; returns how many were recorded.

    Cases that the backend does not support are left out. The file appears whole or not at all.
    """
    tensors: dict[str, Tensor] = {}
    entries: list[dict[str, Any]] = []
    for operation, case in cases:
        inputs = case.tensors()
        kept = {name: one.contiguous().clone() for name, one in inputs.items()}
        try:
            outputs = runner.outputs_of(case, backend, inputs)
        except UnsupportedOperationError:
            progress()
            continue
        prefix = f"{operation.name}/{case.id}"
        strides = {name: list(one.stride()) for name, one in inputs.items()}
        entries.append({"operation": operation.name, "case": case.id, "strides": strides})
        tensors.update({f"{prefix}/in/{name}": one for name, one in kept.items()})
        tensors.update({f"{prefix}/out/{name}": one.contiguous().clone() for name, one in outputs.items()})
        progress()
    header = {
        "format": FORMAT_VERSION,
        "backend": backend,
        "torch": torch.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "entries": entries,
    }
    header["digest"] = _digest(header, tensors)
    temporary = path.with_name(path.name + ".partial")
    try:
        safetensors.torch.save_file(tensors, temporary, metadata={_KEY: json.dumps(header, sort_keys=True)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(entries)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a bundle.

    Raises:
        ParityError: not a bundle, truncated, edited, or of another format version.
    """
    if not path.is_file():
        raise ParityError(f"{path}: no such file. Make one with: unikernels parity record {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            header = json.loads(metadata[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        version = header["format"]
        expected = header.pop("digest")
        entries = [(entry["operation"], entry["case"], entry["strides"]) for entry in header["entries"]]
    except Exception as error:  # whatever a damaged file provokes in the parsers means the same to the caller
        raise ParityError(
            f"{path}: not a readable parity bundle ({type(error).__name__}: {error}). Record it anew."
        ) from error
    if version != FORMAT_VERSION:
        raise ParityError(f"{path}: bundle format {version}, this version reads {FORMAT_VERSION}. Record it anew.")
    if _digest(header, tensors) != expected:
        raise ParityError(
            f"{path}: contents do not match the checksum; the file was damaged or edited. Record it anew."
        )
    header["entries"] = entries
    return header, tensors


def check(
    path: Path, backend: str, progress: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], list[runner.Result]]:
    """Run the recorded cases with the recorded inputs under `backend` and compare with the recorded outputs.

    Raises:
        ParityError: the bundle cannot be trusted, or names cases this version does not know.
    """
    header, tensors = load(path)
    known = {(operation.name, case.id): (operation, case) for operation, case in runner.select(levels=LEVELS)}
    missing = [f"{name}/{case}" for name, case, _ in header["entries"] if (name, case) not in known]
    if missing:
        raise ParityError(f"{path}: {len(missing)} cases are unknown to this version, the first is {missing[0]}.")
    factor = 1.0 if header["backend"] == runner.REFERENCE else runner.TWO_SIDED_FACTOR
    results = []
    for name, case_id, strides in header["entries"]:
        operation, case = known[name, case_id]
        inputs = {
            key: _restride(path, tensors[f"{name}/{case_id}/in/{key}"], stride) for key, stride in strides.items()
        }
        prefix = f"{name}/{case_id}/out/"
        expected = {key.removeprefix(prefix): one for key, one in tensors.items() if key.startswith(prefix)}
        results.append(runner.judge(operation, case, backend, functools.partial(dict, expected), factor, inputs))
        progress()
    return header, results


def _restride(path: Path, tensor: Tensor, stride: list[int]) -> Tensor:
    """Give a stored (contiguous) tensor its original strides, which are data from a file: check before allocating."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True))
    if any(step < 0 for step in stride) or extent > 4 * max(tensor.numel(), 1024):
        raise ParityError(f"{path}: strides {stride} do not fit a tensor of shape {tuple(tensor.shape)}.")
    if not tensor.numel():
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def _digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
