"""The start of a program: nothing is imported before it is used, and everything is found when it is."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import undrift
from undrift.cli.commands import COMMANDS
from undrift.data.loading import _digits

HEAVY = ("torch", "sklearn", "scipy", "ray", "flwr", "matplotlib", "plotly", "pandas", "torchmetrics")
FOR_SOME = tuple(name for name in HEAVY if name != "torch")


def imported_by(program: str, names: tuple[str, ...]) -> list[str]:
    """Which of these packages a program has imported when it has run, in a process of its own."""
    ask = f"\nimport sys\nprint('imported:', *(name for name in {names} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program + ask], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_what_is_asked_about_can_be_seen() -> None:
    assert imported_by("import torch", HEAVY) == ["torch"]


def test_the_command_line_and_its_help_import_nothing_heavy() -> None:
    program = "import sys\nfrom undrift.cli import main\n"
    for words in (["--help"], ["--version"], []):
        program += f"sys.argv = ['undrift', *{words}]\ntry:\n main()\nexcept SystemExit: pass\n"
    assert imported_by(program, HEAVY) == []


def test_commands_and_simulate_import_only_what_all_runs_need() -> None:
    modules = ", ".join(f"undrift.cli.{module}" for module in ("run", "compare", "demo", "diagnose"))
    assert imported_by(f"import {modules}\nfrom undrift import simulate, scaffold, fedpvr", FOR_SOME) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_commands_say_of_themselves(name: str) -> None:
    place, text = COMMANDS[name]
    module, _, function = place.partition(":")
    if function != "app":
        found = getattr(importlib.import_module(f"undrift.cli.{module}"), function)
        assert text == found.__doc__.splitlines()[0]


def test_every_command_is_in_the_list() -> None:
    folder = Path(importlib.import_module("undrift.cli").__file__ or "").parent
    listed = {place.partition(":")[0] for place, _ in COMMANDS.values()}
    shared = {"__init__", "commands", "display", "options"}
    assert {path.stem for path in folder.glob("*.py")} - shared == listed


@pytest.mark.parametrize("name", undrift.__all__)
def test_every_public_name_is_found(name: str) -> None:
    assert getattr(undrift, name) is getattr(undrift, name)


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        _ = undrift.fedavgg


def test_digits_are_read_without_importing_scikit_learn() -> None:
    program = "from pathlib import Path\nfrom undrift.data.loading import _digits\n_digits(Path())"
    assert imported_by(program, FOR_SOME) == []


def test_digits_are_those_of_scikit_learn() -> None:
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    raw = _digits(Path())
    found = {(image.tobytes(), int(label)) for image, label in zip(raw.x_train, raw.y_train, strict=True)}
    found |= {(image.tobytes(), int(label)) for image, label in zip(raw.x_test, raw.y_test, strict=True)}
    images = bunch.images.astype("uint8")
    assert found == {(image.tobytes(), int(label)) for image, label in zip(images, bunch.target, strict=True)}
