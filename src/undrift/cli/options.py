"""Options that several commands share, and where their results go."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. train.lr=0.05.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Out = Annotated[Path | None, typer.Option(help="Output folder (default: a new one under runs/).")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
AcceptData = Annotated[
    bool, typer.Option("--accept-changed-data", help="Resume although data, loss or starting model changed.")
]
AcceptVersions = Annotated[
    bool, typer.Option("--accept-changed-versions", help="Resume although undrift, torch or the processor changed.")
]
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration.")]


class InterruptedRunError(Exception):
    """Ctrl-C, with advice how to go on."""


def new_folder(name: str) -> Path:
    """A folder under ``runs/`` that is named after the time."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
