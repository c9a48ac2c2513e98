"""A diagnosis as users make it: from a configuration to files; interrupted, with other workers, in odd federations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from click.testing import Result
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.diagnose import whole
from undrift.diagnose.race import race
from undrift.experiment.config import parse, read
from undrift.experiment.from_config import data_of, run_config

Settings = dict[str, Any]
Diagnose = Callable[..., Result]


def digits(**changes: Any) -> Settings:
    return {
        "data": {"name": "digits"},
        "partition": {"scheme": "classes", "clients": 10, "classes": 2},
        "server_data": {"source": "balanced", "size": 40},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"rounds": 8, "cohort": 4, "batch_size": 20, "lr": 0.05},
        "engine": {"workers": 0},
    } | changes


@pytest.fixture
def diagnose(tmp_path: Path) -> Diagnose:
    def run(settings: Settings, out: str, *words: str) -> Result:
        (tmp_path / "config.toml").write_text(tomli_w.dumps(settings))
        command = ["diagnose", str(tmp_path / "config.toml"), "--out", str(tmp_path / out), "-q", *words]
        return CliRunner().invoke(app, command)

    return run


def made(settings: Settings, out: Path, budget: int | None = None, *, resume: bool = False, **options: Any) -> str:
    """A diagnosis without the command around it (and without pictures); the page."""
    config = parse(settings)
    ready = whole.prepare(config, out, whole.Asked(budget=budget, **options), resume=resume)
    return whole.write(config, whole.diagnose(ready, out), out)


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "diagnosis.json").read_text())
    return found


def test_the_race_is_the_default_and_all_of_it_is_told(diagnose: Diagnose, tmp_path: Path) -> None:
    out = diagnose(digits(), "out", "--budget", "40")
    assert out.exit_code == 0, out.output
    found = told(tmp_path / "out")
    best = found["race"][0]
    recommended = read(tmp_path / "out" / "recommended.toml")
    assert (recommended.algorithm["name"], recommended.train.lr) == (best["algorithm"], best["lr"])
    assert recommended.data.validation == 0.0
    assert (recommended.train.schedule, recommended.train.decay) == ("multistep", 0.25)
    assert list(recommended.train.milestones) == [6] == [found["rate_falls_after"]]  # three quarters of 8
    assert {one["lr"] for one in found["race"] if one["label"] == best["label"]} == {0.05, 0.1}
    assert found["race_rounds"] <= 40
    assert found["expected"]["low"] <= found["expected"]["value"] <= found["expected"]["high"]
    assert {one["predicted_place"] for one in found["race"]} > {1}
    assert all(one["curve"][-1][0] == one["rounds"] for one in found["race"])
    assert found["instead"]
    assert found["left_out"].keys() == {"fedprox"}
    for said in ("after round 6", "Expected of", "Runner-up", "Race of", "predicted place", "Left out: fedprox"):
        assert said in out.stdout
    for name in ("race.png", "race.svg", "report.html", "diagnosis.txt"):
        assert (tmp_path / "out" / name).exists()
    assert "diagnosis-race" in (tmp_path / "out" / "report.html").read_text()
    assert run_config(recommended, None).summary["final_accuracy"] > 0.5


def test_without_drift_there_is_still_a_race(tmp_path: Path) -> None:
    alike = digits(partition={"scheme": "iid", "clients": 5}, train=digits()["train"] | {"rounds": 12})
    del alike["server_data"]
    made(alike, tmp_path / "out", 60)
    found = told(tmp_path / "out")
    assert found["findings"]["excess"] < 0.5
    assert found["recommended"][0]["name"] != "fedavg"  # short runs gain from momentum
    assert found["verdict"].startswith("The clients' data are alike: no drift to correct, but ")
    labels = [(one["name"], one["variant"]) for one in found["recommended"]]
    assert len(set(labels)) == len(labels)


def test_the_answer_depends_neither_on_workers_nor_on_the_day(tmp_path: Path) -> None:
    for name, workers in (("a", 0), ("b", 2), ("c", 0)):
        made(digits(engine={"workers": workers}), tmp_path / name, 30)
    first, *others = (told(tmp_path / name) for name in "abc")
    assert others == [first, first]


def test_an_interrupted_diagnosis_goes_on_and_gives_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(track: Any, field: Any, plan: Any, *rest: Any) -> Any:
        race(track, field, plan[:1], *rest)
        raise KeyboardInterrupt

    made(digits(), tmp_path / "whole", 30)
    monkeypatch.setattr(whole, "race", killed)
    with pytest.raises(KeyboardInterrupt):
        made(digits(), tmp_path / "cut", 30)
    monkeypatch.undo()
    assert not (tmp_path / "cut" / "diagnosis.json").exists()
    begun = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut" / "race").glob("*/config.toml")}
    assert begun
    made(digits(), tmp_path / "cut", 30, resume=True)
    assert told(tmp_path / "cut") == told(tmp_path / "whole")
    assert all(path.stat().st_mtime_ns == when for path, when in begun.items())


def test_another_diagnosis_is_not_gone_on_with(diagnose: Diagnose, tmp_path: Path) -> None:
    assert diagnose(digits(), "out", "--probe").exit_code == 0
    other = digits(train=digits()["train"] | {"lr": 0.1})
    for settings, words, said in (
        (digits(), ("--probe",), "is not empty"),
        (other, ("--probe", "--resume"), "configuration.train.lr is 0.05 there and 0.1 here"),
        (digits(), ("--resume",), "options.race is False there and True here"),
    ):
        answer = diagnose(settings, "out", *words)
        assert isinstance(answer.exception, ud.ConfigError)
        assert said in str(answer.exception)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thing").touch()
    assert "holds no diagnosis" in str(diagnose(digits(), "else", "--resume").exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--probe", "--race"], "--probe makes no race"), (["--probe", "--rates", "1,2"], "--probe makes no race")],
)
def test_options_that_contradict_each_other(words: list[str], said: str, diagnose: Diagnose) -> None:
    assert said in str(diagnose(digits(), "out", *words).exception)


def test_rates_that_are_asked_for_are_tried(tmp_path: Path) -> None:
    made(digits(), tmp_path / "out", 30, rates=(0.5, 1.0, 4.0))
    assert {one["lr"] for one in told(tmp_path / "out")["race"]} == {0.025, 0.05, 0.2}


def npz(folder: Path, clients: list[int], *, classes: int = 3, seed: int = 0, regression: bool = False) -> Settings:
    """Gaussian data with so many samples at each client."""
    rng = np.random.default_rng(seed)
    own = np.repeat(np.arange(len(clients)), clients)
    x = rng.standard_normal((len(own), 4)).astype(np.float32)
    scores = x @ rng.standard_normal((4, classes))
    y = scores[:, :1].astype(np.float32) if regression else scores.argmax(axis=1)
    test = slice(0, 200)
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[test], y_test=y[test], client=own)
    return {
        "data": {"name": "npz", "path": str(folder / "data.npz")},
        "partition": {"scheme": "given"},
        "model": {"name": "linear"},
        "train": {"rounds": 6, "cohort": min(4, len(clients)), "batch_size": 10, "lr": 0.1},
        "engine": {"workers": 0},
    }


def test_two_clients(tmp_path: Path) -> None:
    made(npz(tmp_path, [60, 60]), tmp_path / "out", 20)
    assert told(tmp_path / "out")["race"]


def test_a_client_with_one_sample(tmp_path: Path) -> None:
    made(npz(tmp_path, [1, 40, 80, 30, 1]), tmp_path / "out", 20)
    assert told(tmp_path / "out")["race"][0]["validation"] > 0.4


def test_clients_too_small_to_hold_anything_out_get_the_probe_s_answer(tmp_path: Path) -> None:
    page = made(npz(tmp_path, [2] * 40), tmp_path / "out")
    assert "Not raced: no client has enough samples" in page
    assert told(tmp_path / "out")["recommended"]


def test_ten_thousand_clients(tmp_path: Path) -> None:
    made(npz(tmp_path, [6] * 10_000), tmp_path / "out", 20)
    found = told(tmp_path / "out")
    assert "stale or hardly used" in found["left_out"]["scaffold"]
    assert not any({"scaffold", "feddyn"} & set(one["algorithm"].split("+")) for one in found["race"])


def test_regression_looks_at_the_loss(tmp_path: Path) -> None:
    settings = npz(tmp_path, [40] * 6, classes=1, regression=True) | {"task": {"name": "regression", "monitor": "loss"}}
    made(settings, tmp_path / "out", 24)
    found = told(tmp_path / "out")
    assert (found["metric"], found["less_is_better"]) == ("loss", True)
    last = max(one["rounds"] for one in found["race"])
    final = [one["validation"] for one in found["race"] if one["rounds"] == last and not one["tied_with_the_best"]]
    assert final == sorted(final)
    assert min(one["validation"] for one in found["race"]) == min(
        one["validation"] for one in found["race"] if one["tied_with_the_best"]
    )


def test_one_class_a_client_and_misleading_server_data(tmp_path: Path) -> None:
    config = parse(digits())
    data = data_of(config)
    rng = np.random.default_rng(0)
    drawn = rng.choice(len(data.train), 60, replace=False)
    np.savez(tmp_path / "server.npz", x=data.x_train.numpy()[drawn], y=rng.permutation(data.y_train.numpy()[drawn]))
    settings = digits(
        partition={"scheme": "classes", "clients": 10, "classes": 1},
        server_data={"source": "file", "path": str(tmp_path / "server.npz")},
    )
    made(settings, tmp_path / "out", 40)
    found = told(tmp_path / "out")
    assert "fsl" not in found["race"][0]["algorithm"]
    assert found["race"][0]["algorithm"] != "fedavg"


def test_a_run_too_short_to_race(tmp_path: Path) -> None:
    page = made(digits(train=digits()["train"] | {"rounds": 1}), tmp_path / "out", 3)
    assert "too few for a race" in page
