"""``undrift diagnose``: which algorithm for this federation, with which settings."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from undrift.cli.report import offer
from undrift.errors import ConfigError, InputError


def diagnose(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. train.lr=0.05.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder (default: a new one under runs/).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the diagnosis in --out.")] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Only the probe: the quick answer, without a race.")] = False,
    race: Annotated[bool, typer.Option("--race", help="The long race: more candidates, more rounds.")] = False,
    budget: Annotated[
        int | None,
        typer.Option(help="Race: rounds in all (default: 1.3 times train.rounds, the probe included).", min=1),
    ] = None,
    rates: Annotated[
        str | None, typer.Option(help="Race: factors on train.lr that are tried (default: what the probe finds).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Find the best algorithm for this federation: a probe, and a race of candidates on the federation itself.

    Example: undrift diagnose experiment.toml --out runs/diagnosis
    """
    from undrift.cli.display import Meter
    from undrift.diagnose import whole
    from undrift.diagnose.track import Watch
    from undrift.experiment.config import read

    if probe and (race or budget is not None or rates is not None):
        raise ConfigError("--probe makes no race: --race, --budget and --rates cannot be given with it")
    if resume and out is None:
        raise ConfigError("--resume: say with --out which diagnosis to go on with")
    settings = read(config, overrides or ())
    folder = out or Path("runs") / f"diagnosis-{time.strftime('%Y%m%d-%H%M%S')}"
    asked = whole.Asked(not probe, race, budget, _factors(rates))
    ready = whole.prepare(settings, folder, asked, resume=resume)
    if not quiet:
        typer.echo(ready.plan.describe(), err=True)
    say = (lambda text: None) if quiet else (lambda text: typer.echo(f"  {text}", err=True))
    with ExitStack() as stack:

        def watching(total: int) -> Watch:
            meter = stack.enter_context(Meter("run", total, quiet=quiet))
            return lambda done, name, text: meter.at(done, f"{name} {text}")

        found = whole.diagnose(ready, folder, say, watching)
    text = whole.write(settings, found, folder)
    typer.echo(json.dumps(found.as_json(), indent=2) if as_json else text)
    _picture(found.as_json(), folder)
    offer(folder, err=as_json)


def _picture(found: dict[str, Any], folder: Path) -> None:
    """The curves of the race, where pictures can be drawn."""
    from undrift.report.race import write_race

    try:
        write_race(found, folder)
    except InputError as error:
        typer.echo(f"no picture: {error}", err=True)


def _factors(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        factors = tuple(float(part) for part in text.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(f"--rates {text}: positive numbers joined by commas are expected, as in 0.5,1,2")
    return factors
