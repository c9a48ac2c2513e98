"""The ``undrift`` command: one module for each subcommand."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from typing import Annotated, TextIO

import click
import torch
import typer
import typer.core
import typer.main

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
from undrift.core.files import first_line
from undrift.core.text import printable
from undrift.core.version import VERSION
from undrift.errors import InputError, RunWarning, UndriftError

_DEBUG = "--debug"

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
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show where in the code an error happened.")] = False,
) -> None:
    if version:
        typer.echo(f"undrift {VERSION}")
        raise typer.Exit


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    torch.set_num_threads(1)  # work is spread over processes; forked ones must not wait for threads they do not have
    arguments = [word for word in sys.argv[1:] if word != _DEBUG]
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        warnings.simplefilter("always", RunWarning)
        try:
            code = _command()(args=arguments, standalone_mode=False, prog_name="undrift")
        except BaseException as error:
            if isinstance(error, Exception) and len(arguments) < len(sys.argv) - 1:
                traceback.print_exception(error)
            message, code = _told(error)
            if message:
                print(f"undrift: {printable(message)}", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


@functools.cache
def _command() -> click.Command:
    """The command, put together once: who calls it often in one process should not wait for that."""
    return typer.main.get_command(app)


def _told(error: BaseException) -> tuple[str, int]:
    """An error in one line, and the exit code."""
    match error:
        case InputError():
            return str(error), 2
        case UndriftError():
            return str(error), 1
        case click.UsageError():
            return f"{error.format_message()} (see undrift --help)", 2
        case click.exceptions.Exit():
            return "", error.exit_code
        case InterruptedRunError():
            return f"interrupted; {error}", 130
        case KeyboardInterrupt() | click.Abort():
            return "interrupted", 130
        case SystemExit():
            return "", error.code if isinstance(error.code, int) else 1
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left
            return "", 1
    return f"{_what(error)} ({_DEBUG} shows where)", 1


def _what(error: BaseException) -> str:
    """What is left when nothing better is known about an error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory" + (f": {first_line(error)}" if str(error) else "")
    return f"{type(error).__name__}: {first_line(error)}"


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"undrift: warning: {printable(str(message))}", file=sys.stderr)
