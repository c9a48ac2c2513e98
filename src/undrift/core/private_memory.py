"""Memory for many vectors that stay: of this process alone, and in large pages.

Memory costs time when it is first touched: what processes share comes in pages of 4 KB, each a fault of a microsecond
or more, private memory may come in pages of 2 MB. Vectors that stay must not lie among those that come and go either:
the holes between them fit nothing, and a process grows from round to round.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Iterator

_BLOCK = 64 << 20
"""Bytes that are asked for at once (more, where one place takes more); what is not touched takes no room."""
_PAGE = 2 << 20
"""Bytes of a large page."""


class PrivateMemory:
    """Places of so many bytes each."""

    def __init__(self, size: int) -> None:
        self._free: list[memoryview] = []
        self._new = _places(size)

    def place(self) -> memoryview:
        """A place with whatever lies there; used again when neither it nor a tensor that lies there is referred to."""
        place = self._free.pop() if self._free else next(self._new)
        lent = memoryview(place)
        weakref.finalize(lent, self._free.append, place).atexit = False
        return lent


def _places(size: int) -> Iterator[memoryview]:
    count = max(1, _BLOCK // size)
    while True:
        block = memoryview(_large_pages(count * size))
        for number in range(count):
            yield block[number * size : (number + 1) * size]


def _large_pages(size: int) -> mmap.mmap:
    """Private memory, in large pages where the system has them."""
    size = -(-size // _PAGE) * _PAGE  # else it need not begin where a page does
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        block.madvise(mmap.MADV_HUGEPAGE)
    return block
