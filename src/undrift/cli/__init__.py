"""The ``undrift`` command: one module for each subcommand, imported when it is used."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from typing import Annotated, TextIO

import click
import typer
import typer.core
import typer.main

from undrift.cli.commands import Commands
from undrift.cli.options import InterruptedRunError
from undrift.core.files import first_line
from undrift.core.text import printable
from undrift.core.version import VERSION
from undrift.errors import InputError, RunWarning, UndriftError

_DEBUG = "--debug"

typer.core.HAS_RICH = False  # help is plain text, in which Typer would escape brackets for Rich
app = typer.Typer(
    name="undrift",
    cls=Commands,
    help="Federated learning when the clients' data are not alike.\n\nStart with: undrift demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show where in the code an error happened.")] = False,
) -> None:
    if "torch" in sys.modules:  # work is spread over processes; forked ones must not wait for threads they do not have
        sys.modules["torch"].set_num_threads(1)
    if version:
        typer.echo(f"undrift {VERSION}")
        raise typer.Exit


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
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
