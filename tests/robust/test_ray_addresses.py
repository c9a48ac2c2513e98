"""A Ray cluster of our own is reached from this machine only."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

SCRIPT = """
import os
from pathlib import Path
import ray
from undrift.engines.ray import Cluster

def family(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {pid}.union(*(family(int(child)) for path in tasks for child in path.read_text().split()))

def sockets(pid):
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            yield os.readlink(path)
        except OSError:
            pass

Cluster().join(1)
ray.get(ray.remote(lambda: 1).remote())
mine = {link for pid in family(os.getpid()) for link in sockets(pid)}
found = []
for name in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
            found.append(words[1].split(":")[0])
ray.shutdown()
print(len(found), sum(address.endswith("0100007F") for address in found))
"""


def test_ray_listens_on_loopback_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    listening, on_loopback = map(int, done.stdout.split())
    assert listening == on_loopback > 3
