"""The command as people and scripts meet it: exit codes, messages, files, interruptions."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from undrift import __version__
from undrift.cli import app, main
from undrift.files import read_lines

CONFIG = """
seed = 1
[data]
name = "npz"
path = "data.npz"
[partition]
scheme = "iid"
clients = 6
[server_data]
source = "iid"
size = 12
[model]
name = "mlp"
hidden = [8]
[algorithm]
name = "fedavg"
[train]
rounds = 4
cohort = 3
batch_size = 8
lr = 0.1
[engine]
workers = 0
"""


@dataclass
class Answer:
    code: int
    out: str
    err: str


Undrift = Callable[..., Answer]


def arrays(n: int = 120, classes: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, 5))

    def draw(count: int) -> tuple[Any, Any]:
        y = rng.permutation(np.arange(count) % classes)
        return (centres[y] + rng.normal(size=(count, 5))).astype(np.float32), y

    (x, y), (xt, yt) = draw(n), draw(60)
    return {"x_train": x, "y_train": y, "x_test": xt, "y_test": yt}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and its data, the current one."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "data.npz", **arrays())
    (tmp_path / "c.toml").write_text(CONFIG)
    (tmp_path / "c.toml.copy").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def undrift(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Undrift:
    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["undrift", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, captured.out, captured.err)

    return call


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def without_clock(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_lines(path)]


def same_run(one: Path, other: Path) -> bool:
    models = [(folder / "model.safetensors").read_bytes() for folder in (one, other)]
    lines = [[without_clock(folder / name) for name in ("metrics.jsonl", "rounds.jsonl")] for folder in (one, other)]
    return models[0] == models[1] and lines[0] == lines[1]


# Wrong input: exit code 2, a line or two that name the culprit, nothing written.

BAD_SETTINGS: dict[str, tuple[list[str], list[str]]] = {
    "unknown key": (["train.lrr=0.1"], ["train.lrr", "'lr'"]),
    "unknown section": (["trian.lr=0.1"], ["trian", "'train'"]),
    "unknown parameter": (["algorithm.name=fedprox", "algorithm.fedprox.nu=1.0"], ["algorithm.fedprox.nu", "mu"]),
    "unknown algorithm section": (["algorithm.scafold.option=1"], ["algorithm.scafold", "'scaffold'"]),
    "unknown algorithm": (["algorithm.name=scafold"], ["algorithm.name", "'scafold'", "'scaffold'"]),
    "unknown model": (["model.name=mpl"], ["model.name", "'mpl'", "'mlp'"]),
    "unknown data": (["data.name=cifar11"], ["data.name", "'cifar11'", "'cifar10'"]),
    "unknown scheme": (["partition.scheme=dirichlett"], ["partition.scheme", "'dirichlett'", "'dirichlet'"]),
    "unknown source": (["server_data.source=balance"], ["server_data.source", "'balance'", "'balanced'"]),
    "unknown schedule": (["train.schedule=cosin"], ["train.schedule", "'cosin'", "'cosine'"]),
    "a word for a number": (["train.lr=fast"], ["train.lr", "'fast'", "number"]),
    "a fraction for a whole number": (["train.rounds=2.5"], ["train.rounds", "2.5", "integer"]),
    "a number for a word": (["model.name=3"], ["model.name", "3", "string"]),
    "a number for a switch": (["server_data.exclusive=1"], ["server_data.exclusive", "1", "boolean"]),
    "a switch for a number": (["algorithm.name=feddyn", "algorithm.feddyn.alpha=true"], ["feddyn.alpha"]),
    "a word for a parameter": (["algorithm.name=fedprox", "algorithm.fedprox.mu=much"], ["fedprox.mu", "'much'"]),
    "a negative rate": (["train.lr=-0.1"], ["train.lr", "-0.1", "greater than 0"]),
    "rate zero": (["train.lr=0"], ["train.lr", "0", "greater than 0"]),
    "rate nan": (["train.lr=nan"], ["train.lr", "nan"]),
    "rate infinite": (["train.lr=inf"], ["train.lr", "inf"]),
    "a server rate of zero": (["train.server_lr=0"], ["train.server_lr", "0"]),
    "negative rounds": (["train.rounds=-1"], ["train.rounds", "-1"]),
    "no local steps": (["train.local_steps=0"], ["train.local_steps", "0"]),
    "negative batch size": (["train.batch_size=-4"], ["train.batch_size", "-4"]),
    "cohort too large": (["train.cohort=7"], ["train.cohort", "7", "6"]),
    "a section for a value": (["train=3"], ["train", "3"]),
    "a value for a section": (["seed.x=3"], ["seed"]),
    "no sign": (["train.lr"], ["train.lr", "KEY=VALUE"]),
    "too many classes": (["partition.scheme=classes", "partition.classes=20"], ["partition.classes", "20", "3"]),
    "more clients than samples": (["partition.clients=121"], ["partition.clients", "121", "120"]),
    "scheme without its parameter": (["partition.scheme=shards"], ["partition.shards", "missing"]),
    "too many shards": (["partition.scheme=shards", "partition.shards=60"], ["partition.shards", "60"]),
    "impossible dirichlet": (
        ["partition.scheme=dirichlet", "partition.alpha=0.5", "partition.min_samples=30"],
        ["partition.min_samples", "30"],
    ),
    "too much server data": (["server_data.size=500"], ["server_data.size", "500"]),
    "deeper than the model": (["algorithm.name=fedpvr", "algorithm.fedpvr.layers=3"], ["layers", "3", "2"]),
    "no such layer": (["algorithm.name=fedpvr", 'algorithm.fedpvr.layers=["head"]'], ["layers", "'head'"]),
    "owned server step": (["algorithm.name=slowmo", "train.server_lr=2.0"], ["train.server_lr", "2.0", "'slowmo'"]),
    "two owners": (["algorithm.name=slowmo+feddyn"], ["'slowmo'", "'feddyn'", "the server step"]),
    "wrong option": (["algorithm.name=scaffold", "algorithm.scaffold.option=3"], ["scaffold.option", "3"]),
    "wrong gamma": (["algorithm.name=fsl", "algorithm.fsl.gamma=-1"], ["fsl.gamma", "-1"]),
    "no server epochs": (["algorithm.name=fsl", "algorithm.fsl.epochs=0"], ["fsl.epochs", "0"]),
    "no server steps": (["algorithm.name=fsl", "algorithm.fsl.steps=-2"], ["fsl.steps", "-2"]),
    "negative server batch": (["algorithm.name=fsl", "algorithm.fsl.batch_size=-1"], ["fsl.batch_size", "-1"]),
    "wrong share": (["algorithm.name=ds", "algorithm.ds.share=0.0"], ["ds.share", "0"]),
    "missing data file": (["data.path=nowhere.npz"], ["nowhere.npz", "no such file"]),
    "missing data set": (["data.name=cifar10", "data.root=empty"], ["cifar", "undrift data get cifar10"]),
    "missing server file": (["server_data.source=file", "server_data.path=nowhere.npz"], ["nowhere.npz"]),
    "missing model file": (["model.init=nowhere.safetensors"], ["nowhere.safetensors"]),
    "engine that is not there": (["engine.name=cloud"], ["engine.name", "'cloud'"]),
    "negative workers": (["engine.workers=-1"], ["engine.workers", "-1"]),
    "negative seed": (["seed=-1"], ["seed", "-1"]),
    "images for vectors": (["model.name=vgg11"], ["vgg11"]),
}  # fmt: skip


def assert_refused(answer: Answer, fragments: list[str], out: Path) -> None:
    assert answer.code == 2, answer
    lines = answer.err.strip().splitlines()
    assert 1 <= len(lines) <= 2
    assert lines[0].startswith("undrift: ")
    assert "Traceback" not in answer.err
    assert all(fragment in answer.err for fragment in fragments), answer.err
    assert answer.out == ""
    assert not out.exists()


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_refused_in_a_line(case: str, here: Path, undrift: Undrift) -> None:
    settings, fragments = BAD_SETTINGS[case]
    chosen = [part for setting in settings for part in ("--set", setting)]
    assert_refused(undrift("run", "c.toml", "--out", "out", *chosen), fragments, here / "out")


def broken(**changes: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = {k: v for k, v in {**arrays(), **changes}.items() if v is not None}
        np.savez(path, **content)

    return write


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def with_value(key: str, value: float) -> Any:
    array = arrays()[key].copy()
    array.flat[7] = value
    return array


BAD_FILES: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "truncated": (truncated, ["data.npz"]),
    "empty": (lambda path: os.truncate(path, 0), ["data.npz"]),
    "not an npz": (lambda path: os.replace("c.toml.copy", path), ["data.npz"]),
    "array missing": (broken(y_test=None), ["data.npz", "'y_test'", "x_train"]),
    "nan in the data": (broken(x_train=with_value("x_train", np.nan)), ["data.npz", "x_train", "NaN"]),
    "infinity in the data": (broken(x_test=with_value("x_test", np.inf)), ["data.npz", "x_test", "infinite"]),
    "label too large": (broken(y_test=with_value("y_test", 3)), ["data.npz", "y_test", "label 3", "0 … 2"]),
    "negative label": (broken(y_train=with_value("y_train", -1)), ["data.npz", "y_train", "-1"]),
    "fewer labels": (broken(y_train=arrays()["y_train"][:-1]), ["data.npz", "x_train", "y_train"]),
    "labels that are not whole": (broken(y_train=arrays()["y_train"] + 0.5), ["data.npz", "y_train", "integers"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_data_files_are_refused_in_a_line(case: str, here: Path, undrift: Undrift) -> None:
    write, fragments = BAD_FILES[case]
    write(here / "data.npz")
    assert_refused(undrift("run", "c.toml", "--out", "out"), fragments, here / "out")


def test_truncated_published_files_are_refused(here: Path, undrift: Undrift) -> None:
    folder = here / "sets" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(bytes(3073 * 2))
    (folder / "data_batch_3.bin").write_bytes(bytes(5000))
    settings = ("--set", "data.name=cifar10", "--set", "data.root=sets", "--set", "model.name=cnn-cifar")
    assert_refused(undrift("run", "c.toml", "--out", "out", *settings), ["data_batch_3.bin"], here / "out")


@pytest.mark.parametrize(
    ("tensors", "fragments"),
    [
        ({"0.weight": torch.zeros(8, 5)}, ["start.safetensors", "no tensor"]),
        ({"0.weight": torch.zeros(9, 5)}, ["start.safetensors", "[9, 5]", "[8, 5]"]),
        ("extra", ["start.safetensors", "'more'"]),
        ("nan", ["start.safetensors", "NaN"]),
        ("text", ["start.safetensors", "cannot be read"]),
    ],
)
def test_other_model_files_are_refused(tensors: Any, fragments: list[str], here: Path, undrift: Undrift) -> None:
    assert undrift("run", "c.toml", "--out", "first", "--set", "train.rounds=0").code == 0
    stored = load_file(here / "first" / "model.safetensors")
    first = next(name for name, tensor in stored.items() if tensor.ndim == 2)
    if isinstance(tensors, dict):
        stored = {first: tensors["0.weight"]} if "no tensor" in fragments else {**stored, first: tensors["0.weight"]}
    elif tensors == "extra":
        stored["more"] = torch.zeros(1)
    elif tensors == "nan":
        stored[first][0, 0] = torch.nan
    save_file(stored, here / "start.safetensors")
    if tensors == "text":
        (here / "start.safetensors").write_text("hello")
    answer = undrift("run", "c.toml", "--out", "out", "--set", "model.init=start.safetensors")
    assert_refused(answer, fragments, here / "out")


@pytest.mark.parametrize(
    ("text", "fragments"),
    [("[train\n", ["c.toml", "line 1"]), (b"\xff\xfe", ["c.toml"]), (None, ["c.toml", "no such"])],
)
def test_bad_configuration_files(text: Any, fragments: list[str], here: Path, undrift: Undrift) -> None:
    path = here / "c.toml"
    path.unlink()
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert_refused(undrift("run", "c.toml", "--out", "out"), fragments, here / "out")


def test_algorithms_that_need_server_data_say_so(here: Path, undrift: Undrift) -> None:
    (here / "c.toml").write_text(CONFIG.replace('[server_data]\nsource = "iid"\nsize = 12\n', ""))
    for settings in (["algorithm.name=fsl"], ["algorithm.name=ds"], ["train.pretrain_epochs=2"]):
        answer = undrift("run", "c.toml", "--out", "out", "--set", *settings)
        assert_refused(answer, ["server data"], here / "out")


@pytest.mark.parametrize("arguments", ["run", "run c.toml --rounds 3", "runn", "run c.toml --workers x"])
def test_usage_errors(arguments: str, here: Path, undrift: Undrift) -> None:
    answer = undrift(*arguments.split())
    assert answer.code == 2
    assert len(answer.err.strip().splitlines()) <= 2
    assert not (here / "runs").exists()


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


# What a run leaves.


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
        "final_accuracy", "rolling_accuracy", "best_accuracy", "rise_time", "rounds_to", "rounds_to_raw", "bytes_down",
        "bytes_up", "seconds", "versions",
    }  # fmt: skip
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
        "--set", "algorithm.name=fedpvr+fsl", "--set", "algorithm.fsl.gamma=0.5", "--set", "train.server_lr=sqrt",
        "--set", "train.schedule=multistep", "--set", "train.milestones=[2]", "--set", "data.validation=0.1",
    )  # fmt: skip
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
        ("seed", "7"), ("partition.seed", "5"), ("data.validation", "0.2"), ("model.hidden", "[4, 4]"),
        ("train.lr", "1"), ("train.schedule", "cosine"), ("train.server_lr", '"sqrt"'), ("train.weighting", "uniform"),
        ("train.local_steps", "2"), ("algorithm.name", "dsl"), ("algorithm.fedprox.mu", "2"),
    ],
)  # fmt: skip
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
        "--set", f"algorithm.name={algorithm}", "--set", "train.rounds=6", "--set", "train.weight_decay=1.0",
        "--set", "train.lr=30.0", "--set", "train.local_steps=4", "--set", "train.schedule=multistep",
        "--set", "train.pretrain_epochs=1",
    ]  # fmt: skip
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
    assert "--out cut --resume" in message
    assert "Traceback" not in (here / "err").read_text()
    state = json.loads((here / "cut" / "checkpoint" / "state.json").read_text())
    assert 3 <= state["round"] < 200
    assert len(read_lines(here / "cut" / "rounds.jsonl")) == state["round"]
    assert undrift("run", "c.toml", "--out", "cut", "--quiet", "--resume", *settings).code == 0
    assert same_run(here / "cut", here / "whole")


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


def test_a_real_process_piped(here: Path) -> None:
    """The installed command, its output in a pipe: readable, without control codes; the results on stdout."""
    command = [sys.executable, "-m", "undrift.cli", "run", "c.toml", "--out", "out"]
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


def commands() -> list[list[str]]:
    from typer.main import get_command

    found: list[list[str]] = []

    def walk(command: Any, path: list[str]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            found.append([*path, name])
            walk(child, [*path, name])

    walk(get_command(app), [])
    return found


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_at_every_level_shows_an_example(path: list[str], undrift: Undrift) -> None:
    answer = undrift(*path, "--help")
    assert answer.code == 0
    assert "Usage:" in answer.out
    group = any(other[: len(path)] == path and len(other) > len(path) for other in commands())
    assert group or f"undrift {' '.join(path)}" in answer.out.split("Usage:")[1].split("\n", 1)[1].replace("\n", " ")


# Comparing.


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
        "compare", "c.toml", "--algorithms", "fedavg", "--sweep", "train.lr=0.000001,0.3", "--out", "out", "--quiet",
        "--set", "train.rounds=15", "--set", "data.validation=0.2",
    )  # fmt: skip
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
    ],
)  # fmt: skip
def test_bad_comparisons_are_refused(arguments: list[str], fragments: list[str], here: Path, undrift: Undrift) -> None:
    answer = undrift("compare", "c.toml", "--out", "out", "--quiet", *arguments)
    assert_refused(answer, fragments, here / "out")
