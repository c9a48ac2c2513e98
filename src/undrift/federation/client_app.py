"""The ClientApp: Flower's messages in, the site's answers out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from undrift.federation.setup import SiteFolder
from undrift.federation.site import Site

app = ClientApp()
_sites: dict[tuple[str, str], Site] = {}


def site_of(context: Context) -> Site:
    """The site that this node is; its data are read once, not once for each message."""
    key = (str(context.node_config["folder"]), str(context.node_config["data"]))
    if key not in _sites:
        _sites[key] = Site(SiteFolder.read(Path(key[0])), Path(key[1]))
    return _sites[key]


def _answer(message: Message, act: Callable[[RecordDict], RecordDict]) -> Message:
    return Message(act(message.content), reply_to=message)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Who is there."""
    return _answer(message, site_of(context).hello)


@app.query("share")
def share(message: Message, context: Context) -> Message:
    """Shared data, if the site's operator allows it."""
    return _answer(message, site_of(context).share)


@app.query("commit")
def commit(message: Message, context: Context) -> Message:
    """The end of a run."""
    return _answer(message, site_of(context).commit)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's round."""
    return _answer(message, site_of(context).train)
