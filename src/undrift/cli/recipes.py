"""`undrift recipes`, `undrift reproduce` and `undrift results`: the papers' experiments and the evidence."""

from __future__ import annotations

import math
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from undrift.cli.display import console
from undrift.cli.report import offer
from undrift.core.files import write_json
from undrift.errors import ConfigError, InputError, RunError, UndriftError
from undrift.experiment.config import toml_value
from undrift.experiment.run_folder import check_output
from undrift.experiment.run_many import Planned
from undrift.recipes import RECIPES
from undrift.recipes.estimate import hours_of, planned_runs
from undrift.recipes.evidence import evidence_of, read_evidence, stem, write_evidence
from undrift.recipes.pages import write_pages
from undrift.recipes.queue import Item, Task, TimeLeft, folder_of, read_queue, recipe_at, task_of
from undrift.recipes.recipe import Recipe
from undrift.recipes.run import Options, Outcome, finished, reproduce
from undrift.recipes.tables import HEAD, result_rows

SHOWN = 30
"""Runs of a recipe that a plan lists."""
Scale = Annotated[float, typer.Option(help="Shrink rounds, data and clients by this factor.", min=0.0, max=1.0)]
Results = Annotated[Path, typer.Option(help="Folder of the evidence (NAME.json, README.md).")]


def recipes() -> None:
    """The papers' tables and figures that can be run.

    Example: undrift recipes
    """
    table = Table("name", "paper", "where", "what", "runs", "core hours")
    for recipe in RECIPES.values():
        options = Options(folder_of(recipe, 1.0))
        runs = planned_runs(recipe, options)
        table.add_row(recipe.name, recipe.paper, recipe.where, recipe.title, str(len(runs)), _hours(runs))
    console().print(table)


def reproduce_(
    name: Annotated[str | None, typer.Argument(help="A name from `undrift recipes`.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All recipes.")] = False,
    size: Annotated[str | None, typer.Option(help="A named size of the recipe, instead of the paper's own.")] = None,
    scale: Scale = 1.0,
    seeds: Annotated[int | None, typer.Option(help="How many seeds (default: the recipe's).", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of the recipe's.", min=1)] = None,
    budget: Annotated[float | None, typer.Option(metavar="MINUTES", help="Start no run after this.", min=0)] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time (default: one a core).", min=1)] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ARM", help="Only arms with this in their name; =ARM: one.")
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(metavar="ARM:KEY=VALUE", help="Give a swept key instead of tuning it; ARM * means all."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value in all runs; labelled.")
    ] = None,
    tune: Annotated[bool, typer.Option(help="Choose swept settings on validation data.")] = True,
    stand_in: Annotated[bool, typer.Option("--stand-in", help="Made-up data, to see whether a recipe runs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/reproduce/NAME).")] = None,
    results: Results = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and an estimate.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    queue: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many recipes, in the order of their priorities; see docs.")
    ] = None,
) -> None:
    """Run a paper's experiment, or a queue of them, beside the paper's numbers; goes on where it stopped.

    Example: undrift reproduce fsl-table-1 --scale 0.1 --seeds 2 --budget 60
    """
    if not 0.0 < scale <= 1.0:
        raise ConfigError(f"--scale {scale:g}: above 0 and at most 1")
    if budget is not None and math.isnan(budget):
        raise ConfigError("--budget nan: minutes are needed")
    for folder in (out, results):
        if folder is not None:
            check_output(folder)
    alone = {
        "size": size,
        "scale": scale,
        "seeds": seeds,
        "rounds": rounds,
        "only": only or [],
        "fix": _fixed(fix or []),
        "set": _changed(overrides or []),
        "tune": tune,
    }
    items = _items(name, everything, queue, alone)
    jobs = jobs or _cores()
    tasks = [task_of(item, out=_place(out, item, many=name is None), jobs=jobs, stand_in=stand_in) for item in items]
    if dry_run:
        hours = sum(_show_plan(task) for task in tasks)
        if len(tasks) > 1:
            typer.echo(f"{len(tasks)} recipes, about {hours:.1f} core hours")
        return
    left = None if quiet else TimeLeft(tasks, jobs)
    _carry_out_all(tasks, results, budget, left, go_on=queue is not None)


def results_(
    results: Results = Path("results"),
    readme: Annotated[Path, typer.Option(help="The page with the markers for the table.")] = Path("README.md"),
) -> None:
    """Generate results/*.md, their plots and the table of README.md from results/*.json.

    Example: undrift results
    """
    if not results.is_dir():
        raise ConfigError(f"--results {results}: no such folder")
    _draw_results(results)
    for path in write_pages(results, readme):
        typer.echo(f"written: {path}")


def _draw_results(results: Path) -> None:
    """A plot for each result, where what draws is installed."""
    try:
        from undrift.report.evidence import write_picture

        for evidence in read_evidence(results):
            write_picture(evidence, results / "plots" / f"{stem(evidence)}.png")
    except (ImportError, InputError) as error:
        typer.echo(f"no plots: {error}", err=True)


def _items(name: str | None, everything: bool, queue: Path | None, alone: dict[str, Any]) -> list[Item]:
    """What was asked for: one recipe, all, or those of a file."""
    if [name is not None, everything, queue is not None].count(True) != 1:
        raise ConfigError("give the name of a recipe, --all or --queue FILE, one of them (see undrift recipes)")
    if queue is None:
        return [Item(recipe=recipe, **alone) for recipe in (RECIPES if name is None else [name])]
    usual = Item(recipe="").model_dump()
    for key, value in alone.items():
        if value != usual[key]:
            raise ConfigError(f"--{key}: with --queue it stands in the file, for each item")
    return read_queue(queue)


def _place(out: Path | None, item: Item, *, many: bool) -> Path | None:
    return out / folder_of(recipe_at(item), item.scale).name if out is not None and many else out


def _carry_out_all(tasks: list[Task], results: Path, budget: float | None, left: TimeLeft | None, go_on: bool) -> None:
    """One task after another; in a queue, one that cannot be carried out does not keep the others waiting."""
    started, failed = time.monotonic(), 0
    for number, task in enumerate(tasks):
        rest = None if budget is None else max(0.0, budget - (time.monotonic() - started) / 60)
        log = None if left is None else _Log(left, number)
        try:
            _carry_out(Task(task.recipe, replace(task.options, budget=rest)), results, log)
        except UndriftError as error:
            if not go_on:
                raise
            failed += 1
            typer.echo(f"failed: {task.recipe.name}: {error}", err=True)
        if left is not None:
            left.task_ended(number)
    if failed:
        raise RunError(f"{failed} of {len(tasks)} items of the queue could not be carried out")


def _carry_out(task: Task, results: Path, log: _Log | None) -> None:
    recipe, options = task.recipe, task.options
    try:
        outcome = reproduce(recipe, options, log)
    except KeyboardInterrupt:
        typer.echo(f"finished runs are kept; go on with the same command ({_command(recipe, options)})", err=True)
        raise
    evidence = evidence_of(outcome, _command(recipe, options))
    if not any(arm["runs"] or arm["under_way"] for arm in evidence["arms"]):
        typer.echo(f"{recipe.name}: no run has been evaluated yet, so there is no result", err=True)
        return
    path = write_evidence(evidence, results)
    table = Table(*HEAD)
    for row in result_rows(evidence):
        table.add_row(*row)
    console().print(table)
    if evidence["scaled"]:
        typer.echo("scaled, not the paper's size: " + "; ".join(evidence["scaling"]))
    for run, reason in outcome.failures.items():
        typer.echo(f"failed: {run}: {reason}", err=True)
    typer.echo(f"evidence in {path}, runs in {options.out}")
    _draw_results(results)
    write_pages(results, None)
    _plot(outcome, _note(evidence))
    write_json(options.out / "evidence.json", evidence)
    offer(options.out)


def _note(evidence: dict[str, Any]) -> str:
    """What a picture must say where it does not show the paper's own experiment."""
    if evidence["stand_in"]:
        return "made-up data standing in: says that the recipe runs, nothing about the paper"
    return "scaled, not the paper's size" if evidence["scaled"] else ""


def _plot(outcome: Outcome, note: str) -> None:
    """Pictures of the finished runs, where what draws is installed."""
    done = [run.out for runs in outcome.runs.values() for run in runs if finished(run)]
    if not done:
        return
    try:
        from undrift.report.pictures import draw

        files, _ = draw(done, outcome.options.out / "plots", note)
    except (ImportError, InputError) as error:
        typer.echo(f"no pictures: {error}", err=True)
    else:
        typer.echo(f"{len(files)} pictures in {outcome.options.out / 'plots'}")


class _Log:
    """A line for every run that ended, with what is left, and one a minute for those under way."""

    def __init__(self, left: TimeLeft, task: int) -> None:
        self.console = console(stderr=True)
        self.left, self.task = left, task
        self.last = time.monotonic()

    def __call__(self, done: int, name: str, text: str) -> None:
        under_way = text.startswith("round ")
        if not under_way:
            self.left.run_ended(self.task, name)
        if not under_way or time.monotonic() - self.last > 60:
            self.last = time.monotonic()
            self.console.print(f"{time.strftime('%H:%M:%S')} {name}: {text} ({self.left})", soft_wrap=True)


def _fixed(given: list[str]) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for item in given:
        arm, colon, setting = item.rpartition(":")
        key, sign, value = setting.partition("=")
        if not colon or not sign:
            raise ConfigError(f"--fix {item}: ARM:KEY=VALUE is expected, as in 'FedDyn:algorithm.feddyn.alpha=0.1'")
        out.setdefault(arm.strip(), {})[key.strip()] = toml_value(value)
    return out


def _changed(given: list[str]) -> dict[str, Any]:
    for item in given:
        if "=" not in item:
            raise ConfigError(f"--set {item}: KEY=VALUE is expected, as in data.split=letters")
    return {key: toml_value(value) for key, _, value in (item.partition("=") for item in given)}


def _cores() -> int:
    from undrift.engines.auto import cores

    return cores()


def _command(recipe: Recipe, options: Options) -> str:
    """The command that gives these numbers again (without what only says where and how fast)."""
    words = ["undrift", "reproduce", recipe.name, *(["--size", recipe.size] if recipe.size else [])]
    if options.scale != 1.0:
        words += ["--scale", f"{options.scale:g}"]
    for flag, value in (("--seeds", options.seeds), ("--rounds", options.rounds)):
        words += [flag, str(value)] if value is not None else []
    for word in options.only:
        words += ["--only", word]
    for arm, settings in options.fixed.items():
        for key, value in settings.items():
            words += ["--fix", f"{arm}:{key}={value}"]
    for key, value in options.changed.items():
        words += ["--set", f"{key}={value}"]
    words += [] if options.tune else ["--no-tune"]
    words += ["--stand-in"] if options.stand_in else []
    return shlex.join(words)


def _hours(runs: list[Planned]) -> str:
    return f"{hours_of(runs):.1f}"


def _show_plan(task: Task) -> float:
    """What would be run; returns the core hours."""
    recipe, options = task.recipe, task.options
    runs = planned_runs(recipe, options)
    hours = hours_of(runs)
    label = "  [scaled]" if options.labelled_scaled(recipe) else ""
    typer.echo(f"{recipe.name}: {recipe.paper}, {recipe.where}: {len(runs)} runs, about {hours:.1f} core hours{label}")
    for run in runs[:SHOWN]:
        typer.echo(f"  {run.name}  {run.config.train.rounds} rounds")
    if len(runs) > SHOWN:
        typer.echo(f"  … and {len(runs) - SHOWN} more")
    return hours
