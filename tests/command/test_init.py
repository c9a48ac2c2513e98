"""A newcomer's first steps: a configuration to start from, help that reads well, completion in the shell."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
import typer.main

from shell import Undrift, arrays
from undrift.cli import app
from undrift.cli.init import EDIT, Data, template
from undrift.data import NAMES

FAST = ("--set", "train.rounds=2", "--set", "engine.workers=0", "-q")


def there(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in NAMES, reason=f"no reader for {name} yet")


def edited(path: Path, /, **values: str) -> None:
    """Change the lines that a user is asked to change, and no others."""
    lines = path.read_text().splitlines()
    asked = {line.partition("=")[0].strip(): number for number, line in enumerate(lines) if EDIT in line}
    assert set(asked) == set(values)
    for key, value in values.items():
        lines[asked[key]] = f'{key} = "{value}"'
    path.write_text("\n".join(lines))


def first_steps(undrift: Undrift) -> None:
    answer = undrift("run", "experiment.toml", "--out", "runs/first", *FAST)
    assert answer.code == 0, answer.err
    answer = undrift("report", "runs/first")
    assert answer.code == 0, answer.err
    page = Path("runs/first/report.html").read_text()
    assert "scaffold ends with test accuracy" in page
    assert 'data-chart="federation"' in page


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_steps_with_digits_need_no_edit(fresh: Path, undrift: Undrift) -> None:
    answer = undrift("init")
    assert answer.code == 0
    assert "undrift run experiment.toml --out runs/first" in answer.out
    assert EDIT not in Path("experiment.toml").read_text()
    first_steps(undrift)


def test_the_first_steps_with_arrays(fresh: Path, undrift: Undrift) -> None:
    np.savez("here.npz", **arrays(600))
    answer = undrift("init", "--data", "npz")
    assert "set data.path in it" in answer.out
    edited(Path("experiment.toml"), path="here.npz")
    first_steps(undrift)


@there("csv")
def test_the_first_steps_with_a_table(fresh: Path, undrift: Undrift) -> None:
    made = arrays(400)
    with open("patients.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "c", "d", "e", "diagnosis"])
        table.writerows([*map(float, row), "abc"[y]] for row, y in zip(made["x_train"], made["y_train"], strict=True))
    assert "set data.path and data.label in it" in undrift("init", "--data", "csv").out
    edited(Path("experiment.toml"), path="patients.csv", label="diagnosis")
    first_steps(undrift)


@there("images")
def test_the_first_steps_with_pictures(fresh: Path, undrift: Undrift) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "fox"):
        (fresh / "animals" / name).mkdir(parents=True)
        for number in range(60):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(fresh / "animals" / name / f"{number}.png")
    undrift("init", "--data", "images")
    edited(Path("experiment.toml"), path="animals")
    first_steps(undrift)


@pytest.mark.parametrize("data", list(Data))
def test_every_template_is_commented_toml(data: Data) -> None:
    text = template(data)
    assert tomllib.loads(text)["data"]["name"] == data.value
    bare = [line for line in text.splitlines() if "=" in line.partition("#")[0] and "#" not in line]
    assert len(bare) <= 5, bare  # what explains itself
    assert max(map(len, text.splitlines())) <= 130


def test_a_file_that_is_there_is_not_written_over(fresh: Path, undrift: Undrift) -> None:
    Path("experiment.toml").write_text("mine")
    answer = undrift("init")
    assert (answer.code, Path("experiment.toml").read_text()) == (2, "mine")
    assert "is there already" in answer.err
    assert undrift("init", "--data", "nonsense", "other.toml").code == 2


def commands(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = command.commands if isinstance(command, click.Group) else {}
    return [words, *(found for name, one in inner.items() for found in commands(one, (*words, name)))]


@pytest.mark.parametrize("words", commands(typer.main.get_command(app)), ids=" ".join)
def test_help_shows_an_example_and_no_escapes(words: tuple[str, ...], undrift: Undrift) -> None:
    answer = undrift(*words, "--help")
    assert answer.code == 0
    assert "\\[" not in answer.out
    assert f"Example: undrift {' '.join(words)}" in " ".join(answer.out.split()) or not words
    assert answer.out.startswith("Usage: undrift")
    arguments = answer.out.partition("Arguments:\n")[2].partition("\n\n")[0].splitlines()
    assert all(re.match(r"  \S+  +[A-Z]|   +", line) for line in arguments)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("re", {"report", "recipes", "reproduce", "results"}), ("data ", {"list", "get", "check", "glyphs"})],
)
def test_the_shell_completes_commands(typed: str, offered: set[str]) -> None:
    environment = os.environ | {
        "_UNDRIFT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"undrift {typed}",
        "COMP_CWORD": str(len(f"undrift {typed}".split(" ")) - 1),
    }
    made = subprocess.run([sys.executable, "-m", "undrift"], env=environment, capture_output=True, text=True)
    assert set(made.stdout.split()) == offered, made.stderr
