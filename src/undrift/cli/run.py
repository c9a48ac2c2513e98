"""``undrift run``: one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.display import Meter, show
from undrift.cli.options import (
    AcceptData,
    AcceptVersions,
    ConfigPath,
    InterruptedRunError,
    Out,
    Quiet,
    Resume,
    Set,
    new_folder,
)
from undrift.core.clock import shares
from undrift.errors import ConfigError
from undrift.experiment.config import Config, read
from undrift.experiment.from_config import run_config
from undrift.experiment.run_folder import check_output
from undrift.rounds.progress import Monitor, note_of


def run(
    config: ConfigPath,
    overrides: Set = None,
    out: Out = None,
    resume: Resume = False,
    workers: Annotated[int | None, typer.Option(help="Processes; 0: in this one.", min=0)] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time of a round goes.")] = False,
    quiet: Quiet = False,
    accept_data: AcceptData = False,
    accept_versions: AcceptVersions = False,
) -> None:
    """One run.

    Example: undrift run experiment.toml --set train.lr=0.05 --out runs/first
    """
    settings = read(config, overrides or ())
    if workers is not None:
        settings = settings.with_(("engine.workers", workers))
    if resume and out is None:
        raise ConfigError("--resume: say which run with --out DIR")
    folder = out or new_folder(f"{settings.data.name}-{settings.algorithm['name']}")
    check_output(folder)
    accept = [kind for kind, given in (("data", accept_data), ("versions", accept_versions)) if given]
    run_to(folder, settings, resume=resume, quiet=quiet, profile=profile, accept=accept)


def run_to(
    folder: Path, settings: Config, *, resume: bool, quiet: bool, profile: bool, accept: Sequence[str] = ()
) -> None:
    """Run with progress on the screen, and say what came of it."""
    try:
        with Meter("round", settings.train.rounds, quiet=quiet) as meter:
            result = run_config(
                settings,
                folder,
                resume=resume,
                profile=profile,
                accept=accept,
                progress=lambda round, rounds, record: meter.at(round, note_of(record)),
            )
    except KeyboardInterrupt:
        if not (folder / "config.toml").exists():
            raise
        raise InterruptedRunError(
            f"what was done is saved; go on with: undrift run {folder}/config.toml --out {folder} --resume"
        ) from None
    summary = result.summary
    metric = Monitor.of(summary["monitor"]).metric
    if None not in (summary.get(f"final_{metric}"), summary.get(f"rolling_{metric}")):
        typer.echo(
            f"final {metric} {summary[f'final_{metric}']:.4f}  rolling {summary[f'rolling_{metric}']:.4f}  "
            f"T90 {summary['rise_time']}  sent {(summary['bytes_down'] + summary['bytes_up']) / 1e6:.1f} MB  "
            f"{summary['seconds']:.1f} s"
        )
    if profile:
        typer.echo("where the time went, summed over processes (waiting: this process for its workers)")
        rows = [(part, f"{seconds:.2f}", f"{100 * share:.1f} %") for part, seconds, share in shares(result.profile)]
        show(("part", "seconds", "share"), rows)
    typer.echo(f"results in {folder}")
