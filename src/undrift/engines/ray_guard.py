"""Ends what is left of a Ray cluster as soon as the process that started it is gone, in whatever way.

Ray's own processes see only after many seconds that their driver was killed. They are known by the files of the
cluster's session that they write to; the session is named after when it was made and by which process. Run as a
script, this file is the guard, a process of its own that must start at once: nothing of undrift is imported here.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

_LOOK, _LAST, _LONGEST = 0.1, 1.0, 10.0
"""Seconds from one look to the next, for which nothing must be left, and after which the guard ends anyway."""


class Guard:
    """Guards the cluster that this process is about to start on this machine."""

    def __init__(self) -> None:
        since = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")  # local time, as Ray writes it
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), since]
        self._script: subprocess.Popen[bytes] | None = None
        if sys.platform == "linux":  # elsewhere nobody tells who writes where
            nowhere = subprocess.DEVNULL
            self._script = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
            )

    def close(self) -> None:
        """The cluster has ended as it should."""
        if self._script is not None:
            self._script.communicate(b"ended")


def over(parent: int) -> bool:
    """Wait for the end of a process; False if it said before that all is well."""
    try:
        ends = os.pidfd_open(parent)
    except ProcessLookupError:
        return True
    if os.getppid() != parent:
        return True
    watched = [ends, sys.stdin.fileno()]
    while True:
        ready = select.select(watched, [], [])[0]
        if ends in ready:
            return True
        if os.read(sys.stdin.fileno(), 16):
            return False
        watched = [ends]  # its files are closed: it is about to end


def writing(parent: int, since: str) -> Iterator[int]:
    """The processes that write to files of a session that this process made since then."""
    own = re.compile(rf"/session_([\d_-]+)_{parent}/")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for file in os.listdir(process / "fd"):
                found = own.search(os.readlink(process / "fd" / file))
                if found and found[1] >= since and _for_writing(process / "fdinfo" / file):
                    yield int(process.name)
                    break


def _for_writing(info: Path) -> bool:
    flags = re.search(r"flags:\s*([0-7]+)", info.read_text())
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def main(parent: int, since: str) -> None:
    """Wait, then end whatever there is, again and again until nothing new comes."""
    if not over(parent):
        return
    begun = last = time.monotonic()
    while (now := time.monotonic()) - last < _LAST and now - begun < _LONGEST:
        for pid in writing(parent, since):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            last = now
        time.sleep(_LOOK)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
