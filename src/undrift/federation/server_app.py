"""The ServerApp: the loop over rounds, between the Grid that Flower hands over and the Grid's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

T = TypeVar("T")
MESSAGES = {"hello": "query.hello", "share": "query.share", "commit": "query.commit", "train": "train"}
"""Flower's types of our messages."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "undrift-run"
version = "1.0.0"
description = "Stands for a run of undrift; no code travels, sites run what they have installed."
license = "Apache-2.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "undrift"

[tool.flwr.app.components]
serverapp = "undrift.federation.server_app:app"
clientapp = "undrift.federation.client_app:app"
"""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Only ``undrift run`` starts runs: it brings the configuration and shows the progress."""
    raise RuntimeError("start this with: undrift run CONFIG.toml (engine.name = 'flower')")


def call(body: Callable[[Grid], T], grid: Grid, context: Context) -> T:
    """Run ``body`` as a ServerApp's main function and return what it returns."""
    results: list[T] = []
    own = ServerApp()

    @own.main()
    def _main(grid: Grid, context: Context) -> None:
        results.append(body(grid))

    own(grid=grid, context=context)
    return results[0]
