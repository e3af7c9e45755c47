"""Process-wide runtime settings (contract 1.11): plain values, no device is touched.

The public setters in api/runtime.py validate and store here; backends read. None means "the backend's own default".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Settings:
    """Current values; one instance per process, `CURRENT`."""

    num_sms: int | None = None
    tc_util: int = 100
    is_pdl_enabled: bool = False
    ignores_compile_dims: bool = False
    block_size_multiple_of: tuple[int, int] = (1, 1)
    is_deterministic: bool = False
    mk_alignment: int | None = None
    npu_arch: int | None = None


CURRENT = Settings()
