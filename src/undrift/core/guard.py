"""A script: ends some of a process's children, and all that they started, as soon as that process is gone.

For programs of others that notice too late, or never, that nobody needs them any more. Nothing of undrift is imported
here: it must start at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

_SOON, _LATER = 0.2, 5.0
"""Seconds from one look at what there is to the next, at first and in the end."""


def children(pid: int) -> list[int]:
    """What a process started, as far as the system tells."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


def family(pid: int) -> list[int]:
    """A process, all that it started, and so on."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def began(pid: int) -> str | None:
    """When a process began: numbers of processes are used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def named(pid: int, word: str) -> bool:
    """Whether a word stands in a process's command line."""
    try:
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main(parent: int, word: str) -> None:
    """Remember what ``parent`` starts until it is gone, which ends the standard input, or says that this is enough."""
    known: dict[int, str | None] = {}
    over, pause = False, _SOON
    while not over:
        over = bool(select.select([sys.stdin], [], [], pause)[0])
        pause = min(1.2 * pause, _LATER)
        found = [one for pid in children(parent) if named(pid, word) for one in family(pid)]
        known |= {pid: began(pid) for pid in found if pid not in known}
    for pid, then in known.items():
        if then is not None and began(pid) == then:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
