"""Processes that cannot be lost: they end with their parent, and it can be seen whether they get anything done."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """In a new process: end when ``parent`` ends, however that happens and whatever is under way here."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:  # pragma: no cover - elsewhere a thread looks from time to time
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _watch(parent: int) -> None:  # pragma: no cover
    while os.getppid() == parent:
        threading.Event().wait(0.5)
    os._exit(1)


def processor_time(pid: int) -> int | None:
    """What a process has computed so far, in ticks; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
