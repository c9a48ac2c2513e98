"""``undrift federation serve``: Flower's SuperLink, with TLS and authentication of sites switched on."""

from __future__ import annotations

import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from undrift.errors import RunError
from undrift.federation.link import register
from undrift.federation.processes import child, last_lines, refuse_taken, until_stopped
from undrift.federation.setup import ServerFolder, check_expiry

_START = 180.0


def serve(folder: Path, say: Callable[[str], None], host: str = "0.0.0.0") -> None:
    """Serve until stopped."""
    server = ServerFolder.read(folder.absolute())
    check_expiry([server.folder / "server.pem", server.folder / "ca.pem"], say)
    refuse_taken(host, server.port)
    log = server.folder / "log" / "superlink.log"
    more = {"UNDRIFT_SERVER": str(server.folder)}
    with until_stopped(), child("superlink", _arguments(server, host), server.folder, log, **more) as process:
        _await(process, server, log)
        register(server)
        say(f"serving {', '.join(server.sites)} at {server.address}:{server.port}; log: {log}; stop with Ctrl-C")
        code = process.wait()
        raise RunError(f"Flower's SuperLink ended with exit code {code}: {last_lines(log)}")
    say("stopped")


def _arguments(server: ServerFolder, host: str) -> list[str]:
    at = server.folder
    return [
        "--host",
        host,
        "--port",
        str(server.port),
        "--isolation",
        "process",
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        "--superexec-auth-secret-file",
        str(at / "secret"),
        "--ssl-ca-certfile",
        str(at / "ca.pem"),
        "--ssl-certfile",
        str(at / "server.pem"),
        "--ssl-keyfile",
        str(at / "server.key"),
    ]


def _await(process: subprocess.Popen[bytes], server: ServerFolder, log: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(server.folder / "ca.pem"))
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"https://{server.local}/health", timeout=5, context=trusted):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.2)
    raise RunError(f"Flower's SuperLink did not start at port {server.port}: {last_lines(log)}")
