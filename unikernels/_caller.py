"""Where a call came from: warnings name the caller's line, however many of the library's own frames lie between."""

from __future__ import annotations

import sys

_PACKAGE = __name__.partition(".")[0]


def stacklevel_of_caller() -> int:
    """Return the ``stacklevel`` with which the calling function warns about the first line outside this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level
