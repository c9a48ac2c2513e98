"""A run as people and scripts meet it: exit codes, messages, files, interruptions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shell import Undrift, files, same_run
from undrift import __version__
from undrift.cli import main
from undrift.core.files import read_lines


def test_another_run_is_never_written_over(here: Path, undrift: Undrift) -> None:
    assert undrift("run", "c.toml", "--out", "out").code == 0
    before = files(here / "out")
    again = undrift("run", "c.toml", "--out", "out")
    assert (again.code, len(again.err.splitlines())) == (2, 1)
    assert "out holds another run" in again.err
    other = undrift("run", "c.toml", "--out", "out", "--resume", "--set", "train.lr=0.2")
    assert other.code == 2
    assert all(word in other.err for word in ("holds another run", "train.lr", "0.1", "0.2"))
    assert files(here / "out") == before
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").write_text("mine")
    full = undrift("run", "c.toml", "--out", "full")
    assert (full.code, files(here / "full")) == (2, {"thesis.txt": b"mine"})
    assert undrift("run", "c.toml", "--out", "full/thesis.txt").code == 2
    assert undrift("run", "c.toml", "--out", "new", "--resume").code == 2
    assert undrift("run", "c.toml", "--resume").code == 2
    assert not (here / "new").exists()
    compared = undrift("compare", "c.toml", "--algorithms", "fedavg", "--out", "full")
    assert (compared.code, files(here / "full")) == (2, {"thesis.txt": b"mine"})


# What a run flatten.


def test_the_output_folder(here: Path, undrift: Undrift) -> None:
    answer = undrift("run", "c.toml", "--out", "out", "--set", "train.eval_every=2", "--set", "measure.targets=[0.33]")
    assert answer.code == 0
    assert "results in out" in answer.out
    out = here / "out"
    names = {"config.toml", "metrics.jsonl", "rounds.jsonl", "summary.json", "model.safetensors", "checkpoint"}
    assert {p.name for p in out.iterdir()} == names
    metrics = read_lines(out / "metrics.jsonl")
    keys = {"round", "test_accuracy", "test_loss", "train_loss", "bytes_down", "bytes_up", "seconds"}
    assert [set(record) for record in metrics] == [keys] * 3
    assert [record["round"] for record in metrics] == [0, 2, 4]
    assert metrics[0]["train_loss"] is None
    rounds = read_lines(out / "rounds.jsonl")
    assert [set(line) for line in rounds] == [{"round", "clients", "lost", "lr", "seconds"}] * 4
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]
    assert all(len(line["clients"]) == 3 and line["lost"] == [] and line["lr"] == 0.1 for line in rounds)
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) == {
        "final_accuracy",
        "rolling_accuracy",
        "best_accuracy",
        "rise_time",
        "rounds_to",
        "rounds_to_raw",
        "bytes_down",
        "bytes_up",
        "checksums",
        "seconds",
        "versions",
        "final_loss",
        "rolling_loss",
        "rounds",
        "monitor",
        "precision",
    }
    accuracies = [record["test_accuracy"] for record in metrics]
    assert summary["final_accuracy"] == accuracies[-1]
    assert summary["best_accuracy"] == max(accuracies)
    assert summary["rolling_accuracy"] == pytest.approx(sum(accuracies) / 3)
    grid = {f"{0.05 * k:g}" for k in range(2, 20)} | {"0.33"}
    assert set(summary["rounds_to"]) == set(summary["rounds_to_raw"]) == grid
    assert summary["bytes_down"] == 2 * sum(r["bytes_down"] for r in metrics)
    assert {"torch", "undrift", "python"} <= set(summary["versions"])
    model = load_file(out / "model.safetensors")
    assert summary["bytes_up"] == 4 * 3 * 4 * sum(t.numel() for t in model.values())


def test_the_written_configuration_gives_the_same_bits(here: Path, undrift: Undrift) -> None:
    settings = (
        "--set",
        "algorithm.name=fedpvr+fsl",
        "--set",
        "algorithm.fsl.gamma=0.5",
        "--set",
        "train.server_lr=sqrt",
        "--set",
        "train.schedule=multistep",
        "--set",
        "train.milestones=[2]",
        "--set",
        "data.validation=0.1",
    )
    assert undrift("run", "c.toml", "--out", "one", *settings).code == 0
    written = tomllib.loads((here / "one" / "config.toml").read_text())
    assert written["algorithm"]["fsl"]["gamma"] == 0.5
    assert written["algorithm"]["fedpvr"]["layers"] == 1
    assert written["train"]["weighting"] == "samples"
    assert undrift("run", "one/config.toml", "--out", "two").code == 0
    assert same_run(here / "one", here / "two")
    assert (here / "one" / "config.toml").read_text() == (here / "two" / "config.toml").read_text()
    os.makedirs("elsewhere")
    os.chdir("elsewhere")
    assert undrift("run", "../one/config.toml", "--out", "../three", "--workers", "2").code == 0
    assert same_run(here / "one", here / "three")


def test_no_rounds_gives_the_starting_model(here: Path, undrift: Undrift) -> None:
    assert undrift("run", "c.toml", "--out", "zero", "--set", "train.rounds=0").code == 0
    assert [r["round"] for r in read_lines(here / "zero" / "metrics.jsonl")] == [0]
    assert read_lines(here / "zero" / "rounds.jsonl") == []
    assert (here / "zero" / "rounds.jsonl").exists()
    summary = json.loads((here / "zero" / "summary.json").read_text())
    assert (summary["bytes_down"], summary["bytes_up"], summary["rise_time"]) == (0, 0, 0)
    # The start does not depend on what is trained afterwards, and it can be given as a model file.
    start = ("--set", "model.init=zero/model.safetensors", "--set", "model.initialisation=glorot")
    assert undrift("run", "c.toml", "--out", "one").code == 0
    assert undrift("run", "c.toml", "--out", "two", *start).code == 0
    assert same_run(here / "one", here / "two")
    assert undrift("run", "c.toml", "--out", "zero", "--set", "train.rounds=0", "--resume").code == 0
    assert [r["round"] for r in read_lines(here / "zero" / "metrics.jsonl")] == [0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "7"),
        ("partition.seed", "5"),
        ("data.validation", "0.2"),
        ("model.hidden", "[4, 4]"),
        ("train.lr", "1"),
        ("train.schedule", "cosine"),
        ("train.server_lr", '"sqrt"'),
        ("train.weighting", "uniform"),
        ("train.local_steps", "2"),
        ("algorithm.name", "dsl"),
        ("algorithm.fedprox.mu", "2"),
    ],
)
def test_any_key_can_be_set(key: str, value: str, here: Path, undrift: Undrift) -> None:
    name = ("--set", "algorithm.name=fedprox") if "fedprox" in key else ()
    assert undrift("run", "c.toml", "--out", "out", "--set", f"{key}={value}", *name).code == 0
    found: Any = tomllib.loads((here / "out" / "config.toml").read_text())
    for part in key.split("."):
        found = found[part]
    assert str(found).replace("'", '"') in (value, value.strip('"'), f"{value}.0")
    assert undrift("run", "c.toml", "--out", "plain", *name).code == 0
    assert not same_run(here / "out", here / "plain")


# Running, stopping, going on.


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_diverging_run_is_named_and_what_is_good_kept(algorithm: str, here: Path, undrift: Undrift) -> None:
    """With this rate weight decay multiplies the weights by -29 in every step, until they overflow."""
    settings = [
        "--set",
        f"algorithm.name={algorithm}",
        "--set",
        "train.rounds=6",
        "--set",
        "train.weight_decay=1.0",
        "--set",
        "train.lr=30.0",
        "--set",
        "train.local_steps=4",
        "--set",
        "train.schedule=multistep",
        "--set",
        "train.pretrain_epochs=1",
    ]
    answer = undrift("run", "c.toml", "--out", "out", "--quiet", *settings)
    assert answer.code == 1
    assert len(answer.err.strip().splitlines()) == 1
    found = re.search(r"round (\d+): the loss or the update of clients? ([\d, ]+) is not finite", answer.err)
    assert found
    round, clients = int(found[1]), [int(c) for c in found[2].split(",")]
    assert not (here / "out" / "summary.json").exists()
    assert not (here / "out" / "model.safetensors").exists()
    state = json.loads((here / "out" / "checkpoint" / "state.json").read_text())
    assert state["round"] == round - 1
    good = load_file(here / "out" / "checkpoint" / state["server"])
    assert all(torch.isfinite(tensor).all() for tensor in good.values())
    assert [line["round"] for line in read_lines(here / "out" / "rounds.jsonl")] == list(range(1, round))
    metrics = (here / "out" / "metrics.jsonl").read_text()
    again = undrift("run", "c.toml", "--out", "out", "--quiet", "--resume", *settings)
    assert (again.code, again.err) == (1, answer.err)
    assert set(clients) <= set(range(6))
    assert (here / "out" / "metrics.jsonl").read_text() == metrics


def test_a_run_that_diverges_at_once_can_be_resumed_from_its_start(here: Path, undrift: Undrift) -> None:
    """The checkpoint after round 0 holds the pre-trained model: neither it nor its record is made twice."""
    settings = ["--set", "train.lr=1e30", "--set", "train.local_steps=5", "--set", "train.pretrain_epochs=2"]
    first = undrift("run", "c.toml", "--out", "out", *settings)
    assert first.code == 1
    assert "round 1:" in first.err
    before = files(here / "out")
    second = undrift("run", "c.toml", "--out", "out", "--resume", *settings)
    assert (second.code, second.err) == (1, first.err)
    assert files(here / "out") == before
    assert [r["round"] for r in read_lines(here / "out" / "metrics.jsonl")] == [0]


def test_control_c_saves_and_says_how_to_go_on(here: Path, undrift: Undrift, capfd: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "algorithm.name=scaffold+fsl", "--set", "train.rounds=200", "--set", "data.validation=0.1"]
    assert undrift("run", "c.toml", "--out", "whole", "--quiet", *settings).code == 0

    def child() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        with open("err", "w") as err, open("out", "w") as out:
            sys.stderr, sys.stdout = err, out
            sys.argv = ["undrift", "run", "c.toml", "--out", "cut", "--workers", "2", *settings]
            main()

    process = get_context("fork").Process(target=child)
    process.start()
    deadline = time.monotonic() + 300
    while len(read_lines(here / "cut" / "rounds.jsonl")) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.pid
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    message = (here / "err").read_text().strip().splitlines()[-1]
    assert "interrupted" in message
    advice = message.split("undrift run ")[1].split()
    assert advice == ["cut/config.toml", "--out", "cut", "--resume"]
    assert "Traceback" not in (here / "err").read_text()
    state = json.loads((here / "cut" / "checkpoint" / "state.json").read_text())
    assert 3 <= state["round"] < 200
    assert len(read_lines(here / "cut" / "rounds.jsonl")) == state["round"]
    assert undrift("run", *advice, "--quiet").code == 0
    assert same_run(here / "cut", here / "whole")


def test_a_real_process_piped(here: Path) -> None:
    """The installed command, its output in a pipe: readable, without control codes; the results on stdout."""
    command = [sys.executable, "-m", "undrift", "run", "c.toml", "--out", "out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert re.search(r"round 4/4 .*accuracy 0\.\d{4} .*loss \d", done.stderr)
    assert re.search(r"final accuracy 0\.\d{4}", done.stdout)
    assert done.stdout.strip().endswith("results in out")


def test_quiet(here: Path, undrift: Undrift) -> None:
    loud = undrift("run", "c.toml", "--out", "loud")
    quiet = undrift("run", "c.toml", "--out", "quiet", "--quiet")
    assert (loud.code, quiet.code) == (0, 0)
    assert "round 4/4" in loud.err
    assert quiet.err == ""
    assert "final accuracy" in quiet.out
    assert same_run(here / "loud", here / "quiet")


def test_a_folder_is_chosen_when_none_is_given(here: Path, undrift: Undrift) -> None:
    assert undrift("run", "c.toml").code == 0
    (folder,) = (here / "runs").iterdir()
    assert (folder / "summary.json").exists()
    assert "npz-fedavg" in folder.name


def test_version_and_help(undrift: Undrift) -> None:
    assert undrift("--version").out.strip() == f"undrift {__version__}"
    bare = undrift()
    assert "demo" in bare.out + bare.err
    top = undrift("--help")
    assert (top.code, "undrift demo" in top.out) == (0, True)
