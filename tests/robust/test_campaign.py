"""A short part of the campaign, always the same one; ``make fuzz`` and ``make soak`` are the long one."""

from __future__ import annotations

import random
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import fuzzing
import mutations
import pytest
import soaking

from shell import CONFIG
from undrift.data import data_root

ATTEMPTS = {"configurations": 30, "command lines": 15, "run folders": 12, "bit flips": 12, "data files": 80}


@pytest.fixture
def alarms() -> Iterator[None]:
    """The alarms of the campaign, and afterwards as they were."""
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGALRM, signal.SIGPROF)}
    yield
    for sign, handler in before.items():
        signal.signal(sign, handler)


def test_mutations_leave_their_values_as_they_are() -> None:
    before, draw = repr(mutations.ABSURD), random.Random(1)
    for _ in range(1000):
        settings = tomllib.loads(CONFIG)
        for _ in range(6):
            mutations._spoil(draw, settings)
    assert repr(mutations.ABSURD) == before


def test_mutations_ask_for_no_work_of_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "ALGORITHMS", ["fsl"] * 3)
    monkeypatch.setattr(mutations, "ABSURD", [10**9])
    draw = random.Random(1)
    given = [mutations._algorithm(draw).get("fsl", {}) for _ in range(2000)]
    assert any(one.get("gamma") == 10**9 for one in given)
    assert any(one.get("steps") == 2 for one in given)
    assert not any(one.get("steps") == 10**9 for one in given)


@pytest.mark.filterwarnings("default")
def test_nothing_is_found(tmp_path: Path, alarms: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDRIFT_DATA", "installed")
    fuzzing.prepare(tmp_path)
    assert not list(data_root().iterdir())  # else `reproduce … --results --dry-run` would run for hours
    campaign = fuzzing.Campaign(7, tmp_path)
    for part, count in ATTEMPTS.items():
        fuzzing.carry_out(campaign, part, count, seconds=60)
        assert campaign.tried[part]
    for path, length in random.Random(7).sample(fuzzing.small_files(), 12):
        fuzzing.truncations(campaign, path, length)
    assert campaign.findings == []


def test_kills_end_in_the_same_bits(here: Path) -> None:
    (here / "c.toml").write_text(CONFIG.replace("rounds = 4", "rounds = 30"))
    assert soaking.kill(2, ["two workers"], seed=0)


def test_memory_stays(here: Path) -> None:
    assert soaking.soak(200, 2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ray::IDLE", True), ("ray::_clients", True), ("ray::DashboardAgent", False), ("raylet", False)],
)
def test_of_rays_processes_only_workers_are_killed(name: str, kind: bool) -> None:
    script = [name, "-c", "echo here; read line"]
    with subprocess.Popen(script, executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then the process may still be without its name
        assert soaking.is_worker(process.pid, "ray") is kind
        assert soaking.is_worker(process.pid, "two workers")
