"""How training computes: on one thread, without denormal numbers, and keeping the memory that it frees.

Denormal numbers appear where a loss or a momentum dies away; the processor then takes many times as long for every
step, and nothing is gained by them.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

import torch


def settle() -> None:
    """For a process that only computes; to be called in the thread that does."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    _keep_freed_memory()


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """The same for a while: small batches run faster on one thread, and results must not depend on their number.

    That freed memory is kept cannot be taken back.
    """
    threads, flushed = torch.get_num_threads(), float(torch.tensor(1e-40) * 1) == 0
    settle()
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def _keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks: handing activations back after every step costs page faults (up to 40 %)."""
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_threshold, 2**30)
