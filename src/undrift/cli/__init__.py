"""The ``undrift`` command: one module for each subcommand."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import torch
import typer
import typer.core

from undrift.cli import data, federation
from undrift.cli.compare import compare
from undrift.cli.conformal import conformal
from undrift.cli.cuts import cuts
from undrift.cli.demo import demo
from undrift.cli.diagnose import diagnose
from undrift.cli.init import init
from undrift.cli.options import InterruptedRunError
from undrift.cli.plot import plot
from undrift.cli.privacy import privacy
from undrift.cli.recipes import recipes, reproduce_, results_
from undrift.cli.report import report
from undrift.cli.rules import rules
from undrift.cli.run import run
from undrift.core.version import VERSION
from undrift.errors import InputError, UndriftError

typer.core.HAS_RICH = False  # help is plain text, in which Typer would escape brackets for Rich
app = typer.Typer(
    name="undrift",
    help="Federated learning when the clients' data are not alike.\n\nStart with: undrift demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(init)
app.command()(run)
app.command()(compare)
app.command()(diagnose)
app.command()(report)
app.command()(plot)
app.command()(conformal)
app.command()(cuts)
app.command()(rules)
app.command()(privacy)
app.command(name="recipes")(recipes)
app.command(name="reproduce")(reproduce_)
app.command(name="results")(results_)
app.add_typer(
    data.app,
    name="data",
    help="Data sets: what there is, fetch one, verify the files.\n\nExample: undrift data get cifar10",
)
app.add_typer(
    federation.app,
    name="federation",
    help="Real sites that keep their data, on Flower.\n\nExample: undrift federation init DIR --sites north,south",
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"undrift {VERSION}")
        raise typer.Exit


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    torch.set_num_threads(1)  # work is spread over processes; forked ones must not wait for threads they do not have
    try:
        code = app(standalone_mode=False, prog_name="undrift")
        sys.exit(code if isinstance(code, int) else 0)
    except InputError as error:
        _fail(str(error), 2)
    except UndriftError as error:
        _fail(str(error), 1)
    except click.UsageError as error:
        _fail(f"{error.format_message()} (see undrift --help)", 2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except InterruptedRunError as error:
        _fail(f"interrupted; {error}", 130)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"undrift: {message}", file=sys.stderr)
    sys.exit(code)
