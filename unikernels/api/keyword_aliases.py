"""A second keyword name for a required argument, where DeepGEMM's generations disagree on the first."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..errors import ArgumentTypeError

P = ParamSpec("P")
R = TypeVar("R")


def accepts_alias(name: str, alias: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let callers pass argument `name` by keyword as `alias`, a keyword-only parameter the function declares and ignores."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        position = list(inspect.signature(function).parameters).index(name)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if alias in kwargs:
                if name in kwargs or len(args) > position:
                    raise ArgumentTypeError(
                        f"{function.__name__}: give {name} or {alias} (two names of one argument), not both."
                    )
                kwargs[name] = kwargs.pop(alias)
            return function(*args, **kwargs)

        return call

    return decorate
