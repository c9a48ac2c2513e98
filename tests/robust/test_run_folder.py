"""A run's folder cannot lie: damage is found, another run is not taken for this one, and one process writes to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from shell import Undrift, arrays, files, same_run
from undrift.core.files import read_lines

RUN = [
    "--set", "algorithm.name=scaffold", "--set", "engine.checkpoint_seconds=0.0", "--quiet",
]  # fmt: skip


@pytest.fixture
def halted(here: Path, undrift: Undrift) -> Path:
    """A run of ten rounds that was stopped after the sixth, and the same run whole."""
    assert undrift("run", "c.toml", "--out", "whole", *RUN, "--set", "train.rounds=10").code == 0
    stop_after(here, 6)
    return here / "cut"


def stop_after(here: Path, last: int) -> None:
    """A run that is killed by itself after a round, as ``kill -9`` would."""
    pid = os.fork()
    if not pid:
        from undrift.cli import main
        from undrift.rounds.loop import Loop

        go = Loop._round

        def dying(self: Loop, round: int) -> None:
            go(self, round)
            if round == last + 1:
                os._exit(9)

        Loop._round = dying  # type: ignore[method-assign]
        sys.argv = ["undrift", "run", "c.toml", "--out", "cut", *RUN, "--set", "train.rounds=10"]
        main()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert json.loads((here / "cut" / "checkpoint" / "state.json").read_text())["round"] == last


def resume(undrift: Undrift, out: Path, *more: str) -> tuple[int, str]:
    answer = undrift("run", "c.toml", "--out", out, *RUN, "--set", "train.rounds=10", "--resume", *more)
    assert "Traceback" not in answer.err
    return answer.code, answer.err


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


# A1: silent damage.


def test_the_checkpoint_before_takes_the_place_of_a_damaged_one(halted: Path, here: Path, undrift: Undrift) -> None:
    server = halted / "checkpoint" / "server-6.safetensors"
    flip(server, server.stat().st_size - 3)
    code, said = resume(undrift, halted)
    assert code == 0, said
    assert len(said.splitlines()) == 1
    assert "server-6.safetensors" in said
    assert "going on from round 5" in said
    assert same_run(halted, here / "whole")


def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(halted: Path, here: Path, undrift: Undrift) -> None:
    """A few bits of every file; the campaign tries thousands."""
    good, draw = here / "good", np.random.default_rng(0)
    halted.rename(good)
    refused = 0
    for path in sorted(p for p in good.rglob("*") if p.is_file()):
        shutil.copytree(good, halted)
        flip(halted / path.relative_to(good), int(draw.integers(path.stat().st_size)), int(draw.integers(8)))
        code, said = resume(undrift, halted)
        if code:
            refused += 1
            assert len(said.splitlines()) == 1
            assert path.name in said or path.name == "config.toml"
        else:
            assert same_run(halted, here / "whole"), path
        shutil.rmtree(halted)
    assert refused >= 2  # the records, of which there is one copy


@pytest.mark.parametrize("name", ["metrics.jsonl", "rounds.jsonl"])
@pytest.mark.parametrize("kind", ["cut", "doubled", "missing", "edited"])
def test_records_that_are_not_whole_are_refused(
    name: str, kind: str, halted: Path, here: Path, undrift: Undrift
) -> None:
    path = halted / name
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "cut": [lines[0][:20]],
        "doubled": [lines[0], *lines],
        "missing": [lines[0], *lines[2:]],
        "edited": [lines[0].replace("0.", "1.", 1), *lines[1:]],
    }
    path.write_text("".join(changed[kind]))
    code, said = resume(undrift, halted)
    assert code == 1
    assert len(said.splitlines()) == 1
    assert name in said


def test_what_was_written_after_the_checkpoint_may_be_anything(halted: Path, here: Path, undrift: Undrift) -> None:
    with open(halted / "metrics.jsonl", "ab") as file:
        file.write(b'{"round": 9, "test_acc\xff')
    assert resume(undrift, halted) == (0, "")
    assert same_run(halted, here / "whole")


def test_records_are_durable_before_the_checkpoint_that_counts_on_them(
    here: Path, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(place: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{place}")).name)
        real(place)

    monkeypatch.setattr(os, "fsync", note)
    assert undrift("run", "c.toml", "--out", "out", *RUN).code == 0
    first = next(i for i, name in enumerate(synced) if name.startswith(".state.json"))
    assert {"metrics.jsonl", "rounds.jsonl"} <= set(synced[:first])
    assert synced[first + 1] == "checkpoint"  # the folder's names too


def test_an_edited_configuration_is_not_resumed(halted: Path, undrift: Undrift) -> None:
    """Also where the damaged file itself is given as the configuration."""
    config = halted / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.3"))
    answer = undrift("run", config, "--out", halted, "--resume", "--quiet")
    assert answer.code == 2
    assert "config.toml: damaged or edited" in answer.err


def test_a_folder_of_the_older_format_goes_on_with_a_warning(halted: Path, here: Path, undrift: Undrift) -> None:
    state = halted / "checkpoint" / "state.json"
    old = {
        k: v
        for k, v in json.loads(state.read_text()).items()
        if k in ("round", "server", "clients", "bytes", "seconds")
    }
    state.write_text(json.dumps(old))
    (halted / "checkpoint" / "previous.json").unlink()
    config = halted / "config.toml"
    config.write_text(config.read_text().split("\n", 1)[1])
    code, said = resume(undrift, halted)
    assert (code, "without checksums" in said) == (0, True)
    assert same_run(halted, here / "whole")
    (halted / "checkpoint" / "previous.json").unlink()
    state.write_text(json.dumps(old | {"round": 10**9}))
    assert resume(undrift, halted)[0] == 1


# A2: another run that looks like this one.


def test_a_run_goes_on_only_with_its_own_data(halted: Path, here: Path, undrift: Undrift) -> None:
    own = arrays()
    other_labels = own["y_train"].copy()
    other_labels[:2] = 1 - other_labels[:2] % 2
    changes = {
        "clients' data": {"y_train": other_labels},
        "clients' data ": {"x_train": own["x_train"][::-1], "y_train": own["y_train"][::-1]},
        "test data": {"x_test": own["x_test"][:50], "y_test": own["y_test"][:50]},
    }
    for what, change in changes.items():
        np.savez(here / "data.npz", **(own | change))
        code, said = resume(undrift, halted)
        assert code == 2
        assert f"the {what.strip()} changed" in said
        assert "--accept-changed-data" in said
    code, said = resume(undrift, halted, "--accept-changed-data")
    assert code == 0
    assert "the test data changed" in said
    assert not same_run(halted, here / "whole")


def test_a_run_goes_on_only_with_its_own_server_data(here: Path, undrift: Undrift) -> None:
    own = arrays()
    np.savez(here / "d0.npz", x=own["x_train"][:20], y=own["y_train"][:20])
    source = ["--set", "server_data.source=file", "--set", "server_data.path=d0.npz", "--set", "algorithm.name=fsl"]
    assert undrift("run", "c.toml", "--out", "out", *source).code == 0
    np.savez(here / "d0.npz", x=own["x_train"][:19], y=own["y_train"][:19])
    answer = undrift("run", "c.toml", "--out", "out", "--resume", *source)
    assert answer.code == 2
    assert "the server data changed" in answer.err


def test_a_run_goes_on_only_with_its_own_versions(
    halted: Path, here: Path, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "1.0")
        code, said = resume(undrift, halted)
        assert code == 2
        assert "the torch changed" in said or "torch" in said
        assert "--accept-changed-versions" in said
    assert resume(undrift, halted, "--accept-changed-versions")[0] == 0
    assert same_run(halted, here / "whole")


# A3: two runs in one folder.

SLOWER = ["--set", "algorithm.name=scaffold", "--set", "engine.checkpoint_seconds=0.5", "--quiet"]
COMMAND = [sys.executable, "-m", "undrift.cli", "run", "c.toml", "--out", "out", *SLOWER, "--workers", "2"]


def test_two_starts_in_one_folder(here: Path) -> None:
    many = [*COMMAND, "--set", "train.rounds=300"]
    both = [subprocess.Popen(many, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    loser = next(text for text in said if text)
    assert "a run is under way there" in loser or "holds another run" in loser
    assert [line["round"] for line in read_lines(here / "out" / "rounds.jsonl")] == list(range(1, 301))


def test_going_on_beside_a_live_run(here: Path, undrift: Undrift) -> None:
    live = subprocess.Popen([*COMMAND, "--set", "train.rounds=100000"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (here / "out" / "checkpoint" / "state.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        beside = undrift("run", "c.toml", "--out", "out", *SLOWER, "--set", "train.rounds=100000", "--resume")
        assert beside.code == 2
        assert "a run is under way there" in beside.err
        live.kill()
        live.wait()
        # Its workers hold nothing: the folder is free at once.
        state = here / "out" / "checkpoint" / "state.json"
        last = json.loads(state.read_text())["round"]
        again = subprocess.Popen([*COMMAND, "--set", "train.rounds=100000", "--resume"], stderr=subprocess.PIPE)
        while json.loads(state.read_text())["round"] == last and again.poll() is None:
            time.sleep(0.02)
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=60)
        assert again.returncode == 130
    finally:
        live.kill()
    rounds = [line["round"] for line in read_lines(here / "out" / "rounds.jsonl")]
    assert rounds == list(range(1, len(rounds) + 1))


def test_a_refused_start_leaves_the_folder_alone(here: Path, undrift: Undrift) -> None:
    assert undrift("run", "c.toml", "--out", "out").code == 0
    before = files(here / "out")
    assert undrift("run", "c.toml", "--out", "out").code == 2
    assert files(here / "out") == before
