"""Ctrl-C, SIGTERM and SIGHUP that let what is under way finish, so that it can be saved; but not for ever."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

STOP = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
GRACE = 5.0
"""Seconds for which a round that waits for other processes may go on once a stop was asked for."""
_AGAIN = 0.5
"""Seconds after which a second signal is meant: ends of terminals and service managers send several at once."""
_asked: list[float] = []


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether a stop was asked for; asked for again, it comes at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: object) -> None:
        if _asked and time.monotonic() - _asked[0] > _AGAIN:
            raise KeyboardInterrupt
        _asked.append(time.monotonic())

    before: dict[int, Any] = {sign: signal.getsignal(sign) for sign in STOP}
    heard = [sign for sign, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    _asked.clear()
    for sign in heard:
        signal.signal(sign, ask)
    try:
        yield lambda: bool(_asked)
    finally:
        for sign in heard:
            signal.signal(sign, before[sign])
        _asked.clear()


def impatient() -> bool:
    """Whether a stop was asked for so long ago that what is waited for should be given up."""
    return bool(_asked) and time.monotonic() - _asked[0] > GRACE


def leave_stopping_to_parent() -> None:
    """In a worker: a stop that reaches the whole group is the parent's to handle; the worker ends with it."""
    _asked.clear()
    for sign in STOP:
        signal.signal(sign, signal.SIG_IGN)
