"""Ray gives the same bits as the local engine, also when workers and nodes die on the way."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import memory_layout
import undrift as ud
from undrift.core.tree import nbytes
from undrift.data.federation import Federation, from_clients
from undrift.engines.auto import engine_for
from undrift.errors import ConfigError, RunError
from undrift.experiment.config import parse
from undrift.experiment.from_config import run_config
from undrift.rounds.loop import Result, Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rounds.work import Work
from undrift.rules.rule import Rule
from undrift.tasks import Loss

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster as RayCluster  # noqa: E402

from undrift.engines.ray import Cluster, Ray, ray_engine  # noqa: E402
from undrift.engines.ray_parcel import read_only  # noqa: E402

# Worker processes cannot import this file: what it defines travels by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
ray.cloudpickle.register_pickle_by_value(memory_layout)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]
RULES = {
    "fedavg": ud.fedavg(),
    "scaffold": ud.scaffold(),
    "fedpvr+fsl": ud.fedpvr(layers=1) + ud.fsl(gamma=0.5),
    "fedadc": ud.fedadc(),
    "scaffold+topk+quantise": ud.scaffold() + ud.topk(0.1) + ud.quantise(4),
    "personal+moon": ud.personal("norm") + ud.moon(),
}


def clients() -> Federation:
    draw = torch.Generator().manual_seed(1)
    sizes = (40, 55, 32, 61, 47)
    pairs = [(torch.randn(n, 1, 6, 6, generator=draw), torch.randint(0, 3, (n,), generator=draw)) for n in sizes]
    return from_clients(pairs, server=pairs[0], test=pairs[1])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3)
    )


def work(rule: Rule, loss: Loss = nn.functional.cross_entropy, rounds: int = 3) -> Work:
    plan = Plan(rounds=rounds, lr=0.05, batch_size=10, cohort=4)
    return prepare(network(), rule, clients(), plan, loss, "cpu")


def same(one: Result, other: Result) -> bool:
    assert one.server is not None
    assert other.server is not None
    times = {"seconds"}
    history = [
        [{key: value for key, value in record.items() if key not in times} for record in result.history]
        for result in (one, other)
    ]
    return bool(
        torch.equal(one.server.x, other.server.x)
        and torch.equal(one.server.buffers, other.server.buffers)
        and history[0] == history[1]
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes of one processor each; the driver lives on the first."""
    nodes = RayCluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8}
    )
    try:
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", RULES)
def test_same_bits_as_local(cluster: RayCluster, name: str) -> None:
    local = [Run(work(RULES[name]), engine_for, workers).go() for workers in (0, 1, 2)]
    assert same(local[0], local[1])
    assert same(local[0], local[2])
    assert same(local[0], Run(work(RULES[name]), Cluster(), None).go())


def test_bytes_are_those_of_what_ray_carries(cluster: RayCluster) -> None:
    """Each tensor of a message as it lies in Ray's arrays: as many bytes as were counted, of their own types."""
    rule = ud.scaffold() + ud.topk(0.1) + ud.quantise(4)
    result = Run(work(rule), Cluster(), None).go()
    carried: list[int] = []

    class Watching(Ray):
        def _get(self, ref: Any, who: str) -> Any:
            found = super()._get(ref, who)
            if who != "evaluation":
                carried.extend(nbytes(self.messages.up.unpack(read_only(row))) for row in found[0])
                assert {row.dtype for row in found[0]} == {np.dtype("uint8")}
            return found

    again = Run(work(rule), lambda work, worker, workers: Watching(work, worker, workers, Cluster()), None).go()
    assert same(result, again)
    assert len(carried) == 3 * 4
    assert sum(carried) == result.summary["bytes_up"]
    whole = 4 * (result.server.x.numel() + result.server.buffers.numel())  # type: ignore[union-attr]
    assert result.summary["bytes_up"] < 3 * 4 * whole / 2


def test_a_round_of_nobody(cluster: RayCluster) -> None:
    plan = Plan(rounds=3, lr=0.05, batch_size=10, cohort=1, weighting="uniform", seed=3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    made = prepare(module, ud.dp(delta=1e-2), clients(), plan)
    local, there = Run(made, engine_for, 0).go(), Run(made, Cluster(), 2).go()
    assert any(not line["clients"] for line in local.rounds)
    assert same(local, there)


def test_more_workers_than_the_cluster_has_room_for(cluster: RayCluster) -> None:
    assert same(Run(work(RULES["fedavg"]), engine_for, 0).go(), Run(work(RULES["fedavg"]), Cluster(), 64).go())


class Crash:
    """A loss that ends a worker's process the first time, and fails there with an error when told to."""

    def __init__(self, marker: Path, message: str = "") -> None:
        self.marker, self.message = marker, message
        self.driver = os.getpid()

    def __call__(self, out: Tensor, labels: Tensor) -> Tensor:
        away = os.getpid() != self.driver
        if away and self.message:
            raise ValueError(self.message)
        if away and out.requires_grad and not self.marker.exists():
            self.marker.touch()
            os._exit(1)
        return nn.functional.cross_entropy(out, labels)


SPLITS = {
    "sfl-v1": ud.sfl_v1(cut=1),
    "sfl-v2": ud.sfl_v2(cut=1, smashed_noise=0.1),
    "minibatch-sfl": ud.minibatch_sfl(cut=1, sync_steps=2) + ud.scaffold(),
}


@pytest.mark.parametrize("name", ["sfl-v1", "sfl-v2"])
def test_split_algorithms_exchange_messages_between_actors(cluster: RayCluster, name: str) -> None:
    local = Run(work(SPLITS[name], rounds=2), engine_for, 0).go()
    assert same(local, Run(work(SPLITS[name], rounds=2), Cluster(), 2).go())


def test_a_lost_actor_costs_a_repetition_of_the_round(cluster: RayCluster, tmp_path: Path) -> None:
    crash = Crash(tmp_path / "dead")
    result = Run(work(SPLITS["minibatch-sfl"], crash, 2), Cluster(), 2).go()
    assert crash.marker.exists()
    assert same(Run(work(SPLITS["minibatch-sfl"], rounds=2), engine_for, 0).go(), result)


class Lingers:
    """A loss that keeps the second node in its first batch, and the first node until the second one is there."""

    def __init__(self, folder: Path, first: str) -> None:
        self.folder, self.first = folder, first
        self.driver = os.getpid()

    def others(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def __call__(self, out: Tensor, labels: Tensor) -> Tensor:
        if os.getpid() == self.driver:
            return nn.functional.cross_entropy(out, labels)
        here = ray.get_runtime_context().get_node_id()
        if here != self.first:
            (self.folder / here).touch()
            time.sleep(60)
        wait_for(self.others)
        return nn.functional.cross_entropy(out, labels)


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_node_that_leaves_in_the_middle_of_a_round(cluster: RayCluster, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    cluster.wait_for_nodes(30)
    wait_for(lambda: ray.cluster_resources().get("CPU", 0) == 2)
    lingers = Lingers(tmp_path, ray.get_runtime_context().get_node_id())

    def leave() -> None:
        wait_for(lingers.others)
        cluster.remove_node(second, allow_graceful=False)

    leaver = threading.Thread(target=leave, daemon=True)
    leaver.start()
    result = Run(work(RULES["scaffold"], lingers, 3), Cluster(), 2).go()
    leaver.join(30)
    assert lingers.others() == [second.node_id]
    wait_for(lambda: len([node for node in ray.nodes() if node["Alive"]]) == 1)
    assert same(Run(work(RULES["scaffold"], rounds=3), engine_for, 0).go(), result)


def test_a_worker_that_dies_costs_a_repetition(cluster: RayCluster, tmp_path: Path) -> None:
    crash = Crash(tmp_path / "dead")
    result = Run(work(RULES["scaffold"], crash, 2), Cluster(), 1).go()
    assert crash.marker.exists()
    assert same(Run(work(RULES["scaffold"], rounds=2), engine_for, 0).go(), result)


def test_an_error_at_a_client_names_it(cluster: RayCluster, tmp_path: Path) -> None:
    run = Run(work(RULES["fedavg"], Crash(tmp_path / "x", "no such label"), 1), Cluster(), 1)
    with pytest.raises(RunError, match="no such label"):
        run.go()


@pytest.mark.parametrize("shape", [(1, 6, 6), (1, 1, 1), (3, 1)], ids=str)
def test_strides_and_alignment_are_those_of_this_process(cluster: RayCluster, shape: tuple[int, ...]) -> None:
    there, here = memory_layout.run(shape, Cluster(), 1), memory_layout.run(shape, engine_for, 0)
    assert memory_layout.numbers(there) == memory_layout.numbers(here)


def test_a_worker_larger_than_the_cluster_is_refused(cluster: RayCluster) -> None:
    with pytest.raises(ConfigError, match="a worker needs 512 CPUs"):
        Run(work(RULES["fedavg"]), Cluster(cpus_per_worker=512), None).go()


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"engine.address = '127.0.0.1:1': no Ray cluster"):
        ray_engine("127.0.0.1:1", 1.0, 0.0)


def test_a_cluster_that_cannot_be_joined_is_refused_and_nothing_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(**settings: object) -> None:
        raise ray.exceptions.RaySystemError("no answer")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    config = parse({"engine": {"name": "ray", "address": "auto"}, "partition": {"clients": 2}})
    with pytest.raises(ConfigError, match=r"engine.address = 'auto': no Ray cluster"):
        run_config(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
