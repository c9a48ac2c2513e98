"""A Ray cluster of our own is reached from this machine only, and ends with its run, however that ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import Command, alive, family, until
from undrift.core.files import read_lines

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def listening(pids: list[int]) -> list[str]:
    """The addresses at which processes listen, as the system writes them."""
    mine, found = {socket for pid in pids for socket in sockets(pid)}, []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
                found.append(words[1].split(":")[0])
    return found


def sockets(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            yield os.readlink(path)


def test_ray_listens_on_loopback_alone_and_ends_with_its_driver(here: Path) -> None:
    run = Command(
        "run", "c.toml", "--out", "out", "--quiet", "--set", "engine.name=ray", "--set", "train.rounds=100000",
        "--workers", "1",
    )  # fmt: skip
    everybody = [run.pid]
    try:
        until(lambda: run.poll() is not None or len(read_lines(here / "out" / "rounds.jsonl")) > 1, 240)
        everybody = family(run.pid)
        addresses = listening(everybody)
        assert sum(address.endswith("0100007F") for address in addresses) == len(addresses) > 3
    finally:
        run.kill()
    until(lambda: not any(map(alive, everybody)), 5, lambda: str([pid for pid in everybody if alive(pid)]))
    assert len(everybody) > 5
