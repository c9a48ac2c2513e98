"""``undrift compare``: the same federation under several algorithms, seeds and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.display import Meter, show
from undrift.cli.options import ConfigPath, InterruptedRunError, Out, Quiet, Resume, Set, new_folder
from undrift.cli.report import offer
from undrift.data import DataSet
from undrift.errors import ConfigError
from undrift.experiment import compare as table
from undrift.experiment.config import Config, read
from undrift.experiment.run_folder import check_output
from undrift.experiment.run_many import Planned, check, raise_first, run_many


def compare(
    config: ConfigPath,
    algorithms: Annotated[str, typer.Option(help="Names joined by commas, e.g. fedavg,scaffold,fedpvr+fsl.")],
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 1,
    sweep: Annotated[list[str] | None, typer.Option(help="KEY=V1,V2: try each; validation data decides.")] = None,
    overrides: Set = None,
    out: Out = None,
    resume: Resume = False,
    workers: Annotated[int | None, typer.Option(help="Runs at the same time (default: one a core).", min=1)] = None,
    quiet: Quiet = False,
) -> None:
    """The same federation under several algorithms, seeds and settings.

    Example: undrift compare experiment.toml --algorithms fedavg,scaffold,fedpvr+fsl --seeds 3
    """
    settings = read(config, overrides or ())
    if resume and out is None:
        raise ConfigError("--resume: say which comparison with --out DIR")
    folder = out or new_folder("compare")
    check_output(folder)
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise ConfigError(f"output folder {folder} is not empty; give another --out, or --resume to go on with it")
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--algorithms {algorithms}: names joined by commas are expected, as in fedavg,scaffold")
    compare_runs(settings, names, seeds, table.parse_sweep(sweep or []), folder, workers, quiet)


def compare_runs(
    settings: Config,
    names: Sequence[str],
    seeds: int,
    sweep: list[table.Setting],
    folder: Path,
    workers: int | None,
    quiet: bool,
) -> None:
    """Make the runs of a comparison and show its table."""
    runs = table.plan_runs(settings, names, seeds, sweep, folder)
    make_runs(runs, folder, workers, quiet)
    rows = table.summarise(settings, names, seeds, sweep, folder)
    table.write_tables(rows, folder)
    show(table.header(rows), [table.cells(row) for row in rows])
    typer.echo(f"mean ± standard deviation over {seeds} seed{'s' * (seeds > 1)}; results in {folder}")
    offer(folder)


def make_runs(runs: Sequence[Planned], folder: Path, workers: int | None, quiet: bool) -> None:
    """Make runs with progress on the screen."""
    try:
        with Meter("run", len(runs), quiet=quiet) as meter:
            loaded: dict[str, DataSet] = {}
            check(runs, loaded)
            failures = run_many(
                runs,
                jobs=workers,
                watch=lambda done, name, text: meter.at(done, f"{name} {text}"),
                loaded=loaded,
            )
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"finished runs are kept; go on with the same command and --out {folder} --resume"
        ) from None
    raise_first(failures)
