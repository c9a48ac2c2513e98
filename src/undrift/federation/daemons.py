"""Flower's two long-running processes, as scripts: ``daemons.py superlink|supernode ARGUMENTS``.

The SuperLink gets one more lock: only its own machine may start runs and register sites. (Flower serves the
sites' API and the operators' on one port, and the latter asks nobody for a password.) Both end when the process
that started them is gone. Nothing of undrift is imported here: these processes do without torch.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from typing import Any

_SITES = ("/v1/fleet/", "/health")
"""What other machines may ask for."""


class LocalOnly:
    """Refuses requests of other machines, except those that sites make."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and not scope["path"].startswith(_SITES) and not _local(scope):
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"only from the server's own machine"})
            return
        await self.app(scope, receive, send)


def _local(scope: Any) -> bool:
    try:
        return ipaddress.ip_address(scope["client"][0]).is_loopback
    except (TypeError, ValueError):
        return False


def watch_parent(parent: int) -> None:
    """End when the parent is gone, even if it could not say so."""

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(0.5)
        os._exit(1)

    if parent:
        threading.Thread(target=watch, daemon=True).start()


def superlink() -> None:
    """Serve until told to stop."""
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    config = _parse_superlink_lifespan_config()
    uvicorn.run(
        LocalOnly(create_app(config, SuperLinkLifespan)),
        host=config.host,
        port=config.port,
        access_log=False,
        proxy_headers=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        workers=1,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )


def supernode() -> None:
    """Connect a site until told to stop."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    watch_parent(int(os.environ.get("UNDRIFT_PARENT_PID", "0")))
    {"superlink": superlink, "supernode": supernode}[sys.argv.pop(1)]()
