"""What a processor announces and does not do.

Some virtual machines announce AMX (matrix instructions, which bf16 is computed with) but hide the description of
its tiles (CPUID leaf 0x1D is empty). oneDNN, which computes for PyTorch, then sets up tiles of no size, and the
process dies of an illegal instruction at its first matrix in bf16. There, oneDNN is told to do without AMX.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from pathlib import Path

ISA = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_FP16"
_TILES = 0x1D
# cpuid(out, leaf, subleaf): push rbx; mov eax, esi; mov ecx, edx; cpuid; store eax, ebx, ecx, edx at rdi; pop rbx; ret
_CPUID = bytes.fromhex("53 89f0 89d1 0fa2 8907 895f04 894f08 89570c 5b c3")


def avoid_broken_amx() -> None:
    """Keep oneDNN from AMX where it would crash; to be called before PyTorch computes anything."""
    if ISA not in os.environ and announces_amx() and not describes_tiles():
        os.environ[ISA] = WITHOUT_AMX


def announces_amx() -> bool:
    """Whether the system lists AMX among the processor's features."""
    return platform.machine() == "x86_64" and "amx_tile" in (features() or ())


def announces_bf16() -> bool:
    """Whether the processor has instructions for bf16 that can be used; True where the system does not tell."""
    found = features()
    if found is None:
        return True
    return bool(found & {"avx512_bf16", "bf16"}) or ("amx_bf16" in found and describes_tiles())


def features() -> frozenset[str] | None:
    """What the system lists as the processor's features (Linux); None where it does not tell."""
    if platform.system() != "Linux":
        return None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    named = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return frozenset(named.partition(":")[2].split())


def describes_tiles() -> bool:
    """Whether the processor tells the size of AMX's tiles; True where that cannot be found out."""
    try:
        return cpuid(0)[0] >= _TILES and any(cpuid(_TILES, 1))
    except (OSError, ValueError):
        return True


def cpuid(leaf: int, subleaf: int = 0) -> tuple[int, ...]:
    """The four registers that the instruction CPUID gives (x86-64, System V calls)."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_CPUID)
        start = ctypes.c_char.from_buffer(page)
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)(ctypes.addressof(start))
        registers = (ctypes.c_uint32 * 4)()
        call(ctypes.addressof(registers), leaf, subleaf)
        del start, call  # the page can be given back only when nothing points into it
        return tuple(registers)
