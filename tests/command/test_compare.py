"""Comparisons: the table, sweeps decided on validation data, interruptions."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import time
import tomllib
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from shell import Undrift, arrays, assert_refused, files, same_run
from undrift.cli import main
from undrift.core.files import read_lines


def test_compare_makes_a_table_of_all_algorithms_and_seeds(here: Path, undrift: Undrift) -> None:
    algorithms = ("--algorithms", "fedavg, scaffold,fedpvr+fsl")
    arguments = ("compare", "c.toml", *algorithms, "--seeds", "2", "--out", "out", "--quiet")
    answer = undrift(*arguments)
    assert answer.code == 0, answer.err
    assert all(name in answer.out for name in ("fedavg", "scaffold", "fedpvr+fsl", "±"))
    with open(here / "out" / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == ["fedavg", "scaffold", "fedpvr+fsl"]
    finals = [
        json.loads((here / "out" / "scaffold" / f"seed{seed}" / "summary.json").read_text())["final_accuracy"]
        for seed in (1, 2)
    ]
    assert float(rows[1]["accuracy_mean"]) == pytest.approx(np.mean(finals))
    assert float(rows[1]["accuracy_std"]) == pytest.approx(np.std(finals, ddof=1))
    assert (here / "out" / "table.md").read_text().count("\n") == 5
    assert undrift("run", "c.toml", "--out", "alone", "--set", "algorithm.name=scaffold", "--set", "seed=2").code == 0
    assert same_run(here / "alone", here / "out" / "scaffold" / "seed2")
    before = files(here / "out")
    assert undrift(*arguments).code == 2
    assert files(here / "out") == before
    assert undrift(*arguments, "--resume").code == 0


def test_a_sweep_is_decided_on_validation_data(here: Path, undrift: Undrift) -> None:
    """Test labels are shuffled so that the test set prefers the setting that learns nothing."""
    spoiled = arrays()
    spoiled["y_test"] = (spoiled["y_test"] + 1) % 3
    np.savez(here / "data.npz", **spoiled)
    answer = undrift(
        "compare",
        "c.toml",
        "--algorithms",
        "fedavg",
        "--sweep",
        "train.lr=0.000001,0.3",
        "--out",
        "out",
        "--quiet",
        "--set",
        "train.rounds=15",
        "--set",
        "data.validation=0.2",
    )
    assert answer.code == 0, answer.err
    with open(here / "out" / "table.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["setting"] == "train.lr=0.3"
    scores = {}
    for rate in ("1e-06", "0.3"):
        folder = here / "out" / "fedavg" / f"train.lr={rate}" / "seed1"
        scores[rate] = json.loads((folder / "summary.json").read_text())["final_accuracy"]
        assert "validation_accuracy" in read_lines(folder / "metrics.jsonl")[-1]
    assert scores["0.3"] < scores["1e-06"]
    assert float(row["accuracy_mean"]) == scores["0.3"]


def test_a_sweep_holds_out_validation_data_by_itself(here: Path, undrift: Undrift) -> None:
    arguments = (
        "compare",
        "c.toml",
        "--algorithms",
        "fedavg",
        "--sweep",
        "train.lr=0.01,0.3",
        "--out",
        "out",
        "--quiet",
    )
    assert undrift(*arguments, "--set", "train.rounds=1").code == 0
    written = tomllib.loads((here / "out" / "fedavg" / "train.lr=0.3" / "seed1" / "config.toml").read_text())
    assert written["data"]["validation"] == 0.05


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["--algorithms", "fedavg,scafold"], ["scafold", "scaffold"]),
        (["--algorithms", "slowmo+feddyn"], ["slowmo", "feddyn"]),
        (["--algorithms", "fedavg", "--sweep", "train.lr"], ["--sweep", "train.lr"]),
        (["--algorithms", "fedavg", "--sweep", "train.lrr=1,2"], ["train.lrr"]),
        (["--algorithms", "fedavg", "--set", "train.cohort=70"], ["train.cohort", "70"]),
        (["--algorithms", "fedavg,fedpvr", "--set", "algorithm.fedpvr.layers=9"], ["layers", "9"]),
        (["--algorithms", "fedavg", "--set", "partition.clients=1000"], ["partition.clients", "1000"]),
        (["--algorithms", "fedavg", "--set", "data.path=none.npz"], ["none.npz"]),
        (["--algorithms", "fedavg,fsl", "--set", "server_data.size=1000"], ["server_data.size"]),
        (["--algorithms", ","], ["--algorithms"]),
        (["--algorithms", "fedavg,fedavg"], ["fedavg/seed1", "2 times"]),
        (["--algorithms", "fedavg", "--sweep", "train.lr=0.1,0.10"], ["train.lr=0.1", "2 times"]),
    ],
)
def test_bad_comparisons_are_refused(arguments: list[str], fragments: list[str], here: Path, undrift: Undrift) -> None:
    answer = undrift("compare", "c.toml", "--out", "out", "--quiet", *arguments)
    assert_refused(answer, fragments, here / "out")


def test_a_comparison_says_where_it_lies(here: Path, undrift: Undrift) -> None:
    alone = undrift("compare", "c.toml", "--algorithms", "fedavg", "--resume")
    assert_refused(alone, ["--resume", "--out"], here / "runs")
    (here / "a file").touch()
    assert_refused(undrift("compare", "c.toml", "--algorithms", "fedavg", "--out", "a file"), ["a file"], here / "runs")


def test_control_c_of_a_comparison(here: Path, undrift: Undrift) -> None:
    """The terminal interrupts all processes at once: one message, no traceback, and the rest can be made later."""
    arguments = ["compare", "c.toml", "--algorithms", "fedavg,scaffold", "--out", "out", "--workers", "2"]
    arguments += ["--set", "train.rounds=1500"]

    def child() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        with open("err", "w") as err:
            os.dup2(err.fileno(), 2)
            sys.stderr = err
            sys.argv = ["undrift", *arguments]
            main()

    process = get_context("fork").Process(target=child)
    process.start()
    deadline = time.monotonic() + 300
    while len(read_lines(here / "out" / "fedavg" / "seed1" / "rounds.jsonl")) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.pid
    os.killpg(process.pid, signal.SIGINT)
    process.join()
    err = (here / "err").read_text()
    assert process.exitcode == 130, err
    assert "Traceback" not in err
    assert "--out out --resume" in err.strip().splitlines()[-1]
    assert undrift(*arguments, "--resume", "--quiet").code == 0
    changed = undrift(*arguments, "--resume", "--quiet", "--set", "train.lr=0.2")
    assert changed.code == 2
    assert "train.lr" in changed.err
