"""Runtime settings (contract 1.11, 3.9): process-wide setters and getters; none of them touches a device.

Every name exists on every backend; where a setting has no effect it is checked and stored.
"""

from __future__ import annotations

from .. import _registry
from ..errors import ArgumentTypeError, InvalidArgumentError, UnsupportedOperationError
from ..settings import CURRENT


def _integer(function: str, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{function}: {name} is {value!r}, expected an int.")
    return value


def _boolean(function: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{function}: {name} is {value!r}, expected a bool.")
    return value


def set_num_sms(new_num_sms: int) -> None:
    """Limit kernels to this many SMs (cube cores, worker threads); 0 returns to all of them.

    Raises:
        InvalidArgumentError: negative, or more than the backend in force has.
    """
    count = _integer("set_num_sms", "new_num_sms", new_num_sms)
    available = _registry.current_backend().num_cores()
    if not 0 <= count <= available:
        raise InvalidArgumentError(
            f"set_num_sms: new_num_sms is {count}, expected 0 (all) to {available}, what this backend has."
        )
    CURRENT.num_sms = count or None


def get_num_sms() -> int:
    """Return how many SMs (cube cores, worker threads) kernels use."""
    available = _registry.current_backend().num_cores()
    return min(CURRENT.num_sms or available, available)


def set_tc_util(new_tc_util: int) -> None:
    """Set the approximate tensor-core utilisation in percent that heuristics aim at; 0 means 100."""
    percent = _integer("set_tc_util", "new_tc_util", new_tc_util)
    if not 0 <= percent <= 100:
        raise InvalidArgumentError(f"set_tc_util: new_tc_util is {percent}, expected 0 to 100 percent.")
    CURRENT.tc_util = percent or 100


def get_tc_util() -> int:
    """Return the tensor-core utilisation in percent that heuristics aim at."""
    return CURRENT.tc_util


def set_pdl(new_enable_pdl: bool) -> None:
    """Enable or disable programmatic dependent launch (CUDA only; stored elsewhere)."""
    CURRENT.is_pdl_enabled = _boolean("set_pdl", "new_enable_pdl", new_enable_pdl)


def get_pdl() -> bool:
    """Return whether programmatic dependent launch is enabled."""
    return CURRENT.is_pdl_enabled


def set_ignore_compile_dims(new_value: bool) -> None:
    """Treat every size as dynamic when kernels are specialised."""
    CURRENT.ignores_compile_dims = _boolean("set_ignore_compile_dims", "new_value", new_value)


def set_block_size_multiple_of(new_value: int | tuple[int, int]) -> None:
    """Constrain tile sizes to multiples of `new_value`, or of (m, n)."""
    function = "set_block_size_multiple_of"
    sizes = tuple(new_value) if isinstance(new_value, (tuple, list)) else (new_value, new_value)
    if len(sizes) != 2 or any(_integer(function, "new_value", size) <= 0 for size in sizes):
        raise InvalidArgumentError(
            f"{function}: new_value is {new_value!r}, expected a positive int or two of them (m, n)."
        )
    CURRENT.block_size_multiple_of = sizes


def use_deterministic_algorithms(enabled: bool) -> None:
    """Ask for bitwise repeatable results: fixed split-K, no vendor fast path."""
    CURRENT.is_deterministic = _boolean("use_deterministic_algorithms", "enabled", enabled)


def get_deterministic_algorithms() -> bool:
    """Return whether deterministic algorithms are asked for."""
    return CURRENT.is_deterministic


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Set the alignment, in rows (or K elements), of group starts in contiguous grouped layouts.

    Raises:
        InvalidArgumentError: not a positive multiple of 8, or the backend in force has a fixed other alignment.
    """
    function = "set_mk_alignment_for_contiguous_layout"
    value = _integer(function, "new_value", new_value)
    if value <= 0 or value % 8:
        raise InvalidArgumentError(f"{function}: new_value is {value}, expected a positive multiple of 8.")
    backend = _registry.current_backend()
    if backend.has_fixed_mk_alignment and value != backend.mk_alignment:
        raise InvalidArgumentError(
            f"{function}: new_value is {value}, but backend '{backend.name}' has the fixed alignment {backend.mk_alignment}."
        )
    CURRENT.mk_alignment = value


def get_mk_alignment_for_contiguous_layout() -> int:
    """Return the alignment of group starts in contiguous grouped layouts (default 128; Ascend 256)."""
    backend = _registry.current_backend()
    if backend.has_fixed_mk_alignment or CURRENT.mk_alignment is None:
        return backend.mk_alignment
    return CURRENT.mk_alignment


get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """Return the alignment the backend in force works best with.

    Args:
        expected_m: rows expected per group; a hint that backends may ignore.
    """
    if expected_m is not None:
        _integer("get_theoretical_mk_alignment_for_contiguous_layout", "expected_m", expected_m)
    return _registry.current_backend().mk_alignment


def set_npu_arch(arch: int) -> None:
    """Override the NPU architecture kernels are compiled for (3510 is the Ascend 950).

    Raises:
        InvalidArgumentError: not a known architecture.
    """
    value = _integer("set_npu_arch", "arch", arch)
    if value != 3510:
        raise InvalidArgumentError(
            f"set_npu_arch: arch is {value}, expected 3510 (Ascend 950), the only one supported."
        )
    CURRENT.npu_arch = value


def get_npu_arch() -> int:
    """Return the NPU architecture kernels are compiled for.

    Raises:
        UnsupportedOperationError: the backend in force is not an NPU and no architecture was set.
    """
    if CURRENT.npu_arch is not None:
        return CURRENT.npu_arch
    backend = _registry.current_backend()
    arch = backend.npu_arch()
    if arch is None:
        raise UnsupportedOperationError(
            f"get_npu_arch: backend '{backend.name}' is not an NPU. Select 'ascend', or call set_npu_arch(3510) first."
        )
    return arch


def shutdown() -> None:
    """Release handles and workspaces of all loaded backends; registered with atexit, safe to call twice."""
    if _registry.discover.cache_info().currsize:
        for backend in _registry.discover().backends.values():
            backend.shutdown()
