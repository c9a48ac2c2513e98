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
from undrift.report.curves import drift, progress
from undrift.report.holdings import Holdings
from undrift.report.looks import COLOURS, DASHES, MARKERS, numbered
from undrift.report.partition import picture
from undrift.report.pictures import draw
from undrift.report.runs import Group, RunRecord, find
from undrift.report.series import sent, spread, values
from undrift.report.style import line, styled


def settings(algorithm: str, seed: int, **train: Any) -> dict[str, Any]:
    return {
        "seed": seed,
        "data": {"name": "digits"},
        "partition": {"scheme": "dirichlet", "alpha": 0.3, "clients": 4},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": algorithm},
        "train": {"rounds": 3, "batch_size": 50, "lr": 0.1, **train},
        "engine": {"workers": 0},
        "measure": {"drift": True},
    }


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
    looks = [line(numbered(n), 50) for n in range(len(DASHES) * len(MARKERS))]
    assert len({(own["marker"], str(own["linestyle"])) for own in looks}) == len(looks)
    assert len({own["marker"] for own in looks[: len(COLOURS)]}) == len(COLOURS)


def test_pictures_of_many_clients_stay_readable() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (100, 10)) + np.eye(100, 10, dtype=np.int64)
    held = Holdings("x", [str(n) for n in range(100)], counts.sum(axis=1), counts)
    with styled():
        assert "the first 60 of 100 clients" in picture(held).axes[0].get_title(loc="left")


def test_without_classes_the_clients_sizes_are_drawn_under_their_names() -> None:
    held = Holdings("x", ["north", "$south$"], np.array([30, 70]), None)
    with styled():
        axes = picture(held).axes[0]
    assert axes.dataLim.bounds[1::2] == (0, 70)  # from 0 to the largest client
    assert len(axes.patches) == 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["north", "$south$"]


def test_no_panel_is_empty_where_accuracy_is_not_counted() -> None:
    lines = [{"round": r, "test_accuracy": None, "test_mae": 3 - r, "test_loss": 9, "bytes_down": 300} for r in (0, 1)]
    for one in lines:
        one["bytes_up"] = 200
    group = Group("g", [RunRecord(Path(), {}, lines, None, [], {"monitor": "-mae"})])
    with styled():
        axes = progress([group]).axes
    assert [panel.get_ylabel() for panel in axes] == ["test MAE", "", "test loss", ""]
    assert [panel.get_xlabel() for panel in axes[:2]] == ["round", "sent, both ways (bytes)"]
    assert all(len(panel.lines) == 1 for panel in axes)
    np.testing.assert_allclose(np.asarray(axes[1].lines[0].get_xdata(), float), [0, 500])


def test_the_last_panel_of_every_column_names_the_rounds() -> None:
    lines = [{"round": r, "drift": {"layers": {"a": 0.5}}} for r in (1, 2)]
    with styled():
        figure = drift([Group(f"g{n}", [RunRecord(Path(), {}, lines)]) for n in range(4)])
    assert figure is not None
    shown = [panel.xaxis.get_tick_params()["labelbottom"] for panel in figure.axes[:4]]
    assert shown == [False, True, True, True]


def test_what_is_scaled_says_so_in_the_picture(compared: Path, tmp_path: Path) -> None:
    draw([compared], tmp_path, note="scaled, not the paper's size")
    for name in ("progress", "drift", "partition"):
        assert "scaled, not the paper's size" in (tmp_path / f"{name}.svg").read_text()


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
