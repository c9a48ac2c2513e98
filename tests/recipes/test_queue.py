"""A queue of recipes: order, wrong input, the time that is left, going on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from undrift.cli import app
from undrift.errors import ConfigError, RunError
from undrift.recipes.queue import Item, TimeLeft, read_queue, task_of

TWO = """
[[item]]
recipe = "fedadc-figure-1"
only = ["FedAvg", "SlowMo"]
scale = 0.001
rounds = 1
seeds = 1
tune = false
set = { "model.name" = "cnn-cifar", "train.local_steps" = 1, "train.batch_size" = 2 }

[[item]]
recipe = "fsl-table-1"
priority = 5
only = ["FedAvg"]
scale = 0.001
rounds = 1
seeds = 1
fix = { "*" = { "train.lr" = 0.03 } }
"""
RESULTS = ("fedadc-figure-1.stand-in.json", "fsl-table-1.stand-in.json")


def written(folder: Path, text: str) -> Path:
    path = folder / "queue.toml"
    path.write_text(text)
    return path


def words(folder: Path) -> list[str]:
    places = ["--out", str(folder / "runs"), "--results", str(folder / "results")]
    return ["reproduce", "--queue", str(folder / "queue.toml"), "--stand-in", "--jobs", "1", *places]


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def setting(folder: Path, name: str) -> list[Any]:
    return [arm["setting"] for arm in json.loads((folder / "results" / name).read_text())["arms"] if arm["runs"]]


def test_higher_priorities_first_then_the_order_of_the_file(tmp_path: Path) -> None:
    text = "".join(
        f'[[item]]\nrecipe = "fsl-table-1"\nseeds = {n}\npriority = {p}\n' for n, p in ((1, 0), (2, 3), (3, 3))
    )
    assert [item.seeds for item in read_queue(written(tmp_path, text))] == [2, 3, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one"),
        ("seeds = 1", r"nothing but \[\[item\]\] tables"),
        ("[[item", "not a TOML file"),
        ("[[item]]\nseeds = 1", r"item 1: recipe = "),
        ('[[item]]\nrecipe = "fsl-table-1"\n[[item]]\nrecipe = "fsl-table-l"', r"item 2: .*fsl-table-1"),
        ('[[item]]\nrecipe = "fsl-table-1"\nseed = 3', r"item 1: unknown key 'seed': .*seeds"),
        ('[[item]]\nrecipe = "fsl-table-1"\nseeds = 0', "seeds = 0: "),
        ('[[item]]\nrecipe = "fsl-table-1"\nsize = "huge"', "item 1: .*huge"),
    ],
)
def test_a_wrong_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_queue(written(tmp_path, text))


def test_options_of_an_item_stand_in_the_file(tmp_path: Path) -> None:
    written(tmp_path, TWO)
    with pytest.raises(ConfigError, match="--seeds: with --queue"):
        call(*words(tmp_path), "--seeds", "2")
    with pytest.raises(ConfigError, match="one of them"):
        call(*words(tmp_path), "--all")
    with pytest.raises(ConfigError, match="cannot be read"):
        call("reproduce", "--queue", str(tmp_path / "none.toml"))


def test_all_items_are_carried_out_as_the_file_says(tmp_path: Path) -> None:
    written(tmp_path, TWO)
    plan = call(*words(tmp_path), "--dry-run")
    assert plan.index("fsl-table-1:") < plan.index("fedadc-figure-1:")
    assert "2 recipes, about" in plan
    assert "left" not in plan
    call(*words(tmp_path), "-q")
    assert setting(tmp_path, "fsl-table-1.stand-in.json") == [{"train.lr": 0.03}]
    assert len(setting(tmp_path, "fedadc-figure-1.stand-in.json")) == 2


def test_an_item_that_fails_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    written(tmp_path, TWO.replace('only = ["FedAvg"]', 'only = ["nobody"]'))
    with pytest.raises(RunError, match="1 of 2 items"):
        call(*words(tmp_path), "-q")
    assert [(tmp_path / "results" / name).exists() for name in RESULTS] == [True, False]


def test_an_item_whose_folders_hold_other_runs_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    written(
        tmp_path,
        TWO.replace("rounds = 1\nseeds = 1\nfix", "rounds = 1\nseeds = 1\nset = { 'train.weight_decay' = 0.1 }\nfix"),
    )
    call(*words(tmp_path))
    (tmp_path / "results" / RESULTS[0]).unlink()
    written(tmp_path, TWO)
    with pytest.raises(RunError, match="1 of 2 items"):
        call(*words(tmp_path))
    assert (tmp_path / "results" / RESULTS[0]).exists()


def test_a_killed_queue_goes_on_where_it_stopped(tmp_path: Path) -> None:
    written(tmp_path, TWO)
    first = tmp_path / "runs" / "fsl-table-1-scale0.001" / "FedAvg" / "lr=0.03" / "seed0" / "summary.json"
    queue = subprocess.Popen([sys.executable, "-m", "undrift", *words(tmp_path)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not first.exists() and time.monotonic() < deadline and queue.poll() is None:
        time.sleep(0.02)
    os.kill(queue.pid, signal.SIGKILL)
    queue.communicate()
    made = first.stat().st_mtime_ns
    log = CliRunner().invoke(app, words(tmp_path)).stderr
    assert first.stat().st_mtime_ns == made, "a finished run was made again"
    assert all((tmp_path / "results" / name).exists() for name in RESULTS)
    assert "runs, about 0 min left" in log


def test_the_time_left_learns_from_what_has_been_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undrift.recipes.queue.seconds_of", lambda config: 6.0 * config.train.rounds)
    item = Item(recipe="fsl-table-1", only=["SCAFFOLD"], seeds=2)
    now = [0.0]
    left = TimeLeft([task_of(item, out=tmp_path, jobs=1)] * 2, jobs=2, clock=lambda: now[0])
    # Each: three tuning runs of 100 rounds and two of 1,000, six seconds a round, two at a time.
    assert left.minutes() == pytest.approx(2 * (3 * 10 + 2 * 100) / 2)
    now[0] = 600.0
    left.run_ended(0, "SCAFFOLD/tuning/lr=0.01/seed0")
    assert left.minutes() == pytest.approx(2 * 225), "10 min for what was to take 5"
    left.run_ended(0, "SCAFFOLD/lr=chosen/seed0")
    assert str(left) == f"2 of 10 runs, about {str_of((460 - 110) / 2 * 10 / 55)} left"
    left.task_ended(0)
    assert left.total == 7
    left.run_ended(1, "nobody/lr=1/seed0")
    assert left.made == 2


def str_of(minutes: float) -> str:
    hours, rest = divmod(round(minutes), 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"


def test_the_documented_queue_is_a_queue(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    example = text.partition("```toml\n")[2].partition("```")[0]
    first, second = read_queue(written(tmp_path, example))
    assert (first.size, first.only, second.seeds) == ("small", ["alpha=0.1"], 3)
    task_of(second, out=None, jobs=1)
