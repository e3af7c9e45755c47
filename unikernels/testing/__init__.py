"""Comparing and timing: DeepGEMM's ``deep_gemm.testing``, plus assertions that carry their evidence.

For users' tests and our own. Parity of whole backends lives in `unikernels.parity`.
"""

from . import conditions as utils  # DeepGEMM's name for that module
from .bench import bench, bench_kineto, empty_suppress, suppress_stdout_stderr
from .conditions import get_arch_major, ignore_env, test_filter
from .numeric import assert_bitwise_equal, assert_close, calc_diff, count_bytes

__all__ = [
    "assert_bitwise_equal",
    "assert_close",
    "bench",
    "bench_kineto",
    "calc_diff",
    "count_bytes",
    "empty_suppress",
    "get_arch_major",
    "ignore_env",
    "suppress_stdout_stderr",
    "test_filter",
    "utils",
]
