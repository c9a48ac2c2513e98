"""Pictures: what is drawn from which runs, and that runs under way can be drawn too."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.experiment.config import parse
from undrift.experiment.conformal import conformal
from undrift.experiment.from_config import run_config
from undrift.report.curves import sent, spread, values
from undrift.report.partition import bubbles
from undrift.report.runs import Group, RunRecord, find
from undrift.report.style import COLOURS, LINES, MARKERS, line, styled


def settings(algorithm: str, seed: int, **train: Any) -> dict[str, Any]:
    return {
        "seed": seed, "data": {"name": "digits"}, "partition": {"scheme": "dirichlet", "alpha": 0.3, "clients": 4},
        "model": {"name": "mlp", "hidden": [8]}, "algorithm": {"name": algorithm},
        "train": {"rounds": 3, "batch_size": 50, "lr": 0.1, **train}, "engine": {"workers": 0},
        "measure": {"drift": True},
    }  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compare")
    for algorithm in ("fedavg", "fedpvr"):
        for seed in (0, 1):
            run_config(parse(settings(algorithm, seed)), root / algorithm / f"seed{seed}")
    run_config(parse(settings("fedavg", 0, lr=0.05)), root / "slow")
    conformal(root / "fedavg" / "seed0", method="aps")
    return root


def test_runs_that_differ_in_their_seed_alone_are_grouped_and_labels_tell_groups_apart(compared: Path) -> None:
    groups = {group.label: len(group.runs) for group in find([compared])}
    assert groups == {"fedavg, lr = 0.1": 2, "fedavg, lr = 0.05": 1, "fedpvr": 2}
    assert sum(len(group.runs) for group in find([compared, compared / "slow"])) == 5


def test_the_command_draws_all_pictures_as_png_and_svg(compared: Path, tmp_path: Path) -> None:
    out = CliRunner().invoke(app, ["plot", str(compared), "--out", str(tmp_path / "pictures")])
    assert out.exit_code == 0, out.output
    made = {path.name: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    names = ("progress", "drift", "coverage", "partition")
    assert set(made) == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    for name in names:
        assert made[f"{name}.png"].startswith(b"\x89PNG")
        assert b"</svg>" in made[f"{name}.svg"]


def test_a_run_under_way_is_drawn_as_far_as_it_has_come(compared: Path, tmp_path: Path) -> None:
    run = compared / "fedavg" / "seed1"
    running = tmp_path / "running"
    running.mkdir()
    (running / "config.toml").write_bytes((run / "config.toml").read_bytes())
    text = (run / "metrics.jsonl").read_text()
    (running / "metrics.jsonl").write_text(text[: len(text) // 2])
    out = CliRunner().invoke(app, ["plot", str(running)])
    assert out.exit_code == 0, out.output
    assert (running / "plots" / "progress.png").exists()


def run_of(*records: tuple[int, float, int]) -> RunRecord:
    lines = [{"round": r, "test_accuracy": a, "bytes_down": b, "bytes_up": 0} for r, a, b in records]
    return RunRecord(Path(), {}, lines, None)


def test_bands_are_means_and_deviations_over_the_rounds_that_all_runs_have() -> None:
    group = Group("g", [run_of((0, 0.0, 0), (2, 0.4, 0), (4, 0.5, 0)), run_of((0, 0.2, 0), (2, 0.8, 0))])
    rounds, mean, deviation = spread(group, values("test_accuracy"))
    assert rounds == [0, 2]
    np.testing.assert_allclose(mean, [0.1, 0.6])
    np.testing.assert_allclose(deviation, [0.2 / 2**0.5, 0.4 / 2**0.5])


def test_bytes_of_rounds_between_evaluations_are_counted() -> None:
    assert sent(run_of((0, 0, 0), (1, 0, 2_000_000), (5, 0, 1_000_000))) == {0: 0.0, 1: 2.0, 5: 6.0}


def test_lines_differ_in_more_than_colour() -> None:
    assert len(set(COLOURS)) == 8
    drawn = [(line(n, 50)["marker"], str(line(n, 50)["linestyle"])) for n in range(len(LINES) * len(MARKERS))]
    assert len(set(drawn)) == len(drawn)
    assert len({line(n, 50)["marker"] for n in range(len(COLOURS))}) == len(COLOURS)


def test_bubbles_of_many_clients_stay_readable() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (100, 10)) + np.eye(100, 10, dtype=np.int64)
    with styled():
        assert "the first 60 of 100 clients" in bubbles(counts, "x").axes[0].get_title(loc="left")


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ud.ConfigError, match="no run with an evaluated round"):
        find([tmp_path])
    with pytest.raises(ud.ConfigError, match="no such folder"):
        find([tmp_path / "nowhere"])


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ud.InputError, match=r"install undrift\[report\]"):
        styled()
