"""Memory and processor time of a process and all its descendants, and memory that is at hand (Linux)."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from pathlib import Path

INTERVAL = 1.0


class Watch:
    """Samples the tree of a process: resident pages, and resident pages with shared ones counted once (PSS)."""

    def __init__(self, pid: int) -> None:
        self.pid, self.rss, self.pss = pid, 0.0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """Peaks in megabytes."""
        self._over.set()
        self._thread.join()
        return {"rss_mb": round(self.rss, 1), "pss_mb": round(self.pss, 1)}

    def sample(self) -> None:
        """Look once."""
        tree = descendants(self.pid)
        self.rss = max(self.rss, sum(_resident(pid) for pid in tree))
        self.pss = max(self.pss, sum(_proportional(pid) for pid in tree))

    def _look(self) -> None:
        while not self._over.wait(INTERVAL):
            self.sample()


def touch(megabytes: int) -> None:
    """Use so much memory and give it back, so that the system has it at hand.

    The host of a virtual machine may take free memory away after seconds, and finding it again takes up to twenty
    times as long as a first touch does otherwise.
    """
    if megabytes:
        with mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            for start in range(0, len(memory), mmap.PAGESIZE):
                memory[start] = 1


def descendants(root: int) -> list[int]:
    """The process and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def cpu_seconds(root: int) -> float:
    """Processor time that the living tree has used so far."""
    ticks = 0
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def _proportional(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
