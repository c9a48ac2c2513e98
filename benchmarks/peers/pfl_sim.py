"""The work on pfl-research: simulated backend, one process with some threads, or two processes (gloo)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from peers import common


def _join_workers(processes: int) -> subprocess.Popen | None:
    """Start the other worker (unless this is it) and tell pfl about both; must run before pfl is imported."""
    if processes == 1 or "PFL_WORKER_RANK" in os.environ:
        return None
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port + rank}" for rank in range(processes))
    other = subprocess.Popen([sys.executable, "-m", "peers.pfl_sim"], env={**os.environ, "PFL_WORKER_RANK": "1"})
    os.environ["PFL_WORKER_RANK"] = "0"
    return other


def main() -> None:
    work = common.spec()
    other = _join_workers(work["processes"])
    from peers import pfl_work

    pfl_work.run(work, first=os.environ.get("PFL_WORKER_RANK", "0") == "0")
    if other is not None:
        other.wait()


if __name__ == "__main__":
    main()
