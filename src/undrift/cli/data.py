"""`undrift data`: what data sets there are, fetch one, verify the files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from undrift.cli.display import console
from undrift.core.text import printable
from undrift.core.words import nearest
from undrift.data.catalogue import CATALOGUE
from undrift.data.fetch import check as check_files
from undrift.data.fetch import fetch
from undrift.data.loading import NAMES, data_root
from undrift.errors import DataError

app = typer.Typer(name="data", help="List, fetch and verify data sets.", no_args_is_help=True)

BUILT_IN = {
    "digits": "Handwritten digits, 1,442 + 355 images 8x8, 10 classes (comes with scikit-learn)",
    "synthetic": "Gaussian features whose clients differ by a set amount (made when needed)",
    "npz": "Your own arrays: x_train, y_train, x_test, y_test, optionally client (data.path)",
    "csv": "your own table at data.path; data.label names the target",
    "images": "your own images at data.path, a folder for each class",
}

Root = Annotated[
    Path | None,
    typer.Option(help="Folder of data sets; default: $UNDRIFT_DATA, else the user's cache folder."),
]


@app.command(name="list", epilog="Example: undrift data list")
def list_sets(root: Root = None) -> None:
    """Show the data sets that a configuration can name, and which are there."""
    base = data_root(root)
    table = Table(title=escape(printable(f"Data sets in {base}")), title_justify="left")
    for heading in ("name", "there", "what"):
        table.add_column(heading, no_wrap=heading != "what")
    for name in NAMES:
        if name in CATALOGUE:
            table.add_row(name, "yes" if (base / CATALOGUE[name].folder).is_dir() else "no", CATALOGUE[name].title)
        else:
            table.add_row(name, "built in", BUILT_IN[name])
    console().print(table)


@app.command(epilog="Example: undrift data get cifar10")
def get(
    name: Annotated[str, typer.Argument(help="A name from `undrift data list`.")],
    root: Root = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Fetch a data set from its publisher; an interrupted download continues where it stopped."""
    if name in BUILT_IN:
        typer.echo(f"{name}: nothing to fetch")
        return
    typer.echo(f"{_known(name)}: {fetch(name, root, progress=not quiet)}")


@app.command(epilog="Example: undrift data check cifar10")
def check(
    name: Annotated[str | None, typer.Argument(help="One data set; default: all.")] = None,
    root: Root = None,
) -> None:
    """Verify the files; ends with code 1 if a set is damaged, or the one asked for is missing."""
    reports = check_files(None if name is None else _known(name), root)
    for report in reports:
        typer.echo(f"{report.name}: {report.status}" + (f" ({report.detail})" if report.detail else ""))
    if any(r.status == "damaged" or (name is not None and r.status == "missing") for r in reports):
        raise typer.Exit(1)


@app.command(epilog="Example: undrift data glyphs --font ~/DancingScript-Regular.otf")
def glyphs(
    font: Annotated[Path | None, typer.Option(help="A cursive font (TrueType or OpenType).")] = None,
    classes: Annotated[int, typer.Option(help="The first so many characters.", min=1, max=47)] = 45,
    root: Root = None,
) -> None:
    """Render characters for EMNIST as server data (FSLsyn): 15 images a class, 28x28."""
    from undrift.recipes.glyphs import write

    path = data_root(root) / "emnist" / f"glyphs-{classes}.npz"
    typer.echo(f"{write(path, font, classes)} images in {path}")


def _known(name: str) -> str:
    if name not in CATALOGUE:
        raise DataError(f"no data set {name!r} to fetch or check; {nearest(name, CATALOGUE)}")
    return name
