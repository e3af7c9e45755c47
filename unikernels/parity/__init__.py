"""Parity: the same public calls under several backends, compared with the reference or with a recorded bundle."""

from .bundle import check, load, record
from .compare import Comparison, compare
from .runner import Result, run, select

__all__ = ["Comparison", "Result", "check", "compare", "load", "record", "run", "select"]
