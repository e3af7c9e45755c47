"""A private folder of files named by content keys, safe across processes, crashes and foreign hands.

Stores bytes under (kind, key) and gives them back only if they are complete. What the bytes mean is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import warnings
import weakref
from pathlib import Path

_MAGIC = b"usim-end"


def digest(*parts: str | bytes) -> str:
    """A key from all parts; lengths are hashed too, so that moving a byte between parts changes the key."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:40]


def _default_folder() -> Path:
    chosen = os.environ.get("UNIKERNELS_SIMULATOR_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    of_all_kernels = os.environ.get("UNIKERNELS_CACHE_DIR") or os.environ.get("DG_JIT_CACHE_DIR")
    if of_all_kernels:
        return Path(of_all_kernels).expanduser() / "simulator"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unikernels" / "simulator"


def why_unusable(folder: Path) -> str | None:
    """None if only this user can write to the folder and it can be written; else the reason."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError as error:
        return f"it cannot be created ({error})"
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):o}); run: chmod go-w {folder}"
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"it cannot be written ({error})"
    return None


class Cache:
    """Files under one folder. A folder that is or becomes unusable is replaced by a temporary one, with one warning."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or _default_folder()).absolute()  # the process may change its folder
        self._checked = False
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """The folder in use; checked on first use and created if needed."""
        if not self._checked:
            with self._lock:
                if not self._checked:
                    reason = why_unusable(self._folder)
                    if reason is not None:
                        self._leave(reason)
                    self._checked = True
        return self._folder

    def _leave(self, reason: str) -> None:
        """Go on in a temporary folder."""
        temporary = tempfile.mkdtemp(prefix="unikernels-simulator-")
        weakref.finalize(self, shutil.rmtree, temporary, True)
        unusable, self._folder = self._folder, Path(temporary)
        warnings.warn(
            f"simulator cache folder {unusable} is not used: {reason}. "
            "Compiled kernels are kept in a temporary folder until this process ends.",
            RuntimeWarning,
            stacklevel=4,
        )

    def path(self, kind: str, key: str) -> Path:
        """Where an entry lives, whether or not it exists."""
        return self.folder / f"{key}.{kind}"

    def load(self, kind: str, key: str) -> bytes | None:
        """The stored bytes, or None if there are none or they are incomplete (then the entry is removed)."""
        path = self.path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload, footer = data[:-40], data[-40:]
        if len(data) >= 40 and footer == _MAGIC + hashlib.sha256(payload).digest():
            return payload
        with contextlib.suppress(OSError):  # a folder that has become read-only
            path.unlink(missing_ok=True)
        return None

    def store(self, kind: str, key: str, payload: bytes) -> Path:
        """Write an entry so that readers see either nothing or all of it; returns its path.

        The folder may have been deleted, filled or taken away since it was checked: it is then made again or left.
        """
        folder = self.folder
        try:
            return _write(folder, self.path(kind, key), payload)
        except OSError as error:
            with self._lock:
                if self._folder == folder:  # else another thread has left it
                    is_gone = isinstance(error, FileNotFoundError)
                    reason = why_unusable(folder) if is_gone else f"it cannot be written ({error})"
                    if reason is not None:
                        self._leave(reason)
        return _write(self.folder, self.path(kind, key), payload)


def _write(folder: Path, path: Path, payload: bytes) -> Path:
    handle, name = tempfile.mkstemp(dir=folder, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload + _MAGIC + hashlib.sha256(payload).digest())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o600)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
