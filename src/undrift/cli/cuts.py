"""``undrift cuts``: where to cut a model for split learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from undrift.experiment.cuts import Cut


def cuts(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. model.name=vgg11.")
    ] = None,
) -> None:
    """Parameters and multiply-adds of each side for every cut, and the bytes of a round.

    Example: undrift cuts experiment.toml --set model.name=resnet18
    """
    from torch import nn

    from undrift.errors import ConfigError
    from undrift.experiment.config import read
    from undrift.experiment.cuts import cut_table, expected_visits
    from undrift.experiment.from_config import data_of, federation_of, model_of, plan_of

    settings = read(config, overrides or ())
    data = data_of(settings)
    federation, plan = federation_of(settings, data), plan_of(settings)
    model = model_of(settings, data)
    if not isinstance(model, nn.Sequential):
        raise ConfigError(f"model.name = {settings.model.name!r}: only an nn.Sequential can be cut")
    rows = cut_table(model, data.shape)
    clients, visits = expected_visits(plan, [int(size) for size in federation.sizes])
    show(settings.model.name, rows, clients, visits, federation.pool.bytes_each[1])


def show(model: str, rows: Sequence[Cut], clients: int, visits: int, label_bytes: int) -> None:
    """The cuts as a table."""
    from rich.table import Table

    from undrift.cli.display import console

    if not rows:
        typer.echo(f"{model} has fewer than two blocks, so it cannot be cut.")
        return
    table = Table(
        "cut",
        "last layer at client",
        "client parameters",
        "server parameters",
        "client madds",
        "server madds",
        "client share",
        "smashed",
        "MB down",
        "MB up",
        title=f"{model}: a round of {clients} clients with {visits:,} samples visited",
        title_justify="left",
    )
    for row in rows:
        down, up = row.bytes_per_round(clients, visits, label_bytes)
        table.add_row(
            str(row.blocks),
            row.last,
            f"{row.client.parameters:,}",
            f"{row.server.parameters:,}",
            f"{row.client.madds:,}",
            f"{row.server.madds:,}",
            f"{row.share:.1%}",
            f"{row.smashed:,}",
            f"{down / 1e6:,.1f}",
            f"{up / 1e6:,.1f}",
        )
    console().print(table)
    typer.echo("madds: multiply-adds of one sample's forward pass; smashed: numbers sent up for one sample.")
