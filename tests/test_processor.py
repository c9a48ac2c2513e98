"""Processors that announce what they cannot do."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

import undrift.core.processor as processor

X86 = platform.system() == "Linux" and platform.machine() == "x86_64"


@pytest.mark.skipif(not X86, reason="CPUID is an instruction of x86 processors")
def test_cpuid_gives_the_vendor() -> None:
    _, b, c, d = processor.cpuid(0)
    vendor = b"".join(part.to_bytes(4, "little") for part in (b, d, c)).decode()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        assert f"vendor_id\t: {vendor}\n" in file.read()


@pytest.mark.parametrize(("announced", "described", "limited"), [(1, 0, True), (1, 1, False), (0, 0, False)])
def test_onednn_is_limited_only_where_tiles_are_hidden(
    monkeypatch: pytest.MonkeyPatch, announced: int, described: int, limited: bool
) -> None:
    monkeypatch.delenv(processor.ISA, raising=False)
    monkeypatch.setattr(processor, "announces_amx", lambda: bool(announced))
    monkeypatch.setattr(processor, "describes_tiles", lambda: bool(described))
    processor.avoid_broken_amx()
    assert (os.environ.get(processor.ISA) == processor.WITHOUT_AMX) is limited


def test_what_the_user_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor.ISA, "AVX2")
    monkeypatch.setattr(processor, "announces_amx", lambda: True)
    monkeypatch.setattr(processor, "describes_tiles", lambda: False)
    processor.avoid_broken_amx()
    assert os.environ[processor.ISA] == "AVX2"


def test_bf16_runs_on_this_processor() -> None:
    """In a process of its own: an illegal instruction would end it without a word."""
    program = (
        "import undrift as ud, torch;"
        "x, y = torch.randn(128, 1, 12, 12), torch.randint(0, 3, (128,));"
        "m = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.Flatten(), torch.nn.Linear(1600, 3));"
        "r = ud.simulate(m, [(x, y)] * 2, test_data=(x, y), rounds=1, precision='bf16', workers=0);"
        "print(r.summary['final_loss'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 10
