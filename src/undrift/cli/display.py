"""What a person sees while runs go on: a live line in a terminal, plain lines when piped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from undrift.core.text import printable


def console(*, stderr: bool = False) -> Console:
    """A console that writes no control codes when piped, and wide enough lines then."""
    plain: Any = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    out = Console(**plain)
    return out if out.is_terminal else Console(**plain, width=200)


class Meter:
    """Progress over rounds or runs: a bar in a terminal, about ten lines elsewhere, nothing when quiet."""

    def __init__(self, what: str, total: int, *, quiet: bool = False) -> None:
        self.what, self.total, self.quiet = what, total, quiet
        self.console = console(stderr=True)
        self.live = self.console.is_terminal and not quiet
        self.started = time.monotonic()
        self._shown = -1
        self._first: int | None = None
        if self.live:
            self.progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.progress.add_task(what, total=total, note="")

    def __enter__(self) -> Meter:
        if self.live:
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.progress.stop()

    def at(self, done: int, note: str = "") -> None:
        """Show how far it has come."""
        if self.live:
            self.progress.update(self.task, completed=done, note=note)
        elif done and not self.quiet and self._due(done):
            self.console.print(f"{self.what} {done}/{self.total}  {note}{self._left(done)}")

    def _due(self, done: int) -> bool:
        share = done * 10 // max(self.total, 1)
        if share == self._shown:
            return False
        self._shown = share
        return True

    def _left(self, done: int) -> str:
        if self._first is None:
            self._first, self.started = done, time.monotonic()
            return ""
        if done >= self.total or done <= self._first:
            return ""
        seconds = (time.monotonic() - self.started) / (done - self._first) * (self.total - done)
        return f"  {seconds:.0f} s left"


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the screen."""
    table = Table(*header)
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)
