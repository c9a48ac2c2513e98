"""Sites and server over an exchange without processes: same bits, refusals, memories, resumption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from worlds import ALGORITHMS, SITES, Nearby, federated, local, lost, parts, read_json, server_port, write_data

from undrift.core.tree import flatten
from undrift.errors import ConfigError, DataError, RunError
from undrift.experiment.config import Config
from undrift.experiment.run_folder import RunFolder
from undrift.federation.engine import Answer
from undrift.federation.messages import RAW, RefusedError, meta_of, pack, vector_of
from undrift.federation.run import over, refuse
from undrift.federation.setup import init
from undrift.rounds.loop import Result, Run
from undrift.rounds.messages import Broadcast, ClientTask
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_data(tmp_path)
    init(tmp_path / "fed", list(SITES))
    return tmp_path


def run(
    config: Config, exchange: Nearby, out: Path | None = None, resume: bool = False, stop: int | None = None
) -> Result:
    def body(work: Work, make: Any) -> Result:
        folder = None if out is None else RunFolder(out, config.complete(), resume=resume)
        each = _Stop(stop)
        return Run(work, make_engine=make, folder=folder, progress=each, checkpoint_seconds=0.0).go()

    return over(config, exchange, SITES, out, resume, body)


class _Stop:
    """Ends a run after a round, as a kill would."""

    def __init__(self, after: int | None) -> None:
        self.after = after

    def __call__(self, round: int, rounds: int, record: Any) -> None:
        if round == self.after:
            raise KeyboardInterrupt


def same(one: Result, other: Result) -> bool:
    assert one.server is not None
    assert other.server is not None
    return torch.equal(one.server.x, other.server.x)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "feddyn", "slowmo", "fedprox"])
def test_same_bits_as_the_simulation(world: Path, algorithm: str) -> None:
    exchange = Nearby(world / "fed", world)
    result = run(federated(world, algorithm, 3, world / "fed" / "server"), exchange)
    simulated = local(world, algorithm, 3)
    assert same(simulated, result)
    for key in ("bytes_down", "bytes_up", "final_accuracy"):
        assert simulated.summary[key] == result.summary[key]


class Leaving(Nearby):
    """North is away in round 2."""

    round = 0

    def await_sites(self, names: Sequence[str], enough: int, timeout: float) -> list[str]:
        if enough == 1:  # the question before a round; the roll call wants all sites, the end none
            self.round += 1
            self.away = {"north"} if self.round == 2 else set()
        return super().await_sites(names, enough, timeout)


def test_a_lost_site_keeps_its_memory_and_comes_back(world: Path) -> None:
    exchange, config = Nearby(world / "fed", world), federated(world, "scaffold", 4, world / "fed" / "server")

    def silent(name: str, round: int, reply: RecordDict) -> Answer:
        # North trains in round 2, and stages its memory, but its answer never arrives.
        return "no answer within 60 s" if (name, round) == ("north", 2) else reply

    exchange.tamper = silent
    result = run(config, exchange, world / "out")
    assert lost(result.rounds)[2] == ["site north: no answer within 60 s"]
    assert [line["lost"] for line in result.rounds if line["round"] != 2] == [[], [], []]
    # The same as if it had not been there at all.
    init(world / "again", list(SITES))
    away = Leaving(world / "again", world)
    absent = run(config, away)
    assert lost(absent.rounds)[2] == ["site north: is not connected"]
    assert same(result, absent)


def bad(kind: str, reply: RecordDict) -> RecordDict:
    """An answer that must be refused."""
    meta, array = parts(reply)
    vector = torch.frombuffer(bytearray(array.data), dtype=torch.float32)
    if kind == "shape":
        return pack(meta, vector[:-1])
    if kind == "larger":
        return pack(meta, torch.cat([vector, vector]))
    if kind == "dtype":
        return pack(meta, vector.double())
    if kind in ("nan", "inf"):
        vector[3] = float(kind)
        return pack(meta, vector)
    if kind == "round":
        return pack(meta | {"round": meta["round"] - 1}, vector)
    if kind == "loss":
        return pack(meta | {"loss": float("nan")}, vector)
    if kind == "extra":
        more = pack(meta, vector)
        more["more"] = ConfigRecord({"a": b"x" * 1000})
        return more
    if kind == "pickle":
        record = RecordDict({"meta": ConfigRecord(meta)})
        record["vector"] = ArrayRecord({"vector": Array("float32", (len(vector),), "numpy.ndarray", array.data)})
        return record
    raise AssertionError(kind)


BAD = {
    "shape": "shape",
    "larger": "got [780]",
    "dtype": "float64, float32 is needed",
    "nan": "NaN",
    "inf": "infinities",
    "round": "round 6, 7 was asked for",
    "loss": "loss is NaN",
    "extra": "unexpected record",
    "pickle": "only 'undrift.raw' is read",
}


def test_bad_updates_are_refused_with_the_site_and_the_reason(world: Path) -> None:
    exchange, kinds = Nearby(world / "fed", world), dict(enumerate(BAD, start=2))
    assert kinds[7] == "round"
    exchange.tamper = lambda name, round, reply: (
        bad(kinds[round], reply) if name == "south" and round in kinds else reply
    )
    result = run(federated(world, "scaffold", len(BAD) + 2, world / "fed" / "server"), exchange)
    reasons = lost(result.rounds)
    for round, kind in kinds.items():
        assert len(reasons[round]) == 1
        assert reasons[round][0].startswith("site south: ")
        assert BAD[kind] in reasons[round][0]
    assert reasons[1] == reasons[len(BAD) + 2] == []


@pytest.mark.parametrize("stopped", [1, 3])
def test_resumed_runs_end_in_the_same_bits(world: Path, stopped: int) -> None:
    config = federated(world, "scaffold", 5, world / "fed" / "server")
    with pytest.raises(KeyboardInterrupt):
        run(config, Nearby(world / "fed", world), world / "out", stop=stopped)
    states = [world / "fed" / name / "state" / read_json(world / "out" / "federation.json")["run"] for name in SITES]
    # The checkpoint is one round behind what the sites have: they must go back.
    assert all((state / f"round-{stopped}.safetensors").exists() for state in states)
    result = run(config, Nearby(world / "fed", world), world / "out", resume=True)
    assert same(local(world, "scaffold", 5), result)
    for state in states:
        assert sorted(path.name for path in state.iterdir()) == ["committed.json", "round-5.safetensors"]
        assert read_json(state / "committed.json") == {"round": 5}


def test_too_few_sites_end_the_run(world: Path) -> None:
    exchange = Nearby(world / "fed", world)
    exchange.tamper = lambda name, round, reply: reply if name == "east" or round < 2 else "no answer within 1 s"
    config = federated(world, "fedavg", 3, world / "fed" / "server", min_sites=2)
    with pytest.raises(RunError, match=r"round 2: 1 of 3 sites .* engine.min_sites = 2"):
        run(config, exchange)


def test_a_run_begins_with_all_sites_and_may_go_on_with_some(world: Path) -> None:
    exchange, config = Nearby(world / "fed", world), federated(world, "fedavg", 3, world / "fed" / "server")
    exchange.away = {"north"}
    with pytest.raises(RunError, match="not connected: north"):
        run(config, exchange)
    exchange.away = set()
    with pytest.raises(KeyboardInterrupt):
        run(config, exchange, world / "out", stop=2)
    exchange.away = {"north"}
    result = run(config, exchange, world / "out", resume=True)
    assert lost(result.rounds)[3] == ["site north: is not connected"]


def test_shared_data_only_where_the_operator_allows_it(world: Path) -> None:
    config = federated(world, "ds", 2, world / "fed" / "server")
    with pytest.raises(ConfigError, match="site east does not take shared data"):
        run(config, Nearby(world / "fed", world))
    for name in SITES:
        path = world / "fed" / name / "site.toml"
        path.write_text(path.read_text().replace("false", "true"))
    assert same(local(world, "ds", 2), run(config, Nearby(world / "fed", world)))


def test_a_site_refuses_shared_data_itself(world: Path) -> None:
    site = Nearby(world / "fed", world).sites["east"]
    with pytest.raises(RefusedError, match="allow_shared_data"):
        site.share(pack({"run": "0" * 32, "task": "{}", "labels": [0]}, torch.zeros(8)))


def test_a_site_with_other_data_is_named(world: Path) -> None:
    np.savez(world / "north.npz", x=np.zeros((5, 7), np.float32), y=np.zeros(5, np.int64))
    with pytest.raises(DataError, match=r"site north: .*shape \[7\]"):
        run(federated(world, "fedavg", 1, world / "fed" / "server"), Nearby(world / "fed", world))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.name": "centralised"}, "not pooled"),
        ({"data.validation": 0.1}, "data.validation"),
        ({"server_data.source": "iid"}, "server_data.source"),
        ({"measure.gradients": True}, "measure.gradients"),
    ],
)
def test_what_sites_cannot_do_is_refused(world: Path, changes: dict[str, Any], message: str) -> None:
    config = federated(world, "fedavg", 1, world / "fed" / "server").with_(*changes.items())
    with pytest.raises(ConfigError, match=message):
        refuse(config)


def test_split_learning_is_refused_with_the_reason(world: Path) -> None:
    config = federated(world, "fedavg", 1, world / "fed" / "server")
    split = config.model_copy(update={"algorithm": {"name": "minibatch-sfl"}})
    with pytest.raises(ConfigError, match="every step"):
        refuse(split)


def test_messages_go_and_come_back_exactly() -> None:
    vector = torch.randn(100)
    content = pack({"a": 1, "b": "x", "c": 0.5, "d": True}, vector)
    assert meta_of(content, a=int, b=str, c=float, d=bool) == {"a": 1, "b": "x", "c": 0.5, "d": True}
    assert torch.equal(vector_of(content, 100, torch.float32), vector)
    assert parts(content)[1].stype == RAW
    with pytest.raises(RefusedError, match="instead of"):
        meta_of(content, a=int)
    with pytest.raises(RefusedError, match="wrong type"):
        meta_of(content, a=str, b=str, c=float, d=bool)
    with pytest.raises(RefusedError, match="wrong type"):
        meta_of(content, a=int, b=str, c=float, d=int)
    with pytest.raises(RefusedError, match="plain values"):
        meta_of(pack({"a": "x" * (1 << 21)}), a=str)


def test_keys_are_private_and_folders_are_not_written_over(world: Path) -> None:
    for path in (
        world / "fed" / "ca.key",
        world / "fed" / "server" / "server.key",
        world / "fed" / "east" / "site.key",
    ):
        assert path.stat().st_mode & 0o077 == 0
    for sites, message in ((["a"], "exists already"), (["a", "a"], "different"), (["../x"], "not a name")):
        with pytest.raises(ConfigError, match=message):
            init(world / ("fed" if "exists" in message else "new"), sites)
    (world / "fed" / "east" / "site.toml").write_text('name = "east"\nserver = "x:1"\nallow = true\n')
    with pytest.raises(ConfigError, match="unknown key 'allow'"):
        Nearby(world / "fed", world)


def test_a_site_computes_on_the_layout_of_the_simulation(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides and alignment of batches, broadcast and memories, whatever way they came."""
    seen: list[tuple[Any, ...]] = []
    step, opened = Worker._step, Worker.open_client

    def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
        return (*tensor.stride(), tensor.data_ptr() % 64)

    def spy_step(self: Worker, x: torch.Tensor, labels: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append((layout(x), layout(labels)))
        return step(self, x, labels, *rest)

    def spy_open(self: Worker, broadcast: Broadcast, task: ClientTask, *rest: Any) -> Any:
        given = flatten({**broadcast.tree(), "kept": task.kept})
        seen.append(tuple((path, layout(leaf)) for path, leaf in given.items()))
        return opened(self, broadcast, task, *rest)

    monkeypatch.setattr(Worker, "_step", spy_step)
    monkeypatch.setattr(Worker, "open_client", spy_open)
    local(world, "scaffold", 3)
    here = list(seen)
    seen.clear()
    run(federated(world, "scaffold", 3, world / "fed" / "server"), Nearby(world / "fed", world))
    assert seen == here


def test_servers_of_tests_keep_their_ports() -> None:
    """What is bound and let go is not given to a connection before the server comes back."""
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not path.exists():
        pytest.skip("the system does not tell which ports it gives to connections")
    first = int(path.read_text().split()[0])
    assert all(1024 <= server_port() < first for _ in range(20))
