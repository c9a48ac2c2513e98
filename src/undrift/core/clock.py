"""Where the time of a run goes: seconds by kind of work, summed over processes. Costs nothing when off."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_NOTHING = contextlib.nullcontext()

PARTS = ("data", "forward/backward", "main server", "rule", "aggregation", "server learning", "evaluation", "waiting")


class Clock:
    """Adds up seconds under names; the time of an inner part is not counted in the outer one."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self.seconds: dict[str, float] = {}
        self._inner = 0.0

    def __call__(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Count the time of a ``with`` block under ``part``."""
        return self._timed(part) if self.on else _NOTHING

    @contextlib.contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.add(part, elapsed - self._inner)
            self._inner = outer + elapsed

    def each(self, part: str, items: Iterable[T]) -> Iterator[T]:
        """The items, with the time it takes to get each counted under ``part``."""
        return self._each(part, iter(items)) if self.on else iter(items)

    def _each(self, part: str, iterator: Iterator[T]) -> Iterator[T]:
        while True:
            with self(part):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def add(self, part: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        taken, self.seconds = self.seconds, {}
        return taken

    def merge(self, other: dict[str, float]) -> None:
        """Add another process's counts."""
        for part, seconds in other.items():
            self.add(part, seconds)


def shares(seconds: dict[str, float]) -> list[tuple[str, float, float]]:
    """(part, seconds, share of all) in a fixed order, without parts that took no time."""
    total = sum(seconds.values()) or 1.0
    return [(part, seconds[part], seconds[part] / total) for part in PARTS if part in seconds]
