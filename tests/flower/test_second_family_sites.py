"""The second family at sites: the bits of the simulation, and bytes as measured in Flower's messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from test_sites import run, same
from worlds import SITES, Nearby, federated, local, lost, parts, write_data

from undrift.errors import ConfigError
from undrift.federation.run import refuse
from undrift.federation.setup import init

PARAMETERS: dict[str, dict[str, Any]] = {
    "fedopt": {},
    "fednova": {},
    "moon": {},
    "personal": {},
    "topk": {"fraction": 0.05},
    "quantise": {"bits": 4},
    "dp": {"noise": 0.5, "delta": 0.01},
    "krum": {"byzantine": 0},
    "clip": {"norm": 0.2},
}
CHAINS = (
    "fedopt+fednova",
    "topk",
    "quantise",
    "scaffold+topk+quantise",
    "fedpvr+topk+quantise+dp",
    "scaffold+fsl+dp",
    "personal+scaffold",
    "moon+clip",
    "median",
    "krum",
)


class Measured(Nearby):
    """Counts the bytes of the vectors in Flower's messages, in both directions."""

    up = down = 0

    def _one(self, what: str, name: str, content: RecordDict) -> RecordDict | str:
        answer = super()._one(what, name, content)
        if what == "train":
            self.down += len(parts(content)[1].data)
            assert isinstance(answer, RecordDict)
            self.up += len(parts(answer)[1].data)
        return answer


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data(tmp_path)
    init(tmp_path / "fed", list(SITES))
    monkeypatch.setattr("worlds.ALGORITHMS", {chain: parameters_of(chain) for chain in CHAINS})
    monkeypatch.setattr("worlds.TRAIN", {"weighting": "uniform", "eval_every": 3})
    return tmp_path


def parameters_of(chain: str) -> dict[str, dict[str, Any]]:
    return {name: PARAMETERS[name] for name in chain.split("+") if PARAMETERS.get(name)}


@pytest.mark.parametrize("chain", CHAINS)
def test_same_bits_and_bytes_as_the_simulation_and_as_measured(world: Path, chain: str) -> None:
    exchange = Measured(world / "fed", world)
    result = run(federated(world, chain, 3, world / "fed" / "server"), exchange)
    simulated = local(world, chain, 3)
    assert same(simulated, result)
    assert simulated.summary["bytes_up"] == result.summary["bytes_up"] == exchange.up
    assert simulated.summary["bytes_down"] == result.summary["bytes_down"] == exchange.down


def test_places_that_do_not_exist_are_refused(world: Path) -> None:
    exchange = Nearby(world / "fed", world)

    def tamper(name: str, round: int, reply: RecordDict) -> RecordDict | str:
        if (name, round) != ("south", 2):
            return reply
        _, array = parts(reply)
        data = bytearray(array.data)
        data[-4:] = (2**30).to_bytes(4, "little")
        reply["vector"] = ArrayRecord({"vector": Array(array.dtype, tuple(array.shape), array.stype, bytes(data))})
        return reply

    exchange.tamper = tamper
    result = run(federated(world, "topk", 3, world / "fed" / "server"), exchange)
    assert lost(result.rounds)[2] == ["site south: topk: places of entries must lie between 0 and 194"]
    assert lost(result.rounds)[3] == []


def test_infinite_numbers_among_bytes_are_refused(world: Path) -> None:
    exchange = Nearby(world / "fed", world)

    def tamper(name: str, round: int, reply: RecordDict) -> RecordDict | str:
        _, array = parts(reply)
        data = bytearray(array.data)
        if (name, round) == ("south", 2):
            data[:4] = torch.tensor([float("inf")]).numpy().tobytes()
        reply["vector"] = ArrayRecord({"vector": Array(array.dtype, tuple(array.shape), array.stype, bytes(data))})
        return reply

    exchange.tamper = tamper
    result = run(federated(world, "topk", 2, world / "fed" / "server"), exchange)
    assert lost(result.rounds)[2] == ["site south: NaN or infinities in the update"]


def test_what_needs_the_clients_data_is_refused(world: Path) -> None:
    config = federated(world, "topk", 1, world / "fed" / "server")
    with pytest.raises(ConfigError, match="sites are not asked for their loss"):
        refuse(config.with_(("algorithm.name", "choice")))
    with pytest.raises(ConfigError, match="sites' labels stay as they are"):
        refuse(config.with_(("attack.kind", "label-flip")))
