"""The precision that a run computes in: asked for, or the faster one; never silently slow, always written down."""

from __future__ import annotations

import json
import platform
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
import undrift.core.processor as processor
import undrift.rounds.precision as precision
from undrift.errors import ConfigError, RunWarning
from undrift.experiment.config import parse
from undrift.experiment.from_config import run_config
from undrift.experiment.run_many import Planned, check, run_many


def few(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(24, 5, generator=draw), torch.randint(0, 3, (24,), generator=draw)


def simulated(**settings: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    settings = {"rounds": 2, "workers": 0, "batch_size": 8} | settings
    return ud.simulate(model, [few(1), few(2)], test_data=few(3), **settings)


def bits(result: Any) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in result.model.state_dict().values())


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says what a timing is to find, and counts how often one is made."""
    calls = []

    def set_ratio(ratio: float) -> list[float]:
        def found(*_: Any) -> float:
            calls.append(ratio)
            return ratio

        monkeypatch.setattr(precision, "bf16_over_fp32", found)
        monkeypatch.setattr(precision, "announces_bf16", lambda: True)
        return calls

    return set_ratio


@pytest.mark.parametrize(("ratio", "used"), [(0.5, "bf16"), (0.94, "bf16"), (0.97, "fp32"), (10.0, "fp32")])
def test_auto_takes_the_faster_one(timed: Any, ratio: float, used: str) -> None:
    calls = timed(ratio)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunWarning)
        found = simulated(precision="auto")
    assert calls == [ratio]
    assert found.summary["precision"] == used
    assert bits(found) == bits(simulated(precision=used))


def test_the_two_differ_so_that_the_choice_can_be_seen(timed: Any) -> None:
    timed(1.0)
    assert bits(simulated(precision="fp32")) != bits(simulated(precision="bf16"))


def test_auto_without_instructions_for_bf16_times_nothing(timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = timed(0.1)
    monkeypatch.setattr(precision, "announces_bf16", lambda: False)
    assert simulated(precision="auto").summary["precision"] == "fp32"
    assert calls == []


def test_an_explicit_bf16_that_is_slow_says_so_in_one_line(timed: Any) -> None:
    timed(10.4)
    with pytest.warns(RunWarning) as caught:
        found = simulated(precision="bf16")
    (message,) = [str(warning.message) for warning in caught if issubclass(warning.category, RunWarning)]
    assert "10.4 times as long as in fp32" in message
    assert "auto" in message
    assert "\n" not in message
    assert found.summary["precision"] == "bf16"


def test_the_default_is_fp32_and_times_nothing(timed: Any) -> None:
    calls = timed(0.1)
    assert simulated().summary["precision"] == "fp32"
    assert calls == []


def test_a_timing_draws_no_random_numbers_and_leaves_the_model_alone() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    ratio = precision.bf16_over_fp32(module, few(), nn.functional.cross_entropy, "cpu")
    assert 0 < ratio < 1000
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(("slow", "expected"), [("bf16", True), ("fp32", False)])
def test_a_timing_finds_the_slower_one(monkeypatch: pytest.MonkeyPatch, slow: str, expected: bool) -> None:
    step = precision._step

    def with_more_work(module: Any, batch: Any, loss: Any, chosen: Any, device: str) -> None:
        for _ in range(20 if chosen == slow else 1):
            step(module, batch, loss, "fp32", device)

    monkeypatch.setattr(precision, "_step", with_more_work)
    assert (precision.bf16_over_fp32(nn.Linear(5, 3), few(), nn.functional.cross_entropy, "cpu") > 1) is expected


@pytest.mark.parametrize(
    ("flags", "tiles", "expected"),
    [
        ("flags : sse avx2", True, False),
        ("flags : sse avx512_bf16", False, True),
        ("flags : amx_bf16 amx_tile", True, True),
        ("flags : amx_bf16 amx_tile", False, False),
        ("Features : fp asimd bf16", False, True),
    ],
)
def test_what_a_processor_announces(monkeypatch: pytest.MonkeyPatch, flags: str, tiles: bool, expected: bool) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor : 0\n{flags}\n")
    monkeypatch.setattr(processor, "describes_tiles", lambda: tiles)
    assert processor.announces_bf16() is expected


CONFIG: dict[str, Any] = {
    "data": {"name": "synthetic"},
    "partition": {"clients": 3},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedavg"},
    "train": {"rounds": 2},
    "engine": {"precision": "auto", "workers": 0},
}


def test_a_resumed_run_keeps_what_was_found_first(timed: Any, tmp_path: Path) -> None:
    timed(0.5)
    config = parse(CONFIG)
    run_config(config, tmp_path / "whole")
    run_config(config.with_(("train.rounds", 1)), tmp_path / "parts")
    calls = timed(5.0)
    with pytest.warns(RunWarning, match="5.0 times"):
        run_config(config, tmp_path / "parts", resume=True)
    assert calls.count(0.5) == 2, "two runs began"
    for name in ("whole", "parts"):
        stored = tomllib.loads((tmp_path / name / "config.toml").read_text())
        assert stored["engine"]["precision"] == "bf16"
        assert json.loads((tmp_path / name / "summary.json").read_text())["precision"] == "bf16"
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert models[0] == models[1]


def test_a_resumed_simulation_keeps_what_was_found_first(timed: Any, tmp_path: Path) -> None:
    timed(0.5)
    simulated(precision="auto", rounds=1, out=tmp_path / "run")
    timed(5.0)
    with pytest.warns(RunWarning, match="5.0 times"):
        resumed = simulated(precision="auto", out=tmp_path / "run", resume=True)
    timed(0.5)
    assert resumed.summary["precision"] == "bf16"
    assert bits(resumed) == bits(simulated(precision="bf16"))


def test_runs_that_are_compared_compute_alike(timed: Any, tmp_path: Path) -> None:
    calls = timed(0.5)
    config = parse(CONFIG)
    rules = ("fedavg", "scaffold")
    runs = [Planned(name, config.with_(("algorithm", {"name": name})), tmp_path / name) for name in rules]
    assert run_many(runs[:1], jobs=1) == {}
    timed(5.0)
    assert run_many(runs, jobs=2) == {}
    assert calls == [0.5], "in this process: found once, for the first run"
    used = [json.loads((run.out / "summary.json").read_text())["precision"] for run in runs]
    assert used == ["bf16", "bf16"]


def test_many_runs_say_once_that_bf16_is_slow(timed: Any, tmp_path: Path) -> None:
    timed(5.0)
    config = parse(CONFIG).with_(("engine.precision", "bf16"))
    rules = ("fedavg", "scaffold", "fedprox")
    runs = [Planned(name, config.with_(("algorithm", {"name": name})), tmp_path / name) for name in rules]
    with pytest.warns(RunWarning) as caught:
        check(runs, {})
    assert len([warning for warning in caught if "5.0 times" in str(warning.message)]) == 1


def test_another_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision"):
        simulated(precision="fast")
