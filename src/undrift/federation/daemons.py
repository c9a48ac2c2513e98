"""Flower's two long-running processes, as scripts: ``daemons.py superlink|supernode ARGUMENTS``.

The SuperLink gets a gate in front. Flower serves the sites' API and the operators' on one port, asks nobody for a
password on the latter, and reads a request whole before it looks at who sent it. The gate looks first: a site must
sign with a key of this federation, an operator must be on this machine and know the server's secret, and a body may
not be larger than any message is. Both processes end when the process that started them is gone. Nothing of undrift
is imported here: these processes do without torch.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import datetime
import hashlib
import hmac
import ipaddress
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SITES, OPERATORS, HEALTH = "/v1/fleet/", "/v1/control/", "/health"
LARGEST = 32 << 20
"""Bytes of the largest request: Flower cuts messages into pieces of 5 MB."""
SECRET_HEADER = "undrift-secret"
UNKNOWN_SITE = 412, '{"code": 2004, "detail": "not signed by a site of this federation"}'
"""Flower's own answer to such a site; after another one a SuperNode ends without a word, or not at all."""
_PR_SET_PDEATHSIG = 1
_CLOCKS = 305.0
"""Seconds by which two machines' clocks may differ, as in Flower."""


def proof_of(secret: bytes) -> str:
    """What an operator shows instead of the secret itself."""
    return hmac.new(secret, b"undrift control", hashlib.sha256).hexdigest()


class Gate:
    """Refuses requests before their bodies are read: strangers', other machines' at the operators' API, huge ones."""

    def __init__(self, app: Any, keys: Iterable[bytes], secret: bytes, most: int = LARGEST) -> None:
        self.app, self.most = app, most
        self.keys, self.proof = frozenset(keys), proof_of(secret)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        await self.app(scope, _Bounded(receive, self.most), send)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        path, length = scope["path"], headers.get("content-length", "0")
        if path.startswith(SITES):
            if not self._signed(headers):
                return UNKNOWN_SITE
        elif path != HEALTH and not _local(scope):
            return 403, "only from the server's own machine"
        elif path.startswith(OPERATORS) and not hmac.compare_digest(
            headers.get(SECRET_HEADER, "").encode(), self.proof.encode()
        ):
            return 401, "only with the server's secret"
        if not length.isdigit() or int(length) > (0 if path == HEALTH else self.most):
            return 413, "larger than any message"
        return None

    def _signed(self, headers: dict[str, str]) -> bool:
        """Whether a key of this federation signed the request's time; Flower checks later whose message it is."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            key = base64.b64decode(headers["flwr-public-key"], validate=True)
            signed = headers["flwr-timestamp"]
            age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(signed)
            if key not in self.keys or abs(age.total_seconds()) > _CLOCKS:
                return False
            signature = base64.b64decode(headers["flwr-signature"], validate=True)
            public: Any = serialization.load_pem_public_key(key)
            public.verify(signature, signed.encode(), ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature):
            return False
        return True


class _Bounded:
    """A request's body, which ends with an error where it is longer than allowed, whatever its header said."""

    def __init__(self, receive: Any, most: int) -> None:
        self.receive, self.left = receive, most

    async def __call__(self) -> Any:
        message = await self.receive()
        self.left -= len(message.get("body", b""))
        return message if self.left >= 0 else {"type": "http.disconnect"}


async def _answer(send: Any, status: int, text: str) -> None:
    headers = [(b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


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
        if sys.platform == "linux":  # at once
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        threading.Thread(target=watch, daemon=True).start()


def superlink() -> None:
    """Serve until told to stop."""
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    config = _parse_superlink_lifespan_config()
    server = Path(os.environ["UNDRIFT_SERVER"])
    uvicorn.run(
        Gate(create_app(config, SuperLinkLifespan), _keys(server / "keys"), (server / "secret").read_bytes()),
        host=config.host,
        port=config.port,
        access_log=False,
        proxy_headers=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        workers=1,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )


def _keys(folder: Path) -> list[bytes]:
    """The sites' public keys, as they stand in a request."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    loaded = [load_ssh_public_key(path.read_bytes()) for path in sorted(folder.glob("*.pub"))]
    return [key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in loaded]


class Rhythm:
    """The ``time`` of Flower's SuperNode, which asks the server for work every three seconds, come what may.

    One that was just given work will soon be given more, so it asks soon; one that is idle asks ever less often, down
    to Flower's own rhythm. Shorter pauses are those in which it waits for an answer from its own machine.
    """

    LONGEST, SOON, NEARBY = 3.0, 0.2, 0.1

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep, self._pause = sleep, self.SOON

    def sleep(self, seconds: float) -> None:
        """Pause instead of the many seconds that Flower means."""
        if seconds < self.LONGEST:
            self._pause = self.SOON
            self._sleep(min(seconds, self.NEARBY))
        else:
            self._sleep(self._pause)
            self._pause = min(1.2 * self._pause, self.LONGEST)

    def __getattr__(self, name: str) -> Any:
        """Everything else is as it was."""
        return getattr(time, name)


def supernode() -> None:
    """Connect a site until told to stop; a message that does not arrive in time is given up."""
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    defaults: Any = inflatable_utils.pull_objects.__kwdefaults__
    defaults["max_time"] = float(os.environ.get("UNDRIFT_PULL_SECONDS", "300"))
    inner: Any = start_client_internal
    inner.time = Rhythm()
    code: object = 0
    try:
        flower_supernode()
    except SystemExit as end:
        code = end.code
    except BaseException:  # such as a second signal while Flower ends because of a first one
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)  # threads of Flower's would keep a site that never connects again


if __name__ == "__main__":
    watch_parent(int(os.environ.get("UNDRIFT_PARENT_PID", "0")))
    {"superlink": superlink, "supernode": supernode}[sys.argv.pop(1)]()
