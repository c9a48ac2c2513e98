"""The connection of ``undrift run`` to the SuperLink on the same machine.

``undrift run`` is itself the process of the ServerApp (Flower's isolation mode "process"): it registers a run,
takes the task that the SuperLink makes of it, and holds the Grid until the run is over. So the progress display,
the output folder, interruption and exit codes are those of every other run.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from undrift.core.signals import impatient
from undrift.core.text import printable
from undrift.errors import RunError
from undrift.federation.daemons import SECRET_HEADER, proof_of
from undrift.federation.engine import Answer
from undrift.federation.server_app import MESSAGES, PROJECT, call
from undrift.federation.setup import ServerFolder

T = TypeVar("T")
_POLL = 0.3
_PATIENCE = 30.0
"""Seconds for which a SuperLink that does not answer is asked again."""
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def patient() -> RetryInvoker:
    """Asks again for a while when the connection fails; an answer, whatever it is, is an answer."""
    return RetryInvoker(lambda: exponential(max_delay=5), (httpx.TransportError,), max_tries=None, max_time=_PATIENCE)


def control(server: ServerFolder) -> ControlHttpClient:
    """The operators' API of this machine's SuperLink."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    interceptors: list[ProtobufClientInterceptor] = [CliClientHttpInterceptor(), version, _Proof(server.secret)]
    return ControlHttpClient.from_server_address(server.local, False, server.ca, interceptors)


class _Proof:
    """Shows that this process may read the server's secret."""

    def __init__(self, secret: bytes) -> None:
        self.proof = proof_of(secret)

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Add the proof to a request."""
        context.request.headers[SECRET_HEADER] = self.proof
        return call_next(context)


def register(server: ServerFolder) -> None:
    """Tell the SuperLink which keys belong to sites."""
    with contextlib.closing(control(server)) as client:
        for name, key in server.keys().items():
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))


class Link:
    """Messages over the Grid, to sites by name."""

    def __init__(self, grid: Grid, server: ServerFolder) -> None:
        self.grid = grid
        self.names = {key: name for name, key in server.keys().items()}

    def nodes(self) -> dict[str, int]:
        """The sites that are connected; a site is known by its key."""
        found: Any = self.grid.get_nodes()
        return {self.names[n.public_key]: n.node_id for n in found if n.public_key in self.names}

    def await_sites(self, names: Sequence[str], enough: int, timeout: float) -> list[str]:
        """Wait until ``enough`` of these sites are connected; returns those that are."""
        end = time.monotonic() + timeout
        while True:
            if impatient():
                raise KeyboardInterrupt
            with _reaching():
                here = self.nodes()
            if sum(name in here for name in names) >= enough or time.monotonic() > end:
                return [name for name in names if name in here]
            time.sleep(_POLL)

    def ask(self, what: str, contents: Mapping[str, RecordDict], timeout: float) -> dict[str, Answer]:
        """One message to each of some sites, by name; waits at most ``timeout`` seconds."""
        if not contents:
            return {}
        with _reaching():
            return self._ask(MESSAGES[what], contents, timeout)

    def _ask(self, kind: str, contents: Mapping[str, RecordDict], timeout: float) -> dict[str, Answer]:
        nodes, answers = self.nodes(), dict[str, Answer]()
        waiting: dict[str, str] = {}
        for name, content in contents.items():
            if name not in nodes:
                answers[name] = "is not connected"
                continue
            # Message by message: together they may be larger than one request may be.
            message = Message(content, nodes[name], kind, ttl=timeout + 60)
            ids = list(self.grid.push_messages([message]))
            if ids and ids[0]:
                waiting[ids[0]] = name
            else:
                answers[name] = "the message could not be sent"
        end = time.monotonic() + timeout
        while waiting and time.monotonic() < end:
            if impatient():  # a stop was asked for: the round is given up
                raise KeyboardInterrupt
            for reply in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(reply.metadata.reply_to_message_id)
                answers[name] = reply.content if reply.has_content() else _reason(reply)
            if waiting:
                time.sleep(_POLL)
        return answers | dict.fromkeys(waiting.values(), f"no answer within {timeout:g} s")


def _reason(reply: Message) -> str:
    return printable((reply.error.reason or "an error without a reason").strip(), 500)


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, RunNotRunningException) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"the federation's server cannot be reached ({what}); start it with `undrift federation serve` "
            "and go on with --resume"
        ) from None


def on_grid(server: ServerFolder, body: Callable[[Grid], T]) -> T:
    """Run ``body`` as the ServerApp of a new run."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with _reaching():
        grid, context = _new_run(server)
    heartbeat = heartbeat_of(grid._runtime_client)
    heartbeat.start()
    status, details = SubStatus.FAILED, "interrupted"
    try:
        result = call(body, grid, context)
        status, details = SubStatus.COMPLETED, ""
        return result
    except Exception as error:
        details = str(error)
        raise
    finally:
        heartbeat.stop()
        grid._retry_invoker.max_tries = 1
        with contextlib.suppress(httpx.HTTPError, RunNotRunningException):
            grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        grid.close()


def heartbeat_of(client: RuntimeHttpClient) -> HeartbeatSender:
    """Tells Flower that this process lives. A server that was started anew refuses, which is said where it matters."""
    beat = make_task_heartbeat_fn_http(client)

    def steady() -> bool:
        try:
            return beat()
        except httpx.HTTPError:
            return False

    return HeartbeatSender(steady)


def _new_run(server: ServerFolder) -> tuple[HttpGrid, Context]:
    fab, _ = build_fab_from_files({"pyproject.toml": PROJECT.encode()})
    proto = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
    with contextlib.closing(control(server)) as client:
        run_id = client.StartRun(StartRunRequest(fab=proto)).run_id
    grid = HttpGrid(server.local, False, server.ca, token=_token(server, run_id))
    grid._retry_invoker = patient()
    task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    grid.set_run(run_from_proto(task.run))
    context = context_from_proto(task.context)
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = context.node_id
    return grid, context


def _token(server: ServerFolder, run_id: int) -> str:
    """Take the run's task; this machine's secret entitles us to."""
    auth = SuperExecAuthHttpInterceptor(master_secret=server.secret, protected_methods=ACQUIRE)
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    client = RuntimeHttpClient.from_server_address(server.local, False, server.ca, [version, auth])
    with contextlib.closing(client):
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if got.HasField("task") and got.token and got.task.run_id == run_id:
                return str(got.token)
            time.sleep(0.1)
    raise RunError("the federation's server gave this run no task; is another run under way?")
