"""``undrift diagnose``: which algorithm for this federation, with which settings."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.cli.report import offer
from undrift.errors import ConfigError

if TYPE_CHECKING:
    from undrift.diagnose.report import Diagnosis
    from undrift.experiment.config import Config


def diagnose(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. train.lr=0.05.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder (default: a new one under runs/).")] = None,
    race: Annotated[bool, typer.Option("--race", help="Try the candidates and rank them by what they reach.")] = False,
    budget: Annotated[
        int | None, typer.Option(help="Race: rounds in all (default: the last heat runs train.rounds).", min=1)
    ] = None,
    rates: Annotated[str, typer.Option(help="Race: factors on train.lr that are tried.")] = "0.5,1,2",
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Measure the drift in this federation and recommend what to use.

    Example: undrift diagnose experiment.toml --out runs/diagnosis
    """
    from undrift.diagnose import whole
    from undrift.experiment.config import read

    settings = read(config, overrides or ())
    folder = out or Path("runs") / f"diagnosis-{time.strftime('%Y%m%d-%H%M%S')}"
    factors = _factors(rates)
    ready = whole.prepare(settings, folder)
    if not quiet:
        typer.echo(ready.plan.describe(), err=True)
    found = whole.diagnose(ready, (lambda text: None) if quiet else (lambda text: typer.echo(f"  {text}", err=True)))
    if race:
        found = _race(settings, found, folder, budget, factors, quiet)
    text = whole.write(settings, found, folder)
    typer.echo(json.dumps(found.as_json(), indent=2) if as_json else text)
    offer(folder, err=as_json)


def _race(
    settings: Config,
    found: Diagnosis,
    folder: Path,
    budget: int | None,
    factors: list[float],
    quiet: bool,
) -> Diagnosis:
    from undrift.cli.display import Meter
    from undrift.diagnose import race, whole

    field = race.racers(settings, found.advice.ranked, factors)
    rounds = settings.train.rounds if budget is None else race.rounds_for(budget, len(field))
    rounds = max(rounds, race.HEATS[0])
    plan = " then ".join(f"{count} x {length}" for count, length in race.heats(len(field), rounds))
    if not quiet:
        typer.echo(f"The race runs {plan} rounds, at most {race.cost(len(field), rounds)} in all.", err=True)
    with Meter("run", sum(count for count, _ in race.heats(len(field), rounds)) + 1, quiet=quiet) as meter:
        standings = race.race(field, rounds, folder / "race", lambda done, name, text: meter.at(done, f"{name} {text}"))
    return whole.with_race(found, standings)


def _factors(text: str) -> list[float]:
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        factors = []
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(f"--rates {text}: positive numbers joined by commas are expected, as in 0.5,1,2")
    return factors
