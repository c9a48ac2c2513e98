"""A live page on this machine: the report of folders that are still being written."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from undrift.errors import ConfigError, UndriftError
from undrift.report.holdings import Holdings, holdings
from undrift.report.page import live_state, render
from undrift.report.runs import RunRecord
from undrift.report.story import Story, collect

LOOPBACK = "127.0.0.1"
FILES = ("metrics.jsonl", "rounds.jsonl", "summary.json", "config.toml", "conformal.json", "diagnosis.json")
"""What tells that something has changed."""


class Source:
    """The folders' story, told anew; who has what is worked out once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self._held: dict[Path, Holdings] = {}
        self._lock = threading.Lock()

    def story(self) -> Story:
        """What the folders tell now."""
        with self._lock:
            return collect(self.folders, self._hold)

    def version(self) -> str:
        """Changes whenever a file does."""
        marks = [
            (str(path), path.stat().st_mtime_ns, path.stat().st_size)
            for folder in self.folders
            for name in FILES
            for path in sorted(folder.rglob(name))
        ]
        return hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:16]

    def _hold(self, run: RunRecord) -> Holdings:
        if run.path not in self._held:
            self._held[run.path] = holdings(run)
        return self._held[run.path]


class Handler(BaseHTTPRequestHandler):
    """Two answers: the page, and what has changed since."""

    source: Source

    def do_GET(self) -> None:
        """Answer; only for who asks this machine by its own name."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        asked = urlsplit(self.path)
        if host not in (LOOPBACK, "localhost"):
            self._answer(403, "text/plain", b"only from this machine")
        elif asked.path == "/":
            self._tell("text/html; charset=utf-8", lambda: render(self.source.story(), live=True))
        elif asked.path == "/state":
            seen = parse_qs(asked.query).get("seen", [""])[0]
            self._tell("application/json", lambda: json.dumps(self._state(seen)))
        else:
            self._answer(404, "text/plain", b"no such page")

    def _state(self, seen: str) -> dict[str, Any]:
        version = self.source.version()
        return {"version": version} if version == seen else {"version": version, **live_state(self.source.story())}

    def _tell(self, kind: str, make: Any) -> None:
        try:
            self._answer(200, kind, make().encode())
        except (UndriftError, OSError) as error:
            self._answer(503, "text/plain; charset=utf-8", str(error).encode())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the page is asked for every other second."""


class Served:
    """A server under way."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.address = f"http://{LOOPBACK}:{server.server_address[1]}/"
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is interrupted."""
        while self._thread.is_alive():
            self._thread.join(0.5)


@contextmanager
def serve(folders: Sequence[Path], port: int = 0) -> Iterator[Served]:
    """Serve the live page on loopback; ends with the block."""
    source = Source(folders)
    source.story()  # refuse what cannot be told before anything is served
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), type("Bound", (Handler,), {"source": source}))
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}") from None
    try:
        yield Served(server)
    finally:
        server.shutdown()
        server.server_close()
