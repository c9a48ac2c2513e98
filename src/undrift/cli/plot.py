"""``undrift plot``: pictures of finished or running runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plot(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or folders of folders.")],
    out: Annotated[Path | None, typer.Option(help="Where pictures go (default: DIR/plots).")] = None,
) -> None:
    """Pictures of finished or running runs, PNG and SVG: progress, drift, partition, prediction sets.

    Example: undrift plot runs/compare --out pictures
    """
    from undrift.experiment.run_folder import check_output
    from undrift.report.pictures import draw

    target = out or (folders[0] / "plots" if len(folders) == 1 else Path("plots"))
    check_output(target)
    paths, remarks = draw(folders, target)
    for remark in remarks:
        typer.echo(remark, err=True)
    for path in paths:
        typer.echo(str(path))
