"""Progress of a run that was started from Python: a bar in a terminal or a notebook, nothing where output is piped."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from undrift.rounds.progress import Record, note_of


class Bar:
    """Rounds done, the newest evaluation, and the time that is left."""

    def __init__(self, console: Console | None = None) -> None:
        columns = (TextColumn("round"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
        shown = console or Console(stderr=True)
        self._progress = Progress(*columns, TimeRemainingColumn(), console=shown, disable=not _interactive(shown))
        self._task = self._progress.add_task("", total=None)

    def __call__(self, done: int, rounds: int, record: Record | None) -> None:
        """Show where the run is."""
        self._progress.update(self._task, completed=done, total=rounds, description=note_of(record))

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _interactive(console: Console) -> bool:
    return console.is_terminal or console.is_jupyter
