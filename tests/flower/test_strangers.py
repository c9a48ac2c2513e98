"""A federation among strangers: rogue sites, rogue servers, neighbours on the same machine."""

from __future__ import annotations

import asyncio
import base64
import datetime
import importlib
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
import numpy as np
import rogue as rogue_messages
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, RecordDict
from test_sites import run
from worlds import SITES, Nearby, federated, lost, parts, read_json, write_data

from forked import until
from undrift.core.files import read_lines
from undrift.errors import ConfigError, DataError, RunError, RunWarning
from undrift.experiment.config import Config
from undrift.federation import link, setup
from undrift.federation.daemons import SECRET_HEADER, Gate, Rhythm, _keys, proof_of
from undrift.federation.engine import Answer
from undrift.federation.messages import RAW, RefusedError, pack
from undrift.federation.processes import refuse_taken, until_stopped
from undrift.federation.serve import serve
from undrift.federation.setup import SiteFolder, check_expiry, init
from undrift.federation.site import Site, Task

pytestmark = pytest.mark.filterwarnings("ignore::undrift.errors.RunWarning")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_data(tmp_path)
    init(tmp_path / "fed", list(SITES))
    return tmp_path


def config(world: Path, algorithm: str = "fedavg", rounds: int = 2, **engine: Any) -> Config:
    return federated(world, algorithm, rounds, world / "fed" / "server", **engine)


def changed(reply: RecordDict, meta: dict[str, Any] | None = None, factor: float = 1.0) -> RecordDict:
    """A site's answer with other values, or its vector multiplied."""
    values, array = parts(reply)
    vector = np.frombuffer(array.data, np.float32) * np.float32(factor)
    out = pack(values | (meta or {}))
    out["vector"] = ArrayRecord({"vector": Array("float32", (len(vector),), RAW, vector.tobytes())})
    return out


def rogue(change: Callable[[RecordDict], Answer]) -> Callable[[str, int, RecordDict], Answer]:
    """South answers otherwise in round 2."""
    return lambda name, round, reply: change(reply) if (name, round) == ("south", 2) else reply


# A6: a site that does not answer, a server that died between announcing and sending.


class Deaf(Nearby):
    """North is connected and answers nothing."""

    def ask(self, what: str, contents: Any, timeout: float) -> dict[str, Answer]:
        answers = super().ask(what, {name: content for name, content in contents.items() if name != "north"}, timeout)
        return answers | ({"north": "no answer within 600 s"} if "north" in contents else {})


def test_a_resumed_run_goes_on_with_those_who_answer(world: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(config(world, rounds=3), Nearby(world / "fed", world), world / "out", stop=2)
    result = run(config(world, rounds=3), Deaf(world / "fed", world), world / "out", resume=True)
    assert lost(result.rounds)[3] == ["site north: no answer within 600 s"]
    with pytest.raises(RunError, match="2 of 3 sites answered: north: no answer"):
        run(config(world, rounds=3, min_sites=3), Deaf(world / "fed", world), world / "out", resume=True)
    with pytest.raises(RunError, match="site north: no answer"):
        run(config(world), Deaf(world / "fed", world))


def test_join_survives_whatever_a_task_does(monkeypatch: pytest.MonkeyPatch) -> None:
    join: Any = importlib.import_module("undrift.federation.join")

    class Heart:
        def start(self) -> None: ...
        def stop(self) -> None: ...

    class Client:
        def close(self) -> None: ...

    def never(*rest: Any) -> Any:
        raise TimeoutError("timeout or retry limit reached\x1b[2J")

    monkeypatch.setattr(join, "heartbeat_of", lambda client: Heart())
    monkeypatch.setattr(join.RuntimeHttpClient, "from_server_address", lambda *rest, **more: Client())
    monkeypatch.setattr(join, "pull_task_input", never)
    said = join._carry_out("127.0.0.1:1", "token", 1.0)
    assert "could not be received" in said
    assert "\x1b" not in said
    assert join.pull_and_inflate_object_from_tree.__kwdefaults__["max_time"] == 1.0


def test_a_server_started_anew_does_not_end_the_heartbeat_with_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []

    def refused() -> bool:
        beats.append(1)
        request = httpx.Request("POST", "https://127.0.0.1/v1/runtime/send-task-heartbeat")
        raise httpx.HTTPStatusError("401 Unauthorized", request=request, response=httpx.Response(401))

    monkeypatch.setattr(link, "make_task_heartbeat_fn_http", lambda client: refused)
    heartbeat = link.heartbeat_of(None)  # type: ignore[arg-type]
    heartbeat.start()
    until(lambda: beats, 20)
    assert heartbeat.is_running
    heartbeat.stop()


# A7, A10: the gate in front of the server.


def signed(site: Path, key: Path | None = None, seconds: float = 0.0) -> dict[str, str]:
    """What a site's SuperNode puts into a request; ``key``: signed with another one."""
    private: Any = load_ssh_private_key(((key or site) / "site.key").read_bytes(), None)
    time = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)).isoformat()
    public = setup._public_bytes(site / "site.pub")
    return {
        "flwr-public-key": base64.b64encode(public).decode(),
        "flwr-timestamp": time,
        "flwr-signature": base64.b64encode(private.sign(time.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
    }


def test_who_comes_through_the_gate(world: Path, tmp_path: Path) -> None:
    server, east = world / "fed" / "server", world / "fed" / "east"
    init(world / "other", ["unknown"])
    secret = (server / "secret").read_bytes()
    gate = Gate(None, _keys(server / "keys"), secret, most=5 << 20)
    proof = {SECRET_HEADER: proof_of(secret)}
    cases: list[tuple[int, str, str, dict[str, str]]] = [
        (200, "/v1/fleet/pull-messages", "10.0.0.7", signed(east)),
        (412, "/v1/fleet/pull-messages", "10.0.0.7", {}),
        (412, "/v1/fleet/pull-messages", "127.0.0.1", proof),
        (412, "/v1/fleet/pull-messages", "10.0.0.7", signed(world / "other" / "unknown")),
        (412, "/v1/fleet/pull-messages", "10.0.0.7", signed(east, world / "fed" / "north")),
        (412, "/v1/fleet/pull-messages", "10.0.0.7", signed(east, seconds=-4000)),
        (200, "/v1/control/start-run", "127.0.0.1", proof),
        (401, "/v1/control/start-run", "127.0.0.1", {}),
        (401, "/v1/control/stop-run", "::1", {SECRET_HEADER: "0" * 64}),
        (403, "/v1/control/start-run", "10.0.0.7", proof),
        (403, "/v1/runtime/acquire-task", "10.0.0.7", {}),
        (200, "/v1/runtime/acquire-task", "127.0.0.1", {}),
        (413, "/health", "10.0.0.7", {"content-length": "10"}),
    ]
    for status, path, host, headers in cases:
        assert answer(gate, path, host, headers)[0] == status, (path, host)


def answer(gate: Gate, path: str, host: str, headers: dict[str, str], body: int = 10) -> tuple[int, int]:
    """The status of the answer (200: passed on to an app that reads the body), and how many bytes were read."""
    seen: list[tuple[int, int]] = []

    async def go() -> None:
        read, sent = [0], list[int]()

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            while (message := await receive())["type"] == "http.request" and message["more_body"]:
                pass
            sent.append(200 if message["type"] == "http.request" else 499)

        async def receive() -> dict[str, Any]:
            size = min(1 << 20, body - read[0])
            read[0] += size
            return {"type": "http.request", "body": bytes(size), "more_body": read[0] < body}

        async def send(message: dict[str, Any]) -> None:
            if "status" in message:
                sent.append(message["status"])

        gate.app = inner
        pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
        await gate({"type": "http", "path": path, "client": (host, 1), "headers": pairs}, receive, send)
        seen.append((sent[0], read[0]))

    asyncio.run(go())
    return seen[0]


def test_a_huge_body_is_not_read(world: Path) -> None:
    server, east = world / "fed" / "server", world / "fed" / "east"
    gate = Gate(None, _keys(server / "keys"), b"secret", most=5 << 20)
    path, huge = "/v1/fleet/push-object", 600 << 20
    assert answer(gate, path, "10.0.0.7", {"content-length": str(huge)}, huge) == (412, 0)
    assert answer(gate, path, "10.0.0.7", signed(east) | {"content-length": str(huge)}, huge) == (413, 0)
    status, read = answer(gate, path, "10.0.0.7", signed(east), huge)  # without a length it is read as far as allowed
    assert (status, read <= 7 << 20) == (499, True)


# A8: a rogue site.


@pytest.mark.parametrize("count", ["visits", "steps"])
@pytest.mark.parametrize("value", [10**15, 10**6, 0, -1])
def test_counts_beyond_the_plan_make_a_site_lost(world: Path, count: str, value: int) -> None:
    exchange = Nearby(world / "fed", world)
    exchange.tamper = rogue(lambda reply: changed(reply, {count: value}))
    result = run(config(world, "fsl"), exchange)
    assert [f"{count} = {value}" in reason for reason in lost(result.rounds)[2]] == [True]


@pytest.mark.parametrize("samples", [10**13, 10**9])
def test_samples_that_nobody_has_are_refused(world: Path, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Site.hello

    def boast(self: Site, content: RecordDict) -> RecordDict:
        meta = parts(honest(self, content))[0]
        return pack(meta | ({"samples": samples} if self.settings.name == "south" else {}))

    monkeypatch.setattr(Site, "hello", boast)
    with pytest.raises(DataError, match=rf"site south says that it has {samples} samples; engine.most_samples"):
        run(config(world), Nearby(world / "fed", world))


@pytest.mark.parametrize("factor", [1e6, -1e6, 1e30])
def test_an_update_that_overflows_makes_its_site_lost(world: Path, factor: float) -> None:
    exchange = Nearby(world / "fed", world)
    exchange.tamper = rogue(lambda reply: changed(reply, factor=factor))
    result = run(config(world, rounds=4), exchange)
    assert len(lost(result.rounds)[2]) == 1
    assert "site south" in lost(result.rounds)[2][0]
    assert lost(result.rounds)[4] == []
    assert result.summary["final_loss"] < 10


def test_large_updates_are_recorded_and_said(world: Path) -> None:
    exchange = Nearby(world / "fed", world)
    exchange.tamper = rogue(lambda reply: changed(reply, factor=-10.0))
    with pytest.warns(RunWarning, match=r"round 2: the update of site south is \d+\.\d times as large"):
        run(config(world, rounds=3), exchange, world / "out")
    norms = {line["round"]: line["norms"] for line in read_lines(world / "out" / "sites.jsonl")}
    assert sorted(norms) == [1, 2, 3]
    assert set(norms[1]) == set(SITES)
    assert norms[2]["south"] > 5 * norms[2]["east"]


def test_a_bound_on_updates(world: Path) -> None:
    with pytest.raises(RunError, match=r"engine.max_norm = 1e-09"):
        run(config(world, max_norm=1e-9), Nearby(world / "fed", world))


def test_terminal_escapes_do_not_arrive(world: Path) -> None:
    exchange = Nearby(world / "fed", world)
    exchange.tamper = rogue(lambda reply: changed(reply, {"run": "\x1b]0;gotcha\x07"}))
    reasons = lost(run(config(world), exchange).rounds)[2]
    assert len(reasons) == 1
    assert reasons[0].isprintable()


def test_mutated_messages(tmp_path: Path) -> None:
    """A short part of the campaign: what a rogue site or server may send, always the same."""
    found, draw = list[str](), random.Random(7)
    scene = rogue_messages.scene(tmp_path / "scene")
    for kind, count in {"replies": 200, "hellos": 100, "orders": 60, "runs": 2}.items():
        for _ in range(count):
            rogue_messages.KINDS[kind](draw, scene, found.append)
    assert found == []


# A9: a rogue server.


def train_message(world: Path, **changes: Any) -> RecordDict:
    """A message as the server sends it, with other settings."""
    settings = {
        "seed": 0,
        "model": {"name": "linear"},
        "algorithm": {"name": changes.pop("algorithm", "fedavg")},
        "train": {"batch_size": 10, "lr": 0.1} | changes.pop("train", {}),
    }
    task = Task((8,), 3, None, None).to_json()
    meta = {
        "run": "0" * 32,
        "round": 1,
        "lr": 0.1,
        "client": 0,
        "clients": 3,
        "accepted": 0,
        "safe": 0,
        "shared": 0,
        "settings": json.dumps(settings),
        "task": task,
    }
    return pack(meta | changes, torch.zeros(27))


def site_of(world: Path, **policy: Any) -> Site:
    path = world / "fed" / "east" / "site.toml"
    lines = [line for line in path.read_text().splitlines() if line.split(" ")[0] not in policy]
    path.write_text("\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in policy.items())]) + "\n")
    return Site(SiteFolder.read(world / "fed" / "east"), world / "east.npz")


@pytest.mark.parametrize(
    ("changes", "policy", "word"),
    [
        ({"train": {"batch_size": 1, "local_steps": 1}}, {}, "least_batch"),
        ({"train": {"local_steps": 2**31 - 1}}, {}, "most_steps"),
        ({"train": {"local_steps": 10**12}}, {}, "local_steps"),
        ({"train": {"local_steps": 3}}, {"most_steps": 2}, "most_steps"),
        ({"algorithm": "scaffold"}, {"algorithms": ["fedavg"]}, "scaffold"),
        ({"round": 4}, {"most_rounds": 3}, "most_rounds"),
        ({"clients": 10**12}, {}, "does not exist"),
        *(({"lr": lr}, {}, "a rate of") for lr in (1e308, -1.0, 0.0, 1e-320, float("nan"), float("inf"))),
        *(({name: -1}, {}, "does not exist") for name in ("round", "accepted", "safe")),
        ({"task": '{"shape": [1000000000000], "classes": 3, "mean": null, "std": null}'}, {}, "description"),
        ({"task": "[" * 100_000}, {}, "description"),
        ({"settings": "[" * 100_000}, {}, "settings"),
    ],
)
def test_a_site_refuses_what_its_operator_does_not_allow(
    world: Path, changes: dict[str, Any], policy: dict[str, Any], word: str
) -> None:
    with pytest.raises(RefusedError, match=word):
        site_of(world, **policy).train(train_message(world, **changes))


@pytest.mark.parametrize("labels", [["x"], [0.5], [True], [2**62], [-1], [0, 1]])
def test_shared_data_must_be_data(world: Path, labels: list[Any]) -> None:
    meta = {"run": "0" * 32, "task": Task((8,), 3, None, None).to_json(), "labels": labels}
    with pytest.raises(RefusedError, match=r"labels|shape"):
        site_of(world, allow_shared_data=True).share(pack(meta, torch.zeros(8)))


def test_a_site_counts_its_rounds_over_all_runs(world: Path) -> None:
    site = site_of(world, most_rounds=2)
    for run_name in ("1" * 32, "2" * 32):
        site.train(train_message(world, run=run_name))
    with pytest.raises(RefusedError, match="most_rounds"):
        site_of(world, most_rounds=2).train(train_message(world, run="3" * 32))


def test_what_a_site_says_of_itself_stays_short(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Site, "hello", lambda self, content: pack({"\x1b[2J" + "k" * 100_000: 1}))
    with pytest.raises(RunError, match="site east: the message holds") as refused:
        run(config(world), Nearby(world / "fed", world))
    assert len(str(refused.value)) < 400
    assert str(refused.value).isprintable()


def test_hello_does_not_say_where_the_data_lie(world: Path) -> None:
    np.savez(world / "east.npz", x=np.zeros((5, 7), np.float32), y=np.zeros(5, np.int64))
    task = Task((8,), 3, None, None).to_json()
    meta = parts(site_of(world).hello(pack({"task": task})))[0]
    assert "shape" in meta["problem"]
    assert str(world) not in meta["problem"]


def test_what_a_site_keeps_is_for_nobody_else(world: Path) -> None:
    site = site_of(world)
    with until_stopped():
        site.train(train_message(world))
    kept = list((world / "fed" / "east" / "state").rglob("*"))
    assert kept
    assert [path for path in (*kept, world / "fed" / "east") if path.stat().st_mode & 0o077] == []


def test_a_site_that_had_work_asks_soon_and_an_idle_one_seldom() -> None:
    pauses: list[float] = []
    rhythm = Rhythm(pauses.append)
    for _ in range(40):
        rhythm.sleep(3)
    assert pauses[0] == 0.2
    assert pauses == sorted(pauses)
    assert pauses[-1] == 3.0
    rhythm.sleep(0.5)  # it waits for its own answer: there was work
    rhythm.sleep(3)
    assert pauses[-2:] == [0.1, 0.2]


# A10: neighbours.


def test_a_second_server_at_one_port_is_refused_at_once(world: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=f"port {port} at 127.0.0.1: .*in use"):
            refuse_taken("127.0.0.1", port)
        init(world / "two", ["a"], port=port)
        with pytest.raises(RunError, match="another server"):
            serve(world / "two" / "server", print, "127.0.0.1")


def test_certificates_that_end(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    check_expiry([world / "fed" / "server" / "server.pem"], said.append)
    assert said == []
    assert "valid until 20" in (world / "fed" / "README.md").read_text()
    monkeypatch.setattr(setup, "_DAYS", 20)
    init(world / "short", ["a"])
    check_expiry([world / "short" / "server" / "server.pem"], said.append)
    assert "expires on" in said[0]
    monkeypatch.setattr(setup, "_DAYS", -0.01)
    init(world / "ended", ["a"])
    with pytest.raises(ConfigError, match="expired on"):
        serve(world / "ended" / "server", said.append, "127.0.0.1")


def test_the_memory_of_rounds_that_a_damaged_checkpoint_needs_stays(world: Path) -> None:
    """A run whose newest checkpoint is damaged goes back one more, and so do its sites."""
    whole = run(config(world, "scaffold", 5), Nearby(world / "fed", world), world / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config(world, "scaffold", 5), Nearby(world / "fed", world), world / "out", stop=4)
    state = world / "out" / "checkpoint" / "state.json"
    newest = read_json(state)["round"]
    state.write_text(state.read_text()[:-30])
    with pytest.warns(RunWarning, match=f"going on from round {newest - 1}"):
        result = run(config(world, "scaffold", 5), Nearby(world / "fed", world), world / "out", resume=True)
    assert result.server is not None
    assert whole.server is not None
    assert torch.equal(result.server.x, whole.server.x)
