"""The ``undrift`` command."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import click
import torch
import typer
from rich.table import Table

from undrift import __version__, compare
from undrift.assemble import run_config
from undrift.batch import Planned, check, raise_first, run_many
from undrift.clock import shares
from undrift.config import Config, parse, read
from undrift.conformal_cli import conformal
from undrift.cuts_cli import cuts
from undrift.data import DataSet
from undrift.data_cli import app as data_app
from undrift.demo import ALGORITHMS, CONFIG, SEEDS
from undrift.diagnose_cli import diagnose
from undrift.display import Meter, console, note_of
from undrift.errors import ConfigError, InputError, UndriftError
from undrift.federation_cli import app as federation_app
from undrift.plot_cli import plot
from undrift.recipes_cli import recipes, reproduce_, results_

app = typer.Typer(
    name="undrift",
    help="Federated learning when the clients' data are not alike.\n\nStart with: undrift demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(conformal)
app.command()(diagnose)
app.command()(plot)
app.command()(cuts)
app.add_typer(
    data_app,
    name="data",
    help="Data sets: what there is, fetch one, verify the files.\n\nExample: undrift data get cifar10",
)
app.add_typer(
    federation_app,
    name="federation",
    help="Real sites that keep their data, on Flower.\n\nExample: undrift federation init DIR --sites north,south",
)
app.command(name="recipes")(recipes)
app.command(name="reproduce")(reproduce_)
app.command(name="results")(results_)

Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. train.lr=0.05.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Out = Annotated[Path | None, typer.Option(help="Output folder (default: a new one under runs/).")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"undrift {__version__}")
        raise typer.Exit


@app.command()
def run(
    config: ConfigPath,
    overrides: Set = None,
    out: Out = None,
    resume: Resume = False,
    workers: Annotated[int | None, typer.Option(help="Processes; 0: in this one.", min=0)] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time of a round goes.")] = False,
    quiet: Quiet = False,
) -> None:
    """One run.

    Example: undrift run experiment.toml --set train.lr=0.05 --out runs/first
    """
    settings = read(config, overrides or ())
    if workers is not None:
        settings = settings.with_(("engine.workers", workers))
    if resume and out is None:
        raise ConfigError("--resume: say which run with --out DIR")
    folder = out or _new_folder(f"{settings.data.name}-{settings.algorithm['name']}")
    run_to(folder, settings, resume=resume, quiet=quiet, profile=profile)


def run_to(folder: Path, settings: Config, *, resume: bool, quiet: bool, profile: bool) -> None:
    """Run with progress on the screen, and say what came of it."""
    try:
        with Meter("round", settings.train.rounds, quiet=quiet) as meter:
            result = run_config(
                settings,
                folder,
                resume=resume,
                profile=profile,
                progress=lambda round, rounds, record: meter.at(round, note_of(record)),
            )
    except KeyboardInterrupt:
        if not (folder / "config.toml").exists():
            raise
        raise _InterruptedError(
            f"what was done is saved; go on with: undrift run {folder}/config.toml --out {folder} --resume"
        ) from None
    summary = result.summary
    if summary["final_accuracy"] is not None:
        typer.echo(
            f"final accuracy {summary['final_accuracy']:.4f}  rolling {summary['rolling_accuracy']:.4f}  "
            f"T90 {summary['rise_time']}  sent {(summary['bytes_down'] + summary['bytes_up']) / 1e6:.1f} MB  "
            f"{summary['seconds']:.1f} s"
        )
    if profile:
        typer.echo("where the time went, summed over processes (waiting: this process for its workers)")
        rows = [(part, f"{seconds:.2f}", f"{100 * share:.1f} %") for part, seconds, share in shares(result.profile)]
        show(("part", "seconds", "share"), rows)
    typer.echo(f"results in {folder}")


@app.command(name="compare")
def compare_(
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
    folder = out or _new_folder("compare")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output folder {folder} is a file")
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise ConfigError(f"output folder {folder} is not empty; give another --out, or --resume to go on with it")
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--algorithms {algorithms}: names joined by commas are expected, as in fedavg,scaffold")
    _compare(settings, names, seeds, compare.parse_sweep(sweep or []), folder, workers, quiet)


def _compare(
    settings: Config,
    names: Sequence[str],
    seeds: int,
    sweep: list[compare.Setting],
    folder: Path,
    workers: int | None,
    quiet: bool,
) -> None:
    runs = compare.plan_runs(settings, names, seeds, sweep, folder)
    make_runs(runs, folder, workers, quiet)
    rows = compare.summarise(settings, names, seeds, sweep, folder)
    compare.write_tables(rows, folder)
    show(compare.HEADER, [compare.cells(row) for row in rows])
    typer.echo(f"mean ± standard deviation over {seeds} seed{'s' * (seeds > 1)}; results in {folder}")


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
        raise _InterruptedError(
            f"finished runs are kept; go on with the same command and --out {folder} --resume"
        ) from None
    raise_first(failures)


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the screen."""
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console().print(table)


@app.command()
def demo(out: Out = None, quiet: Quiet = False) -> None:
    """A non-IID federation on real data, several algorithms side by side, in under a minute.

    Example: undrift demo
    """
    settings = parse(CONFIG)
    typer.echo(
        "scikit-learn's handwritten digits at 20 clients, each with 1 of the 10 classes;\n"
        "5 clients take part in a round. "
        f"{len(ALGORITHMS)} algorithms, {settings.train.rounds} rounds each, {SEEDS} seeds."
    )
    _compare(settings, ALGORITHMS, SEEDS, [()], out or _new_folder("demo"), None, quiet)


class _InterruptedError(Exception):
    pass


def _new_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    torch.set_num_threads(1)  # work is spread over processes; forked ones must not wait for threads they do not have
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except InputError as error:
        _fail(str(error), 2)
    except UndriftError as error:
        _fail(str(error), 1)
    except click.UsageError as error:
        _fail(f"{error.format_message()} (see undrift --help)", 2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except _InterruptedError as error:
        _fail(f"interrupted; {error}", 130)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"undrift: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
