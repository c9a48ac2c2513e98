"""Flower's long-running processes: started as children, ended with their parent, whatever happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_SCRIPT = Path(__file__).with_name("daemons.py")


@contextlib.contextmanager
def child(name: str, arguments: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One of Flower's processes as a child that writes to a log file and ends when this block does."""
    quiet = {
        "UNDRIFT_PARENT_PID": str(os.getpid()),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), name, *arguments],
            env=os.environ | quiet,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], patience: float = 3.0) -> None:
    """End a child and what it started: politely, then by force."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


@contextlib.contextmanager
def until_stopped() -> Iterator[None]:
    """Run until Ctrl-C or SIGTERM, both of which are a normal end here."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a log, for an error message."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:])


_REASONS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not from the authority that this site trusts (ca.pem)",
    "[code: 2004]": "the server does not know this site's key (site.key)",
}


def trouble(log: Path) -> str:
    """Why a SuperNode ended: Flower writes it after its exit code, above the messages of the shutdown."""
    lines = log.read_text(errors="replace").splitlines()
    ends = [number for number, line in enumerate(lines) if "Exit Code:" in line]
    why = " ".join(lines[ends[-1] + 1 : ends[-1] + 3]).strip() if ends else last_lines(log)
    return next((reason for mark, reason in _REASONS.items() if mark in why), why)
