"""``undrift conformal``: how large sets of classes must be to hold the true one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Method(StrEnum):
    """How sets are made."""

    raps = "raps"
    aps = "aps"


def conformal(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    level: Annotated[float, typer.Option(help="The wanted coverage, between 0 and 1.")] = 0.9,
    method: Annotated[Method, typer.Option(help="How sets are made.")] = Method.raps,
    randomised: Annotated[bool, typer.Option("--randomised", help="Exact coverage; sets may be empty.")] = False,
) -> None:
    """Prediction sets of a finished model: coverage and mean set size on held-out data, overall and by client.

    Example: undrift conformal runs/first --level 0.9 --method raps
    """
    from undrift.experiment import conformal as sets

    show(sets.conformal(folder, level, method.value, randomised=randomised), folder)


def show(result: dict[str, Any], folder: Path) -> None:
    """The curve as a table, and one sentence about the wanted level."""
    from rich.table import Table

    from undrift.cli.display import console

    table = Table("level", "coverage", "mean size", "clients: least coverage", "clients: largest size")
    for point in result["curve"]:
        least = min(client["coverage"] for client in point["clients"])
        most = max(client["size"] for client in point["clients"])
        table.add_row(*(f"{v:.3f}" for v in (point["level"], point["coverage"], point["size"], least, most)))
    console().print(table)
    wanted = next(point for point in result["curve"] if point["level"] == result["level"])
    typer.echo(
        f"{result['method'].upper()} sets at level {wanted['level']:g} hold the true class in "
        f"{wanted['coverage']:.1%} of {result['evaluation_samples']} held-out samples, "
        f"with {wanted['size']:.2f} classes a set (calibrated on {result['calibration_samples']} others); "
        f"written to {folder / 'conformal.json'}"
    )
