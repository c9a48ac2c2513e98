"""What the measurements were made on, and who else was there."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The hardware, without anything that names the machine."""
    info = _processor()
    cpu = info.get("model name") or platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": cpu,
        "kind": kind(cpu, info.get("flags", "").split()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
    }


def kind(cpu: str, flags: list[str]) -> str:
    """A name for processors that compute alike: the make, and the widest instructions that count here."""
    words = re.sub(r"\([^)]*\)|processor", " ", cpu.lower())
    vectors = next((name for name in ("avx512_bf16", "avx512f", "avx2") if name in flags), "")
    return "-".join(re.findall("[a-z0-9]+", f"{words} {vectors}"))


def _processor() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().split("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def others(seconds: float = 3.0) -> float:
    """How many cores somebody else keeps busy (the average load would count our own last run, too)."""

    def read() -> tuple[int, int]:
        fields = [int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    if not Path("/proc/stat").exists():
        return os.getloadavg()[0]
    total, idle = read()
    time.sleep(seconds)
    total_after, idle_after = read()
    busy = 1 - (idle_after - idle) / max(total_after - total, 1)
    return busy * (os.cpu_count() or 1)
