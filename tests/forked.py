"""The command in a process of its own, forked from this one: it begins at once, without a new Python."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from undrift.cli import main
from undrift.core.signals import STOP


def until(what: Callable[[], Any], seconds: float = 60.0, say: Callable[[], str] = str) -> Any:
    """Wait for something to be true; time in which this process was stopped itself does not count."""
    spent, last = 0.0, time.monotonic()
    while spent < seconds:
        if found := what():
            return found
        time.sleep(0.02)
        spent, last = spent + min(time.monotonic() - last, 1.0), time.monotonic()
    raise AssertionError(f"not within {seconds} s: {say()}")


def forked(body: Callable[[], None]) -> int:
    """A process that does this and ends; what it leaves behind of this one's tests is nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code: Any = 1
    try:
        for sign in STOP:
            signal.signal(sign, signal.default_int_handler if sign == signal.SIGINT else signal.SIG_DFL)
        body()
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


class Command:
    """``undrift`` with these words, or a script; what it says is added to a file."""

    def __init__(self, *words: str, script: Path | None = None, cwd: Path | None = None, said: Path | None = None):
        self.said = said or Path(f"said-{time.monotonic_ns()}").absolute()
        self.code: int | None = None

        def body() -> None:
            place = os.open(self.said, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(place, 1)
            os.dup2(place, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
            if cwd is not None:
                os.chdir(cwd)
            sys.argv = [str(script or "undrift"), *words]
            if script is None:
                main()
            else:
                runpy.run_path(str(script), run_name="__main__")

        self.pid = forked(body)

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def wait(self, seconds: float) -> int:
        """Wait for its end; returns the exit code."""
        until(lambda: self.poll() is not None, seconds)
        assert self.code is not None
        return self.code

    def end(self, seconds: float = 60.0) -> tuple[int, str]:
        """Wait for its end: exit code, and what it said."""
        return self.wait(seconds), self.said.read_text()

    def signal(self, sign: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sign)

    def kill(self) -> None:
        """End it outright."""
        self.signal(signal.SIGKILL)
        self.wait(10)


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(word) for task in tasks for word in task.read_text().split()]
    return []


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def killed_after(last: int, *words: str) -> int:
    """The command, which ends as by ``kill -9`` in the round after ``last``; returns its exit code."""

    def body() -> None:
        from undrift.rounds.loop import Loop

        go = Loop._round

        def dying(self: Loop, round: int) -> None:
            go(self, round)
            if round == last + 1:
                os._exit(9)

        Loop._round = dying  # type: ignore[method-assign]
        sys.argv = ["undrift", *words]
        main()

    return os.waitstatus_to_exitcode(os.waitpid(forked(body), 0)[1])
