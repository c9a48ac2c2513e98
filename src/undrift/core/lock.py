"""A folder that one process at a time may write to; the system frees it however that process ends."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_held: set[int] = set()


class FolderLock:
    """Held from :meth:`take` to :meth:`release`, or to the end of the process. No file tells of it."""

    def __init__(self) -> None:
        self._close: weakref.finalize[[int], FolderLock] | None = None

    def take(self, folder: Path) -> bool:
        """Whether the folder is ours now; where the file system knows no locks, it always is."""
        if fcntl is None:  # pragma: no cover - Windows
            return True
        place = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(place)
            return error.errno not in _BUSY
        _held.add(place)
        self._close = weakref.finalize(self, _close, place)
        return True

    def release(self) -> None:
        """Let others write."""
        if self._close is not None:
            self._close()


def _close(place: int) -> None:
    if place in _held:
        _held.discard(place)
        os.close(place)


def _leave_to_parent() -> None:
    """A fork inherits the lock and would hold it after its parent's end."""
    for place in _held:
        with contextlib.suppress(OSError):
            os.close(place)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
