"""`undrift recipes`, `undrift reproduce` and `undrift results`: the papers' experiments and the evidence."""

from __future__ import annotations

import math
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from undrift.cli.display import console
from undrift.errors import ConfigError, InputError
from undrift.experiment.config import toml_value
from undrift.experiment.run_folder import check_output
from undrift.experiment.run_many import Planned
from undrift.recipes import RECIPES, recipe_of
from undrift.recipes.estimate import hours_of, planned_runs
from undrift.recipes.evidence import evidence_of, write_evidence
from undrift.recipes.recipe import Recipe, sized
from undrift.recipes.run import Options, Outcome, finished, reproduce
from undrift.recipes.tables import HEAD, result_rows, write_pages

Scale = Annotated[float, typer.Option(help="Shrink rounds, data and clients by this factor.", min=0.0, max=1.0)]
Results = Annotated[Path, typer.Option(help="Folder of the evidence (NAME.json, README.md).")]


def recipes() -> None:
    """The papers' tables and figures that can be run.

    Example: undrift recipes
    """
    table = Table("name", "paper", "where", "what", "runs", "core hours")
    for recipe in RECIPES.values():
        options = Options(_folder(recipe, 1.0))
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
    only: Annotated[list[str] | None, typer.Option(metavar="ARM", help="Only arms whose name has this in it.")] = None,
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
) -> None:
    """Run a paper's experiment and set its numbers beside the paper's; goes on where it stopped.

    Example: undrift reproduce fsl-table-1 --scale 0.1 --seeds 2 --budget 60
    """
    if not 0.0 < scale <= 1.0:
        raise ConfigError(f"--scale {scale:g}: above 0 and at most 1")
    if budget is not None and math.isnan(budget):
        raise ConfigError("--budget nan: minutes are needed")
    for folder in (out, results):
        if folder is not None:
            check_output(folder)
    chosen = [recipe if size is None else sized(recipe, size) for recipe in _asked(name, everything)]
    fixed = _fixed(fix or [])
    started = time.monotonic()
    for recipe in chosen:
        left = None if budget is None else max(0.0, budget - (time.monotonic() - started) / 60)
        folder = _folder(recipe, scale) if out is None else out / recipe.name if everything else out
        options = Options(
            folder,
            scale=scale,
            seeds=seeds,
            rounds=rounds,
            budget=left,
            jobs=jobs or _cores(),
            only=tuple(only or ()),
            tune=tune,
            fixed=fixed,
            changed=_changed(overrides or []),
            stand_in=stand_in,
        )
        if dry_run:
            _show_plan(recipe, options)
        else:
            _carry_out(recipe, options, results, quiet)
    if dry_run and len(chosen) > 1:
        typer.echo(f"{len(chosen)} recipes, about {_TOTAL.hours:.1f} core hours")


def results_(
    results: Results = Path("results"),
    readme: Annotated[Path, typer.Option(help="The page with the markers for the table.")] = Path("README.md"),
) -> None:
    """Generate the tables of results/README.md and README.md from results/*.json.

    Example: undrift results
    """
    if not results.is_dir():
        raise ConfigError(f"--results {results}: no such folder")
    for path in write_pages(results, readme):
        typer.echo(f"written: {path}")


class _Sum:
    hours = 0.0


_TOTAL = _Sum()


def _carry_out(recipe: Recipe, options: Options, results: Path, quiet: bool) -> None:
    try:
        outcome = reproduce(recipe, options, None if quiet else _Log())
    except KeyboardInterrupt:
        typer.echo(f"finished runs are kept; go on with the same command ({_command(recipe, options)})", err=True)
        raise
    evidence = evidence_of(outcome, _command(recipe, options))
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
    write_pages(results, None)
    _plot(outcome)


def _plot(outcome: Outcome) -> None:
    """Pictures of the finished runs, where what draws is installed."""
    done = [run.out for runs in outcome.runs.values() for run in runs if finished(run)]
    if not done:
        return
    try:
        from undrift.report.pictures import draw

        files, _ = draw(done, outcome.options.out / "plots")
    except (ImportError, InputError) as error:
        typer.echo(f"no pictures: {error}", err=True)
    else:
        typer.echo(f"{len(files)} pictures in {outcome.options.out / 'plots'}")


class _Log:
    """A line for every run that ended, and one a minute for those under way."""

    def __init__(self) -> None:
        self.console = console(stderr=True)
        self.last = time.monotonic()

    def __call__(self, done: int, name: str, text: str) -> None:
        if not text.startswith("round ") or time.monotonic() - self.last > 60:
            self.last = time.monotonic()
            self.console.print(f"{time.strftime('%H:%M:%S')} {name}: {text}", soft_wrap=True)


def _asked(name: str | None, everything: bool) -> list[Recipe]:
    if everything == (name is not None):
        raise ConfigError("give the name of a recipe, or --all (see undrift recipes)")
    return list(RECIPES.values()) if name is None else [recipe_of(name)]


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


def _folder(recipe: Recipe, scale: float) -> Path:
    name = recipe.name if recipe.size is None else f"{recipe.name}-{recipe.size}"
    return Path("runs") / "reproduce" / (name if scale == 1.0 else f"{name}-scale{scale:g}")


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


def _show_plan(recipe: Recipe, options: Options) -> None:
    runs = planned_runs(recipe, options)
    hours = hours_of(runs)
    _TOTAL.hours += hours
    label = "  [scaled]" if options.labelled_scaled(recipe) else ""
    typer.echo(f"{recipe.name}: {recipe.paper}, {recipe.where}: {len(runs)} runs, about {hours:.1f} core hours{label}")
    shown = runs if len(RECIPES) == 1 or len(runs) <= 30 else runs[:30]
    for run in shown:
        typer.echo(f"  {run.name}  {run.config.train.rounds} rounds")
    if len(shown) < len(runs):
        typer.echo(f"  … and {len(runs) - len(shown)} more")
