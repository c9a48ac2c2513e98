"""``undrift report``: one HTML page of runs, comparisons, diagnoses and reproductions."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from undrift.errors import ConfigError, UndriftError

NAME = "report.html"


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or folders of folders.")],
    out: Annotated[Path | None, typer.Option(help="The file to write (default: DIR/report.html).")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Serve a live page at this machine until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="--watch: the port (0: any that is free).", min=0, max=65535)] = 0,
) -> None:
    """One self-contained HTML page: verdict, curves, federation, drift, clients, configuration.

    Example: undrift report runs/compare --open
    """
    if watch:
        _watch(folders, port, open_)
        return
    from undrift.report.page import write_report

    target = out or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    if target.is_dir():
        raise ConfigError(f"--out {target}: this is a folder; name a file, as in {target / NAME}")
    try:
        path = write_report(folders, target)
    except OSError as error:
        raise ConfigError(f"--out {target}: {error.strerror}") from None
    typer.echo(str(path))
    if open_:
        webbrowser.open(path.resolve().as_uri())


def _watch(folders: Sequence[Path], port: int, open_: bool) -> None:
    from undrift.report.watch import serve

    with serve(folders, port) as server:
        typer.echo(f"{server.address} (Ctrl-C ends it)")
        if open_:
            webbrowser.open(server.address)
        server.wait()


def offer(folder: Path, *, err: bool = False) -> None:
    """Write a command's report beside its results and say where (or on stderr); say why where that cannot be done."""
    from undrift.report.page import write_report

    try:
        typer.echo(f"report: {write_report([folder], folder / NAME)}", err=err)
    except (UndriftError, OSError) as error:
        typer.echo(f"no report: {error}", err=True)
