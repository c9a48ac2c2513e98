"""What the numbers were made with: the processor, and the commit where the code lies in its repository."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

from undrift.core.version import VERSION


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    own = {"undrift": VERSION + commit(), "torch": torch.__version__, "numpy": np.__version__}
    return own | {"python": platform.python_version(), "processor": processor()}


def memory_bytes() -> int:
    """The memory of this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # pragma: no cover - a system that does not tell
        return 1 << 36


@functools.cache
def processor() -> str:
    """The processor's name and the instructions that PyTorch uses on it, as ``Intel(R) Xeon(R) (AVX512)``."""
    name = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or name
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


@functools.cache
def commit() -> str:
    """``+g1a2b3c4`` (``.dirty`` with changes) where this file is tracked by git, else nothing."""
    here = Path(__file__).parent
    try:
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        changes = _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".")
        return f"+g{_git(here, 'rev-parse', '--short', 'HEAD')}{'.dirty' if changes else ''}"
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
