"""A site that answers as it should, except in the rounds that a file beside its folder names: {round: kind}."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer
from flwr.app import RecordDict
from test_sites import bad
from worlds import parts

from undrift.federation.join import join
from undrift.federation.site import Site

folder, data, orders = (Path(argument) for argument in sys.argv[1:])
honest = Site.train


def train(self: Site, content: RecordDict) -> RecordDict:
    reply = honest(self, content)
    kinds = json.loads(orders.read_text()) if orders.exists() else {}
    kind = kinds.get(str(parts(content)[0]["round"]))
    return bad(kind, reply) if kind else reply


Site.train = train  # type: ignore[method-assign]
join(folder, data, typer.echo)
