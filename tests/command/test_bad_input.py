"""Wrong input: exit code 2, a line or two that name the culprit, nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from shell import CONFIG, Undrift, arrays, assert_refused

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
    "a parameter that is no number": (["algorithm.name=fedprox", "algorithm.fedprox.mu=nan"], ["fedprox.mu", "finite"]),
    "a parameter without bound": (["algorithm.name=fedadc", "algorithm.fedadc.embed=inf"], ["fedadc.embed", "finite"]),
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
}


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
    "labels that are not whole": (broken(y_train=arrays()["y_train"] + 0.5), ["targets [32] float32", "give task="]),
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


def test_a_folder_that_cannot_be_made_is_refused(here: Path, undrift: Undrift) -> None:
    (here / "a file").touch()
    answer = undrift("run", "c.toml", "--out", "a file/out", "--quiet")
    assert_refused(answer, ["a file/out", "a file is a file"], here / "a file" / "out")
