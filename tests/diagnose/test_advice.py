"""Federations whose diagnosis is known, from the probe to the advice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.data import server_indices
from undrift.diagnose import Findings, advise, probe
from undrift.diagnose.advice import Candidate, drifting_layers
from undrift.diagnose.costs import bytes_of, configured
from undrift.diagnose.plan import dealt_at_random, forward_flops, plan_probe
from undrift.experiment.config import parse, read
from undrift.experiment.from_config import data_of, parts_of, run_config, work_of

Settings = dict[str, Any]


def digits(scheme: str, **partition: Any) -> Settings:
    return {
        "data": {"name": "digits"},
        "partition": {"scheme": scheme, "clients": 20, **partition},
        "server_data": {"source": "balanced", "size": 50},
        "model": {"name": "mlp", "hidden": [64]},
        "train": {"rounds": 40, "cohort": 10, "local_epochs": 2, "batch_size": 10, "lr": 0.05},
        "engine": {"workers": 0},
    }


def without_server(settings: Settings) -> Settings:
    return {key: value for key, value in settings.items() if key != "server_data"}


def found(settings: Settings) -> Findings:
    work = work_of(parse(settings))
    return probe(work)


def names(findings: Findings) -> list[str]:
    return [candidate.name for candidate in advise(findings).ranked]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_iid_clients_need_nothing_but_fedavg(seed: int) -> None:
    findings = found(digits("iid") | {"seed": seed})
    advice = advise(findings)
    assert advice.verdict.startswith("FedAvg will do")
    assert advice.ranked[0].name == "fedavg"
    assert findings.excess < 0.2


@pytest.mark.parametrize(("scheme", "partition"), [("classes", {"classes": 1}), ("dirichlet", {"alpha": 0.1})])
def test_hard_label_skew_and_good_server_data_put_server_learning_among_the_first_two(
    scheme: str, partition: dict[str, Any]
) -> None:
    findings = found(digits(scheme, **partition))
    assert any("fsl" in name.split("+") for name in names(findings)[:2])
    assert advise(findings).verdict.startswith("Strongly non-IID")
    assert not any("server" in what for what in advise(findings).against)


def shuffled_server_file(settings: Settings, folder: Path) -> Settings:
    """The same server samples with their labels shuffled, as a file."""
    config = parse(settings)
    data = data_of(config)
    drawn = server_indices("balanced", data.y_train.numpy(), parts_of(config, data), 0, size=50)
    labels = np.random.default_rng(0).permutation(data.y_train.numpy()[drawn])
    np.savez(folder / "server.npz", x=data.x_train.numpy()[drawn], y=labels)
    return settings | {"server_data": {"source": "file", "path": str(folder / "server.npz")}}


@pytest.mark.parametrize(("scheme", "partition"), [("classes", {"classes": 1}), ("iid", {})])
def test_server_data_with_shuffled_labels_are_advised_against(
    scheme: str, partition: dict[str, Any], tmp_path: Path
) -> None:
    findings = found(shuffled_server_file(digits(scheme, **partition), tmp_path))
    advice = advise(findings)
    assert "would mislead" in advice.against["server learning (fsl)"]
    assert not any("fsl" in candidate.name for candidate in advice.ranked)


def same_features_other_labels(folder: Path) -> Settings:
    """Inputs alike at all clients, labels not: each client has its own bias over classes, drawn regardless of ``x``.

    The hidden layers get the same kind of gradient everywhere; only the classifier has something to quarrel about.
    """
    rng = np.random.default_rng(0)
    clients, samples, classes = 10, 80, 10
    x = rng.standard_normal((clients * samples, 20)).astype(np.float32)
    own = np.repeat(np.arange(clients), samples)
    y = np.where(rng.random(len(own)) < 0.9, own % classes, rng.integers(0, classes, len(own)))
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100], client=own)
    return {
        "data": {"name": "npz", "path": str(folder / "data.npz")},
        "partition": {"scheme": "given"},
        "model": {"name": "mlp", "hidden": [64, 64]},
        "train": {"rounds": 40, "batch_size": 10, "lr": 0.05},
        "engine": {"workers": 0},
    }


def test_drift_that_sits_in_the_classifier_calls_for_fedpvr(tmp_path: Path) -> None:
    findings = found(same_features_other_labels(tmp_path))
    advice = advise(findings)
    assert advice.drifting == ["dense3"]
    assert advice.ranked[0].name == "fedpvr"
    assert advice.ranked[0].parameters == {"fedpvr": {"layers": 1}}


@pytest.mark.parametrize("seed", [0, 1])
def test_label_skew_shows_in_the_last_layer_of_a_deep_network(seed: int) -> None:
    settings = without_server(digits("classes", classes=2)) | {"seed": seed}
    advice = advise(found(settings | {"model": {"name": "mlp", "hidden": [64, 64, 64]}}))
    assert (advice.drifting, advice.ranked[0].name) == (["dense4"], "fedpvr")


def test_clients_that_hardly_come_back_are_not_given_a_memory() -> None:
    settings = without_server(digits("classes", classes=1))
    settings["train"] = settings["train"] | {"cohort": 1, "rounds": 30}
    advice = advise(found(settings))
    assert any("memory" in what for what in advice.against)
    assert advice.ranked[0].name == "fedadc"


def test_layers_that_stand_out() -> None:
    assert drifting_layers({"a": 1.0, "b": 1.1, "c": 1.2}) == []
    assert drifting_layers({"a": 2.0, "b": 2.0, "c": 3.1, "d": 4.0}) == ["c", "d"]
    assert drifting_layers({"a": 2.0, "b": 2.0, "c": 3.1, "d": 90.0}) == ["d"]
    assert drifting_layers({"a": 9.0, "b": 2.0, "c": float("nan"), "d": 2.0}) == ["a"]
    assert drifting_layers({"only": 7.0}) == []


def test_the_probe_is_repeatable_and_bounded() -> None:
    settings = digits("dirichlet", alpha=0.3)
    assert found(settings) == found(settings)
    plan = plan_probe(work_of(parse(settings)))
    assert plan.passes < 200_000
    assert str(plan.rounds) in plan.describe()


@pytest.mark.parametrize(
    "model", [{"name": "mlp", "hidden": [16]}, {"name": "resnet8", "width": 0.25, "norm": "group"}]
)
def test_arithmetic_is_counted_as_by_torch(model: Settings, tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3, 16, 16)).astype(np.float32), np.arange(40) % 4
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = {"name": "npz", "path": str(tmp_path / "data.npz")}
    work = work_of(parse({"data": data, "partition": {"clients": 4}, "model": model}))
    work.module.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        work.module(torch.from_numpy(x[:1]))
    assert forward_flops(work) == counter.get_total_flops() > 0


def test_samples_dealt_at_random_stay_the_same_samples() -> None:
    groups = [(np.arange(0, 7), 1.0), (np.arange(7, 10), 2.0)]
    dealt = dealt_at_random(groups, 0)
    assert [(len(rows), weight) for rows, weight in dealt] == [(7, 1.0), (3, 2.0)]
    assert sorted(np.concatenate([rows for rows, _ in dealt]).tolist()) == list(range(10))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedpvr", "fedadc", "fsl", "fedpvr+fsl"])
def test_bytes_are_those_of_a_real_round(algorithm: str) -> None:
    config = parse(digits("iid")).with_(("train.rounds", 1))
    one = configured(config, Candidate(algorithm))
    record = run_config(one, None).history[-1]
    cost = bytes_of(one, data_of(one))
    assert (cost.down, cost.up) == (record["bytes_down"], record["bytes_up"])


def test_a_candidate_that_owns_the_server_step_resets_the_server_rate() -> None:
    config = parse(digits("iid")).with_(("train.server_lr", 2.0), ("algorithm", {"name": "fsl", "fsl": {"gamma": 0.5}}))
    assert configured(config, Candidate("fedadc", {"fedadc": {"beta": 0.7}})).train.server_lr == 1.0
    kept = configured(config, Candidate("fsl"))
    assert (kept.train.server_lr, kept.algorithm["fsl"]["gamma"]) == (2.0, 0.5)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Settings], Path]:
    def write(settings: Settings) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(tomli_w.dumps(settings))
        return path

    return write


def test_the_command_writes_a_page_and_a_configuration_that_runs(
    written: Callable[[Settings], Path], tmp_path: Path
) -> None:
    settings = digits("classes", classes=2)
    settings["train"] = settings["train"] | {"rounds": 4}
    out = CliRunner().invoke(app, ["diagnose", str(written(settings)), "--probe", "--out", str(tmp_path / "out")])
    assert out.exit_code == 0, out.output
    assert "The probe makes 3 rounds of FedAvg" in out.stderr
    assert "Recommended:" in out.stdout
    *_, ready, report = out.stdout.strip().splitlines()
    assert ready.endswith("recommended.toml")
    assert report == f"report: {tmp_path / 'out' / 'report.html'}"
    assert (tmp_path / "out" / "report.html").exists()
    diagnosis = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    best = read(tmp_path / "out" / "recommended.toml")
    assert best.algorithm["name"] == diagnosis["recommended"][0]["name"]
    assert run_config(best, tmp_path / "run").summary["final_accuracy"] > 0.1


def test_the_command_as_json_prints_nothing_else(written: Callable[[Settings], Path], tmp_path: Path) -> None:
    settings = without_server(digits("iid"))
    quick = ["--probe", "--json", "-q"]
    out = CliRunner().invoke(app, ["diagnose", str(written(settings)), "--out", str(tmp_path / "out"), *quick])
    told = json.loads(out.stdout)
    assert told["recommended"][0]["name"] == "fedadc"  # no drift to correct, but momentum saves rounds
    assert told["recommended"][0]["parameters"]["fedadc"]["beta"] == 0.9
    again = CliRunner().invoke(app, ["diagnose", str(written(settings)), "--out", str(tmp_path / "out")])
    assert isinstance(again.exception, ud.ConfigError)
