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

from undrift.core.signals import STOP
from undrift.core.text import printable
from undrift.errors import RunError

_SCRIPT = Path(__file__).with_name("daemons.py")


@contextlib.contextmanager
def child(name: str, arguments: list[str], home: Path, log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Flower's processes as a child that writes to a log file and ends when this block does.

    ``more``: variables of its environment.
    """
    quiet = more | {
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
    """Run until Ctrl-C, SIGTERM or SIGHUP, all of which are a normal end here; what is written is for nobody else."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signs = [sign for sign in STOP[1:] if signal.getsignal(sign) is not signal.SIG_IGN]
    before = {sign: signal.signal(sign, stop) for sign in signs}
    mask = os.umask(0o077)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        os.umask(mask)
        for sign, handler in before.items():
            signal.signal(sign, handler)


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse_taken(host: str, port: int) -> None:
    """Refuse a port at which somebody else listens already."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RunError(f"port {port} at {host}: {error.strerror}; is another server running?") from None


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a log, for an error message."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return printable(" | ".join(lines[-count:]), 600)


_REASONS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not from the authority that this site trusts (ca.pem)",
    "[code: 2004]": "the server does not know this site's key (site.key)",
}


def trouble(log: Path) -> str:
    """Why a SuperNode ended: Flower writes it after its exit code, above the messages of the shutdown."""
    lines = log.read_text(errors="replace").splitlines()
    ends = [number for number, line in enumerate(lines) if "Exit Code:" in line]
    why = " ".join(lines[ends[-1] + 1 : ends[-1] + 3]).strip() if ends else last_lines(log)
    return next((reason for mark, reason in _REASONS.items() if mark in why), printable(why, 600))
