"""Systems that are alive together and take turns: one computes for a few rounds while all the others stand still.

What disturbs a machine for a while then disturbs all systems alike, and their ratios hold. A system stops its own
process at the end of a turn (``peers.common.Clock``); the processes below it are stopped here, so that nothing that is
under way in them, such as an evaluation, goes on at the others' expense.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from memory import Watch, descendants, touch

POLL = 0.005
"""Seconds from one look whether a turn is over to the next."""


class Player:
    """One system's process and those below it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], limit: float) -> None:
        self.limit, self.playing, self.failure = limit, True, ""
        self._folder = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._out, self._errors = folder / "out", folder / "errors"
        # What a killed cluster of Ray left in the usual place keeps a new one waiting.
        told = {**environment, "RAY_TMPDIR": str(folder), "BENCH_STARTED": str(time.time())}
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(command, env=told, stdout=out, stderr=errors)
        self._watch = Watch(self._process.pid)

    def start(self) -> None:
        """From the start of the process to the end of its first turn."""
        self._wait()
        self._watch.stop()

    def turn(self) -> None:
        """One more turn."""
        for pid in reversed(descendants(self._process.pid)):
            _send(pid, signal.SIGCONT)
        self._wait()

    def _wait(self) -> None:
        """Until it stops itself, or ends."""
        pid, over = self._process.pid, time.monotonic() + self.limit
        while True:
            found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
            if found and os.WIFSTOPPED(status):
                for below in descendants(pid)[1:]:
                    _send(below, signal.SIGSTOP)
                self._watch.sample()
                return
            if found:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self.playing = False
                return
            if time.monotonic() > over:
                self.failure = f"not finished within {self.limit:.0f} s"
                self.end()
                return
            time.sleep(POLL)

    def end(self) -> None:
        """Whatever it does, it ends now."""
        if self._process.returncode is None:
            for pid in descendants(self._process.pid):
                _send(pid, signal.SIGKILL)
            self._process.wait()
        self._watch.stop()
        self.playing = False

    def answer(self) -> tuple[str, str, dict[str, float]]:
        """What it printed, why it failed (if it did), and the memory that it took."""
        out, errors = (path.read_text(errors="replace") for path in (self._out, self._errors))
        self._folder.cleanup()
        return out, self.failure or errors or f"exit code {self._process.returncode}", self._watch.stop()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def play(starts: Sequence[Callable[[], Player]], touched: int = 0) -> list[Player]:
    """All of them to the end, turn by turn; where one fails, the others go on.

    ``touched``: megabytes of memory that are at hand at the start of every turn.
    """
    players: list[Player] = []
    try:
        for start in starts:
            players.append(start())
            players[-1].start()
        while any(player.playing for player in players):
            for player in players:
                if player.playing:
                    touch(touched)
                    player.turn()
    finally:
        for player in players:
            player.end()
    return players
