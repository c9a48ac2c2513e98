"""A headless Chromium, spoken to over its DevTools protocol: enough to open a page, look, click and print."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--remote-debugging-address=127.0.0.1",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
PATIENCE = 240.0


class Browser:
    """One browser with one page; everything that the page complains about is kept in ``complaints``."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._id = 0
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._open = contextlib.ExitStack()
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
        self._open.callback(_end, process)
        port, path = _until(lambda: _written(folder / "DevToolsActivePort"))
        self._socket = self._open.enter_context(connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None))
        target = self._send("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in target if one["type"] == "page")
        self._session = self._send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to the page."""
        return self._send(method, session=self._session, **parameters)

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._id += 1
        number = self._id
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE))
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([one.get("value") for one in told["args"]]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression in the page is true."""
        return _until(lambda: self.run(script))

    def size(self, width: int, height: int = 900, *, dark: bool = False, media: str = "") -> None:
        """Set the size of the window, and what a page is told about its surroundings."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, address: str) -> float:
        """Open a report and wait for its charts; returns the seconds that the page's thread was at work for them."""
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && Boolean(document.body.dataset.drawn)")
        told = {one["name"]: float(one["value"]) for one in self.call("Performance.getMetrics")["metrics"]}
        return told["TaskDuration"]

    def mouse(self, x: float, y: float) -> None:
        """Move the mouse there."""
        for step in (3, 0):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot, of the whole page or of the window."""
        told = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(told["data"]))

    def printed(self) -> bytes:
        """The page as a PDF, in the format A4."""
        told = self.call(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True, preferCSSPageSize=False
        )
        return base64.b64decode(told["data"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the browser and the processes that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def _written(path: Path) -> list[str] | None:
    lines = path.read_text().splitlines() if path.exists() else []
    return lines if len(lines) == 2 else None


def _until(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.02)
    raise TimeoutError("the browser did not get there")
