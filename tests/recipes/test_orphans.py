"""Runs end soon after whoever started them was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path
from undrift.experiment.run_many import Planned, run_many
from undrift.experiment.config import parse
train = {"rounds": 100000, "eval_every": 1000}
config = parse({"data": {"name": "digits"}, "partition": {"clients": 10}, "train": train})
run_many([Planned("long", config, Path(sys.argv[1]))], jobs=1, watch=lambda done, name, text: print(text, flush=True))
"""


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def test_a_run_ends_when_its_starter_was_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert starter.stdout
    assert starter.stdout.readline().startswith("round 0/")
    runs = children_of(starter.pid)
    assert runs or not Path("/proc").exists()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in runs) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in runs if alive(pid)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
