"""Conditions of tests: which architecture is emulated, run only if, run without an environment variable.

DeepGEMM keeps these in ``deep_gemm.testing.utils``. Comparison lives in `numeric`, timing in `bench`.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from ..errors import UnsupportedOperationError

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: NVIDIA generation whose scale format a backend consumes: float32 is Hopper's, int32 words are Blackwell's.
_ARCH_MAJOR_OF_FORMAT = {"FP32": 9, "UE8M0X4_INT32": 10}


def get_arch_major() -> int:
    """Return the major compute capability that tests should assume: 9 (Hopper) or 10 (Blackwell).

    On a CUDA backend that of the current device. On other backends the generation whose scale format they consume: 10
    for the CPU backend in its default format.

    Raises:
        UnsupportedOperationError: the backend consumes Ascend's format, so there is no such number.

    Contract: DeepGEMM 2.8.2, ``testing.get_arch_major``; off CUDA our own choice.
    """
    # The registry would make this package depend on every backend if it were imported at the top.
    backend = importlib.import_module("unikernels._registry").current_backend()
    if "cuda" in backend.device_types and torch.cuda.is_available():
        return int(torch.cuda.get_device_capability()[0])
    scale_format = backend.scale_format.name
    if scale_format not in _ARCH_MAJOR_OF_FORMAT:
        raise UnsupportedOperationError(
            f"get_arch_major: backend '{backend.name}' consumes scale format {scale_format}, which no NVIDIA "
            f"generation does, so there is no compute capability. Select another backend, or skip the test on this one."
        )
    return _ARCH_MAJOR_OF_FORMAT[scale_format]


def test_filter(condition: Callable[[], bool]) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Decorate a function to run only if `condition()` holds when it is called; otherwise it says so and returns None.

    Contract: DeepGEMM 2.8.2, ``testing.test_filter``.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            if condition():
                return function(*args, **kwargs)
            print(f"{function.__name__}: skipped, its condition does not hold here", flush=True)
            return None

        return run

    return decorate


# Test runners would otherwise collect it from modules that import it.
test_filter.__test__ = False  # type: ignore[attr-defined]


def ignore_env(name: str, condition: Callable[[], bool]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function to run without environment variable `name` if `condition()` holds; it is restored afterwards.

    Contract: DeepGEMM 2.8.2, ``testing.ignore_env``.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            saved = os.environ.pop(name, None) if condition() else None
            try:
                return function(*args, **kwargs)
            finally:
                if saved is not None:
                    os.environ[name] = saved

        return run

    return decorate
