"""Models, rules, data, metrics and losses of one's own by name, from the command line and from a configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from undrift.core.files import read_lines
from undrift.errors import ConfigError, DataError
from undrift.experiment.config import parse, read
from undrift.experiment.from_config import data_of, federation_of, run_config

MODULE = '''
from dataclasses import dataclass

import torch
from torch import nn

import undrift as ud


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.body(x)


@dataclass(frozen=True)
class Halved(ud.Rule):
    """The server makes a part of its step."""

    part: float = 0.5

    def server(self, step, at):
        return self.part * step, {}


def points(n=60, clients=3):
    draw = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(clients + 1):
        x = torch.randn(n, 4, generator=draw)
        parts.append((x, (x.sum(1) > 0).long()))
    return {"clients": parts[:-1], "test": parts[-1]}


def recall(outputs, targets):
    of_class = targets == 1
    return (outputs.argmax(1)[of_class] == 1).float().mean()


def smooth(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


number = 3
'''
CONFIG = """
seed = 1
[data]
name = "mine:points"
[data.arguments]
n = 50
[partition]
scheme = "given"
[model]
name = "mine:Net"
[model.arguments]
width = 6
[task]
loss = "mine:smooth"
metrics = ["mine:recall"]
monitor = "recall"
[algorithm]
name = "scaffold+mine:Halved"
[algorithm.Halved]
part = 0.8
[train]
rounds = 4
lr = 0.2
batch_size = 10
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a module and a configuration that names what is in it."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def undrift(*words: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "undrift", *words], cwd=where, capture_output=True, text=True, timeout=300
    )


def test_run_compare_and_the_written_configuration(place: Path) -> None:
    made = undrift("run", "mine.toml", "--out", "first", "--quiet", where=place)
    assert made.returncode == 0, made.stderr
    assert "final recall" in made.stdout
    summary = json.loads((place / "first" / "summary.json").read_text())
    assert 0 < summary["final_recall"] <= 1
    assert summary["monitor"] == "recall"
    again = undrift("run", "first/config.toml", "--out", "again", "--quiet", where=place.parent / place.name)
    assert again.returncode == 0, again.stderr
    one, other = ((place / run / "model.safetensors").read_bytes() for run in ("first", "again"))
    assert one == other
    swept = undrift(
        "compare",
        "mine.toml",
        "--algorithms",
        "fedavg,mine:Halved",
        "--sweep",
        "train.lr=0.0001,0.3",
        "--out",
        "c",
        "--quiet",
        where=place,
    )
    assert swept.returncode == 0, swept.stderr
    rows = json.loads((place / "c" / "comparison.json").read_text())
    assert [row["metric"] for row in rows] == ["recall", "recall"]
    assert {row["setting"] for row in rows} <= {"train.lr=0.3", "train.lr=0.0001"}
    assert "recall" in swept.stdout


def test_ray_gives_the_same_bits(place: Path) -> None:
    pytest.importorskip("ray")
    for name in ("local", "ray"):
        made = undrift("run", "mine.toml", "--out", name, "--set", f"engine.name={name}", "--quiet", where=place)
        assert made.returncode == 0, made.stderr
    one, other = ((place / run / "model.safetensors").read_bytes() for run in ("local", "ray"))
    assert one == other


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.name=nowhere:Net", "model.name = 'nowhere:Net': no module 'nowhere'"),
        ("model.name=mine:Nut", "'mine' has no 'Nut'; did you mean 'Net'?"),
        ("model.name=mine:recall", "mine:recall(width=6) failed: TypeError"),
        ("model.name=mine:number", "failed: TypeError"),
        ("algorithm.Halved.prt=1", "unknown key 'algorithm.Halved.prt': did you mean 'part'?"),
        ("data.name=mine:recall", "mine:recall(n=50) failed"),
        ("data.arguments.n=0", "differ in length"),
        ("task.metrics=['mine:number']", "no function and no torchmetrics metric"),
        ("task.monitor=f1", "monitor = 'f1': there are"),
        ("task.name=mine:Net", "is no undrift.tasks.Task"),
        ("partition.scheme=dirichlet", "partition.clients"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(place: Path, setting: str, message: str, monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.syspath_prepend(str(place))
    with pytest.raises((ConfigError, DataError)) as caught:
        run_config(read(place / "mine.toml", [setting]), None)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rule_of_ones_own_must_be_a_rule(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.syspath_prepend(str(place))
    with pytest.raises(ConfigError, match=r"gives Net, no undrift\.Rule"):
        parse({"algorithm": {"name": "fedavg+mine:Net"}}).rule()


def test_an_entry_point_offers_a_short_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    package = place / "mine-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[undrift]\nmy-net = mine:Net\n")
    monkeypatch.syspath_prepend(str(place))
    config = read(place / "mine.toml", ["model.name=my-net"])
    assert run_config(config, None).summary["final_recall"] > 0


def test_metrics_with_arguments() -> None:
    pytest.importorskip("torchmetrics")
    name = "torchmetrics.classification:MulticlassF1Score"
    config = parse(
        {
            "partition": {"clients": 3},
            "task": {"metrics": {"f1": {"name": name, "num_classes": 10, "average": "macro"}}, "monitor": "f1"},
            "train": {"rounds": 1, "lr": 0.1},
        }
    )
    assert 0 < run_config(config, None).summary["final_f1"] < 1


def write_csv(path: Path, target: str = "yes") -> None:
    rows = [f"{'a' if n % 3 else 'b'},{n % 7},{n * 0.5},{'red' if n % 2 else 'blue'}" for n in range(40)]
    path.write_text("owner,size,weight,colour\n" + "\n".join(rows) + "\n")


def test_a_table(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv")
    given: dict[str, Any] = {
        "data": {"name": "csv", "path": str(tmp_path / "t.csv"), "label": "colour", "client": "owner"},
        "partition": {"scheme": "given"},
        "model": {"name": "linear"},
        "train": {"rounds": 2, "lr": 0.1},
    }
    data = data_of(parse(given))
    assert data.classes == 2
    assert data.x_train.shape[1:] == (2,)
    assert torch.allclose(data.x_train.mean(0), torch.zeros(2), atol=1e-6)
    assert len(federation_of(parse(given))) == 2
    assert len(data.y_train) + len(data.y_test) == 40
    numbers = data_of(parse(given | {"task": {"name": "regression"}, "data": given["data"] | {"label": "weight"}}))
    assert numbers.y_train.is_floating_point()
    assert numbers.x_train.shape[1] == 3  # size, and two words
    assert run_config(parse(given), None).summary["final_accuracy"] is not None


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("a,b\n1,2\n3\n", "b", "line 3: 1 values, the header names 2 columns"),
        ("a,b\n1,\n", "b", "line 2: no value in column 'b'"),
        ("a,b\n1,2\n", "c", "data.label = 'c'"),
        ("a,b\n", "b", "at least one row"),
        ("a,a\n1,2\n", "a", "a name of its own"),
        ("b\n1\n2\n3\n", "b", "no column is left for inputs"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, label: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    config = parse({"data": {"name": "csv", "path": str(tmp_path / "t.csv"), "label": label}})
    with pytest.raises((ConfigError, DataError)) as caught:
        data_of(config)
    assert message in str(caught.value)


def test_folders_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part in ("cats", "dogs"):
        (tmp_path / part).mkdir()
        for number in range(10):
            shade = 20 * number + (5 if part == "cats" else 0)
            image.new("RGB", (8, 6), (shade, shade, 0)).save(tmp_path / part / f"{number}.png")
    data = data_of(parse({"data": {"name": "images", "path": str(tmp_path)}}))
    assert data.x_train.shape == (16, 3, 6, 8)
    assert data.classes == 2
    small = data_of(parse({"data": {"name": "images", "path": str(tmp_path), "size": 4, "test_share": 0.5}}))
    assert small.x_train.shape == (10, 3, 4, 4)
    image.new("RGB", (9, 9)).save(tmp_path / "cats" / "odd.png")
    with pytest.raises(DataError, match=r"9x9 pixels.*data\.size"):
        data_of(parse({"data": {"name": "images", "path": str(tmp_path)}}))
    (tmp_path / "cats" / "odd.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="not a readable image"):
        data_of(parse({"data": {"name": "images", "path": str(tmp_path)}}))


def test_numbers_words_and_tokens_in_an_npz(tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 5)).astype(np.float32)

    def load(y: Any, inputs: Any = x, **sections: Any) -> Any:
        np.savez(tmp_path / "d.npz", x_train=inputs, y_train=y, x_test=inputs, y_test=y)
        return data_of(parse({"data": {"name": "npz", "path": str(tmp_path / "d.npz")}, **sections}))

    assert load(x[:, 0]).y_train.dtype == torch.float32
    assert load(np.arange(30) % 3, task={"name": "regression"}).y_train.dtype == torch.int64
    words = load(np.array(["no", "yes"] * 15))
    assert words.classes == 2
    assert words.y_train[:2].tolist() == [0, 1]
    tokens = load(rng.integers(0, 9, (30, 4)), rng.integers(0, 9, (30, 4)))
    assert tokens.x_train.dtype == tokens.y_train.dtype == torch.int64
    with pytest.raises(ConfigError, match=r"the model does not take inputs \[30, 4\] int64"):
        run_config(parse({"data": {"name": "npz", "path": str(tmp_path / "d.npz")}, "partition": {"clients": 2}}), None)


def test_records_hold_what_clients_reach(place: Path) -> None:
    made = undrift("run", "mine.toml", "--out", "o", "--set", "partition.test=0.2", "--quiet", where=place)
    assert made.returncode == 0, made.stderr
    assert "clients_recall" in read_lines(place / "o" / "metrics.jsonl")[-1]
