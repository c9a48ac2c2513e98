"""``undrift federation join``: Flower's SuperNode, and the process that answers its messages.

The ClientApp lives in this process (Flower's isolation mode "process"), so the data are read once, a round does
not wait for a new Python, and no code that comes over the network is ever run: the site runs the undrift that it
has installed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from undrift.core.numerics import settle
from undrift.core.text import printable
from undrift.data.formats import read_npz
from undrift.errors import RunError, UndriftError
from undrift.federation.client_app import app
from undrift.federation.link import ACQUIRE, heartbeat_of, patient
from undrift.federation.processes import child, free_port, trouble, until_stopped
from undrift.federation.setup import SiteFolder, check_expiry

_PAUSE = 0.2
_AGAIN = 5.0
"""Seconds after which a SuperNode that ended (its server was gone, say) is started again."""


def join(folder: Path, data: Path, say: Callable[[str], None]) -> None:
    """Take part until stopped."""
    site = SiteFolder.read(folder.absolute())
    check_expiry([site.folder / "ca.pem"], say)
    read_npz(data, ("x", "y"))
    settle()
    say(f"site {site.name}: {data} stays here; joining {site.server}; stop with Ctrl-C")
    with until_stopped(), tempfile.TemporaryDirectory(prefix="undrift-join-") as private:
        while True:
            try:
                _attend(site, data.absolute(), Path(private), say)
            except _UnansweredError as error:
                say(f"site {site.name}: {error}; connecting anew")
            time.sleep(_AGAIN)
    say("stopped")


def _attend(site: SiteFolder, data: Path, private: Path, say: Callable[[str], None]) -> None:
    """Run a SuperNode and answer its messages until it ends."""
    secret, port = secrets.token_bytes(32), free_port()
    with open(os.open(private / "secret", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
    log = site.folder / "log" / "supernode.log"
    arguments = _arguments(site, data, port, private / "secret")
    deadline = {"UNDRIFT_PULL_SECONDS": f"{site.message_timeout:g}"}
    with child("supernode", arguments, site.folder, log, **deadline) as process:
        for trouble_ in _tasks(process, f"127.0.0.1:{port}", secret, site.message_timeout):
            if trouble_:
                say(f"site {site.name}: {trouble_}")
        say(f"site {site.name}: not connected: {trouble(log)}; log: {log}; trying again")


def _arguments(site: SiteFolder, data: Path, port: int, secret: Path) -> list[str]:
    at = site.folder
    return [
        "--superlink",
        site.server,
        "--root-certificates",
        str(at / "ca.pem"),
        "--isolation",
        "process",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--superexec-auth-secret-file",
        str(secret),
        "--auth-supernode-private-key",
        str(at / "site.key"),
        "--node-config",
        f"folder={_quoted(at)} data={_quoted(data)}",
    ]


def _quoted(path: Path) -> str:
    text = str(path)
    if '"' in text or "'" in text:
        raise RunError(f"{path}: quotation marks in a path cannot be passed on to Flower")
    return f'"{text}"'


class _UnansweredError(Exception):
    """A message could not be answered; Flower's SuperNode would wait for the answer for ever."""


def _tasks(process: subprocess.Popen[bytes], address: str, secret: bytes, timeout: float) -> Iterator[str]:
    """Take and carry out tasks for as long as the SuperNode lives; says what went wrong with one."""
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE)
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with contextlib.closing(RuntimeHttpClient.from_server_address(address, True, None, [version, auth])) as client:
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                got = client.AcquireTask(request)
                if got.HasField("task") and got.token:
                    yield _carry_out(address, got.token, timeout)
                    continue
            time.sleep(_PAUSE)


def _carry_out(address: str, token: str, timeout: float) -> str:
    """Answer one message, whatever it is; returns what went wrong with it."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    interceptors: list[ProtobufClientInterceptor] = [version, RuntimeTokenHttpInterceptor(token)]
    client = RuntimeHttpClient.from_server_address(address, True, None, interceptors, retry_invoker=patient())
    heartbeat = heartbeat_of(client)
    with contextlib.closing(client):
        heartbeat.start()
        try:
            try:
                message, context, _, _ = _pulled(client, timeout)
            except Exception as error:  # it never came, or it is no message: there is nobody to answer
                return f"a message could not be received ({describe(error)})"
            reply, status, details = _reply(message, context)
            try:
                push_message(client, reply, context)
            except Exception as error:
                raise _UnansweredError(f"an answer could not be sent ({describe(error)})") from None
            push_task_output(client, context, status, details)
            return details
        finally:
            heartbeat.stop()


def _pulled(client: RuntimeHttpClient, timeout: float) -> Any:
    """The task's message, which must be here after a while."""
    defaults: Any = pull_and_inflate_object_from_tree.__kwdefaults__
    defaults["max_time"] = timeout
    return pull_task_input(client)


def describe(error: BaseException) -> str:
    """An error in one short line."""
    return printable(f"{type(error).__name__}: {error}", 300)


def _reply(message: Message, context: Context) -> tuple[Message, str, str]:
    try:
        return app(message=message, context=context), SubStatus.COMPLETED, ""
    except Exception as error:  # whatever goes wrong here must not end the site: the server is told instead
        reason = printable(str(error), 300) if isinstance(error, UndriftError) else describe(error)
        for place in ("data", "folder"):  # where things lie is nobody else's business
            reason = reason.replace(str(context.node_config[place]), f"the site's {place}")
        failed = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
        return Message(failed, reply_to=message), SubStatus.FAILED, reason
