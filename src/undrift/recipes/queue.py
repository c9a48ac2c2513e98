"""Many recipes one after another: a TOML file of ``[[item]]`` tables, the most important first.

Each item has the options of ``undrift reproduce`` under the same names, and a ``priority`` (higher first; equal ones in
the order of the file). Runs of an item are made several at a time; its result is written before the next begins.
Finished runs are kept, so a queue that was killed goes on with the same command, also after the file has changed.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from undrift.core.words import nearest
from undrift.errors import ConfigError
from undrift.experiment.run_many import Planned
from undrift.recipes import recipe_of
from undrift.recipes.estimate import planned_runs, seconds_of
from undrift.recipes.recipe import Recipe, sized
from undrift.recipes.run import Options, finished
from undrift.rounds.plan import Section, explain


class Item(Section):
    """One ``[[item]]``: a recipe and how to carry it out."""

    recipe: str
    priority: int = 0
    size: str | None = None
    scale: float = Field(default=1.0, gt=0, le=1)
    seeds: int | None = Field(default=None, ge=1)
    rounds: int | None = Field(default=None, ge=1)
    only: list[str] = Field(default_factory=list)
    tune: bool = True
    fix: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Label of an arm (``*``: all) -> swept keys that are given instead of being tuned."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Other values in all runs."""


@dataclass(frozen=True)
class Task:
    """An item, ready to be carried out."""

    recipe: Recipe
    options: Options


def read_queue(path: Path) -> list[Item]:
    """The items of a file in the order in which they are carried out."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--queue {path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--queue {path}: not a TOML file ({error})") from None
    tables = content.pop("item", None)
    if content or not isinstance(tables, list) or not tables:
        raise ConfigError(f"--queue {path}: nothing but [[item]] tables is expected, at least one")
    items = [_item(table, f"--queue {path}, item {number}") for number, table in enumerate(tables, 1)]
    return sorted(items, key=lambda item: -item.priority)


def _item(table: Any, where: str) -> Item:
    try:
        item = Item.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{where}: unknown key {key!r}: {nearest(key, Item.model_fields)}") from None
        raise ConfigError(f"{where}: {explain(error)}") from None
    try:
        recipe_at(item)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return item


def recipe_at(item: Item) -> Recipe:
    """The item's recipe at its size."""
    recipe = recipe_of(item.recipe)
    return recipe if item.size is None else sized(recipe, item.size)


def folder_of(recipe: Recipe, scale: float) -> Path:
    """Where the runs of a recipe lie unless said otherwise."""
    name = recipe.name if recipe.size is None else f"{recipe.name}-{recipe.size}"
    return Path("runs") / "reproduce" / (name if scale == 1.0 else f"{name}-scale{scale:g}")


def task_of(item: Item, *, out: Path | None, jobs: int, stand_in: bool = False) -> Task:
    """What an item asks for; ``out``: the folder of its runs."""
    recipe = recipe_at(item)
    options = Options(
        out or folder_of(recipe, item.scale),
        scale=item.scale,
        seeds=item.seeds,
        rounds=item.rounds,
        jobs=jobs,
        only=tuple(item.only),
        tune=item.tune,
        fixed=item.fix,
        changed=item.set,
        stand_in=stand_in,
    )
    return Task(recipe, options)


class TimeLeft:
    """How many runs have been made, and how long the rest may take.

    Each run has an estimate; how wrong those of the runs made so far were corrects that of the rest. Settings that
    tuning will choose are not known beforehand, so a run counts for any of the same arm and kind.
    """

    def __init__(self, tasks: Sequence[Task], jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting = [list(_waiting(task)) for task in tasks]
        self.jobs, self.clock = jobs, clock
        self.total, self.made, self.worth = sum(map(len, self.waiting)), 0, 0.0
        self.started = clock()

    def run_ended(self, task: int, name: str) -> None:
        """A run of a task has ended."""
        kind = _kind(name)
        found = next((entry for entry in self.waiting[task] if entry[0] == kind), None)
        if found is not None:
            self.waiting[task].remove(found)
            self.made += 1
            self.worth += found[1]

    def task_ended(self, task: int) -> None:
        """Whatever was not run by now will not be."""
        self.total -= len(self.waiting[task])
        self.waiting[task] = []

    def minutes(self) -> float:
        """The estimate for all that waits."""
        left = sum(seconds for runs in self.waiting for _, seconds in runs) / self.jobs
        wrong = (self.clock() - self.started) / (self.worth / self.jobs) if self.worth else 1.0
        return left * wrong / 60

    def __str__(self) -> str:
        hours, minutes = divmod(round(self.minutes()), 60)
        return f"{self.made} of {self.total} runs, about {f'{hours} h ' * bool(hours)}{minutes} min left"


def _waiting(task: Task) -> Iterator[tuple[tuple[str, bool], float]]:
    for run in planned_runs(task.recipe, task.options):
        if not _is_there(run):
            yield _kind(run.name), seconds_of(run.config)


def _is_there(run: Planned) -> bool:
    """Whether a run is finished; that its folder holds another one is said when its turn comes."""
    try:
        return finished(run)
    except ConfigError:
        return False


def _kind(name: str) -> tuple[str, bool]:
    """The arm of a run, and whether it is a tuning run."""
    arm, *rest = name.split("/")
    return arm, rest[:1] == ["tuning"]
