"""``undrift init``: a commented configuration to start from."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from undrift.core.files import write_atomic
from undrift.errors import ConfigError

EDIT = "# <- edit"
"""Marks the lines that nobody can fill in for a user."""


class Data(StrEnum):
    """What kind of data an experiment starts with."""

    digits = "digits"
    csv = "csv"
    images = "images"
    npz = "npz"


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("experiment.toml"),
    data: Annotated[Data, typer.Option(help="What kind of data you have; digits: to try it out.")] = Data.digits,
) -> None:
    """Write a commented configuration to start from.

    Example: undrift init --data csv
    """
    if path.exists():
        raise ConfigError(f"{path} is there already; name another file, as in undrift init other.toml")
    text = template(data)
    try:
        write_atomic(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    edits = [line.partition("=")[0].strip() for line in text.splitlines() if EDIT in line]
    if edits:
        typer.echo(f"{path}: now set data.{' and data.'.join(edits)} in it, then")
    else:
        typer.echo(f"{path}: ready, next")
    for command in (f"run {path} --out runs/first", "report runs/first --open"):
        typer.echo(f"  undrift {command}")


def template(data: Data) -> str:
    """The configuration: what the data need, then what all have in common."""
    folder = files("undrift.cli") / "templates"
    return "".join((folder / f"{name}.toml").read_text(encoding="utf-8") for name in (data.value, "common"))
