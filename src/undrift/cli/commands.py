"""The commands by name: what a list of them says, and where each is. A command is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click
import typer
import typer.core
import typer.main
from click.utils import make_default_short_help

from undrift.core.plugins import load

COMMANDS = {
    "demo": ("demo:demo", "A non-IID federation on real data, several algorithms side by side, in under a minute."),
    "init": ("init:init", "Write a commented configuration to start from."),
    "run": ("run:run", "One run."),
    "compare": ("compare:compare", "The same federation under several algorithms, seeds and settings."),
    "diagnose": (
        "diagnose:diagnose",
        "Find the best algorithm for this federation: a probe, and a race of candidates on the federation itself.",
    ),
    "report": (
        "report:report",
        "One self-contained HTML page: verdict, curves, federation, drift, clients, configuration.",
    ),
    "plot": (
        "plot:plot",
        "Pictures of finished or running runs, PNG and SVG: progress, drift, partition, prediction sets.",
    ),
    "conformal": (
        "conformal:conformal",
        "Prediction sets of a finished model: coverage and mean set size on held-out data, overall and by client.",
    ),
    "cuts": (
        "cuts:cuts",
        "Parameters and multiply-adds of each side for every cut, and the bytes of a round.",
    ),
    "rules": (
        "rules:rules",
        "What every rule does, its parameters, what it owns, what it sends, and what it cannot go with.",
    ),
    "privacy": (
        "privacy:privacy",
        "The epsilon that a configuration will have spent after its rounds, and the noise that a wanted one needs.",
    ),
    "recipes": ("recipes:recipes", "The papers' tables and figures that can be run."),
    "reproduce": (
        "recipes:reproduce_",
        "Run a paper's experiment, or a queue of them, beside the paper's numbers; goes on where it stopped.",
    ),
    "results": (
        "recipes:results_",
        "Generate results/*.md, their plots and the table of README.md from results/*.json.",
    ),
    "data": (
        "data:app",
        "Data sets: what there is, fetch one, verify the files.\n\nExample: undrift data get cifar10",
    ),
    "federation": (
        "federation:app",
        "Real sites that keep their data, on Flower.\n\nExample: undrift federation init DIR --sites north,south",
    ),
}
"""Name -> (module and function, what it does: the first line of its help, or all of it for a group)."""


class Commands(typer.core.TyperGroup):
    """The group of all commands; lists them without importing any."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Imported()  # type: ignore[assignment]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which one needs them."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, as Click writes it."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, make_default_short_help(text, limit)) for name, (_, text) in COMMANDS.items()])


class _Imported(Mapping[str, click.Command]):
    """The commands themselves, each imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        place, text = COMMANDS[name]
        found = load(f"undrift.cli.{place}", name)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(found)
            group.name, group.help = name, text
            return group
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name)(found)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)
