"""A run's folder cannot lie: damage is found, another run is not taken for this one, and one process writes to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from forked import Command, killed_after, until
from shell import CONFIG, Undrift, arrays, files, same_run
from undrift.core.files import read_lines

RUN = ("--set", "algorithm.name=scaffold", "--set", "engine.checkpoint_seconds=0.0", "--quiet")


ROUNDS = ("--set", "train.rounds=10")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten rounds that was stopped after the sixth (``good``), and the same run whole."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        np.savez("data.npz", **arrays())
        Path("c.toml").write_text(CONFIG)
        assert killed_after(100, "run", "c.toml", "--out", "whole", *RUN, *ROUNDS) == 0
        assert killed_after(6, "run", "c.toml", "--out", "good", *RUN, *ROUNDS) == 9
    assert json.loads((place / "good" / "checkpoint" / "state.json").read_text())["round"] == 6
    return place


@pytest.fixture
def halted(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stopped run, to be damaged; data and configuration as they were."""
    monkeypatch.chdir(made)
    np.savez("data.npz", **arrays())
    shutil.rmtree("cut", ignore_errors=True)
    shutil.copytree("good", "cut")
    return made / "cut"


def resume(undrift: Undrift, out: Path, *more: str) -> tuple[int, str]:
    answer = undrift("run", "c.toml", "--out", out, *RUN, *ROUNDS, "--resume", *more)
    assert "Traceback" not in answer.err
    return answer.code, answer.err


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


# A1: silent damage.


def test_the_checkpoint_before_takes_the_place_of_a_damaged_one(halted: Path, undrift: Undrift) -> None:
    server = halted / "checkpoint" / "server-6.safetensors"
    flip(server, server.stat().st_size - 3)
    code, said = resume(undrift, halted)
    assert code == 0, said
    assert len(said.splitlines()) == 1
    assert "server-6.safetensors" in said
    assert "going on from round 5" in said
    assert same_run(halted, halted.parent / "whole")


def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(halted: Path, undrift: Undrift) -> None:
    """A few bits of every file; the campaign tries thousands."""
    good, draw = halted.parent / "good", np.random.default_rng(0)
    refused = 0
    for path in sorted(p for p in good.rglob("*") if p.is_file()):
        shutil.rmtree(halted)
        shutil.copytree(good, halted)
        flip(halted / path.relative_to(good), int(draw.integers(path.stat().st_size)), int(draw.integers(8)))
        code, said = resume(undrift, halted)
        if code:
            refused += 1
            assert len(said.splitlines()) == 1
            assert path.name in said or path.name == "config.toml"
        else:
            assert same_run(halted, halted.parent / "whole"), path
    assert refused >= 2  # the records, of which there is one copy


@pytest.mark.parametrize("name", ["metrics.jsonl", "rounds.jsonl"])
@pytest.mark.parametrize("kind", ["cut", "doubled", "missing", "edited"])
def test_records_that_are_not_whole_are_refused(name: str, kind: str, halted: Path, undrift: Undrift) -> None:
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


def test_what_was_written_after_the_checkpoint_may_be_anything(halted: Path, undrift: Undrift) -> None:
    with open(halted / "metrics.jsonl", "ab") as file:
        file.write(b'{"round": 9, "test_acc\xff')
    assert resume(undrift, halted) == (0, "")
    assert same_run(halted, halted.parent / "whole")


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


def test_a_folder_of_the_older_format_goes_on_with_a_warning(halted: Path, undrift: Undrift) -> None:
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
    assert same_run(halted, halted.parent / "whole")
    (halted / "checkpoint" / "previous.json").unlink()
    state.write_text(json.dumps(old | {"round": 10**9}))
    assert resume(undrift, halted)[0] == 1


# A2: another run that looks like this one.


def test_a_run_goes_on_only_with_its_own_data(halted: Path, undrift: Undrift) -> None:
    own = arrays()
    other_labels = own["y_train"].copy()
    other_labels[:2] = 1 - other_labels[:2] % 2
    changes = {
        "clients' data": {"y_train": other_labels},
        "clients' data ": {"x_train": own["x_train"][::-1], "y_train": own["y_train"][::-1]},
        "test data": {"x_test": own["x_test"][:50], "y_test": own["y_test"][:50]},
    }
    for what, change in changes.items():
        np.savez("data.npz", **(own | change))
        code, said = resume(undrift, halted)
        assert code == 2
        assert f"the {what.strip()} changed" in said
        assert "--accept-changed-data" in said
    code, said = resume(undrift, halted, "--accept-changed-data")
    assert code == 0
    assert "the test data changed" in said
    assert not same_run(halted, halted.parent / "whole")


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
    halted: Path, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "1.0")
        code, said = resume(undrift, halted)
        assert code == 2
        assert "the torch changed" in said or "torch" in said
        assert "--accept-changed-versions" in said
    assert resume(undrift, halted, "--accept-changed-versions")[0] == 0
    assert same_run(halted, halted.parent / "whole")


# A3: two runs in one folder.

SLOWER = ("--set", "algorithm.name=scaffold", "--set", "engine.checkpoint_seconds=0.1", "--quiet", "--workers", "2")
COMMAND = ("run", "c.toml", "--out", "out", *SLOWER)


def test_two_starts_in_one_folder(here: Path) -> None:
    both = [Command(*COMMAND, "--set", "train.rounds=100") for _ in range(2)]
    ends = sorted(command.end(120) for command in both)
    assert [code for code, _ in ends] == [0, 2]
    assert "a run is under way there" in ends[1][1] or "holds another run" in ends[1][1]
    assert [line["round"] for line in read_lines(here / "out" / "rounds.jsonl")] == list(range(1, 101))


def test_going_on_beside_a_live_run(here: Path, undrift: Undrift) -> None:
    state = here / "out" / "checkpoint" / "state.json"
    many = ("--set", "train.rounds=100000")
    live = Command(*COMMAND, *many)
    try:
        until(state.exists)
        beside = undrift(*COMMAND, *many, "--resume")
        assert beside.code == 2
        assert "a run is under way there" in beside.err
    finally:
        live.kill()
    # Its workers hold nothing: the folder is free at once.
    last = json.loads(state.read_text())["round"]
    again = Command(*COMMAND, *many, "--resume")
    try:
        until(lambda: json.loads(state.read_text())["round"] > last)
        again.signal(signal.SIGTERM)
        assert again.wait(60) == 130
    finally:
        again.kill()
    rounds = [line["round"] for line in read_lines(here / "out" / "rounds.jsonl")]
    assert rounds == list(range(1, len(rounds) + 1))


def test_a_refused_start_leaves_the_folder_alone(here: Path, undrift: Undrift) -> None:
    assert undrift("run", "c.toml", "--out", "out").code == 0
    before = files(here / "out")
    assert undrift("run", "c.toml", "--out", "out").code == 2
    assert files(here / "out") == before


def test_a_run_that_is_refused_on_its_way_leaves_nothing(here: Path, undrift: Undrift) -> None:
    run = ("run", "c.toml", "--out", "out", "--quiet", "--set")
    answer = undrift(*run, "algorithm.name=choice", "--set", "algorithm.choice.candidates=1")
    assert answer.code == 2
    assert "choice.candidates = 1" in answer.err
    assert files(here / "out") == {}
    assert undrift(*run, "algorithm.name=choice").code == 0


def test_losses_beyond_all_numbers_are_null_everywhere(here: Path, undrift: Undrift) -> None:
    """And a run that was resumed sums itself up like one that was not."""
    given = arrays()
    given["x_test"] = np.sign(given["x_test"]) * np.float32(3e38)
    np.savez("data.npz", **given)
    rounds = (*RUN, "--set", "train.rounds=4", "--set", "train.weighting=uniform")
    assert killed_after(2, "run", "c.toml", "--out", "cut", *rounds) == 9
    for out, more in (("cut", "--resume"), ("whole", "--quiet")):
        answer = undrift("run", "c.toml", "--out", out, *rounds, more)
        assert (answer.code, answer.err) == (0, "")
    assert all(record["test_loss"] is None for record in read_lines(here / "whole" / "metrics.jsonl"))
    summaries = [json.loads((here / out / "summary.json").read_text()) for out in ("cut", "whole")]
    for summary in summaries:
        del summary["seconds"], summary["checksums"]
    assert summaries[0] == summaries[1]
    assert (summaries[0]["final_loss"], summaries[0]["rolling_loss"]) == (None, None)
    assert summaries[0]["final_accuracy"] > 0
