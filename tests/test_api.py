"""The Python interface: public names, one's own modules, data, losses and rules."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import undrift as ud
from undrift.core.tree import Tree
from undrift.errors import ConfigError, DataError

NAMES = {
    "Chain",
    "ClientAt",
    "ConfigError",
    "DataError",
    "DivergedError",
    "DrawAt",
    "FedAvg",
    "Federation",
    "InputError",
    "Owns",
    "Result",
    "Rule",
    "RunError",
    "ServerAt",
    "UndriftError",
    "__version__",
    "algorithm",
    "attack",
    "callbacks",
    "centralised",
    "chain",
    "choice",
    "clip",
    "cut_table",
    "dp",
    "ds",
    "dsl",
    "fedadc",
    "fedavg",
    "fedavgm",
    "feddyn",
    "fednova",
    "fedopt",
    "fedprox",
    "fedpvr",
    "from_clients",
    "fsl",
    "krum",
    "masked",
    "median",
    "minibatch_sfl",
    "moon",
    "personal",
    "quantise",
    "scaffold",
    "sfl_v1",
    "sfl_v2",
    "simulate",
    "slowmo",
    "topk",
    "trimmed",
}


def test_exported_names() -> None:
    """A name leaves or enters the public interface on purpose only."""
    assert set(ud.__all__) == NAMES
    assert list(ud.__all__) == sorted(ud.__all__)
    known = [getattr(ud, name) for name in NAMES]
    for name, value in vars(ud).items():
        assert name.startswith("_") or isinstance(value, types.ModuleType) or any(value is one for one in known), name
    assert all(hasattr(ud, name) for name in ud.__all__)


class Own(nn.Module):
    """Something that is not an nn.Sequential, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.body(x * self.scale)))
        return out


def make(n: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    centres = torch.randn(3, 4, generator=torch.Generator().manual_seed(9)) * 2
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=draw)
    return centres[y] + torch.randn(n, 4, generator=draw) + shift, y


@pytest.fixture
def clients() -> list[tuple[Tensor, Tensor]]:
    return [make(20 + 3 * i, i, 0.1 * i) for i in range(12)]


def test_the_example_of_the_interface(clients: list[tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    model = Own()
    before = copy.deepcopy(model.state_dict())
    x0, y0 = make(30, 50)
    xt, yt = make(200, 51)
    result = ud.simulate(
        model,
        clients,
        algorithm=ud.fedpvr(layers=1) + ud.fsl(gamma=1.0),
        server_data=(x0, y0),
        test_data=(xt, yt),
        rounds=50,
        cohort=10,
        local_epochs=1,
        batch_size=32,
        lr=0.05,
        seed=0,
    )
    assert [record["round"] for record in result.history] == list(range(51))
    keys = {"round", "test_accuracy", "test_loss", "train_loss", "bytes_down", "bytes_up", "seconds"}
    assert all(set(record) == keys for record in result.history)
    assert result.history[-1]["test_accuracy"] > 0.8 > result.history[0]["test_accuracy"]
    assert isinstance(result.model, Own)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not result.model.training
    with torch.inference_mode():
        accuracy = float((result.model(xt).argmax(1) == yt).double().mean())
    assert accuracy == pytest.approx(result.history[-1]["test_accuracy"])
    assert result.summary["final_accuracy"] == result.history[-1]["test_accuracy"]


class Squares(Dataset[Any]):
    """A map-style data set whose samples are made when asked for."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.x[index], int(self.y[index])


@pytest.mark.parametrize("kind", [TensorDataset, Squares, lambda x, y: (x.numpy(), y.numpy()), lambda x, y: [x, y]])
def test_clients_may_be_data_sets(kind: Callable[..., Any], clients: list[tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    model = Own()
    settings: dict[str, Any] = {"rounds": 2, "cohort": 3, "workers": 0}
    plain = ud.simulate(model, clients, ud.scaffold(), **settings)
    other = ud.simulate(model, [kind(x, y) for x, y in clients], ud.scaffold(), **settings)
    federation = ud.simulate(model, ud.from_clients(clients), ud.scaffold(), **settings)
    assert plain.server is not None
    assert other.server is not None
    assert federation.server is not None
    assert torch.equal(plain.server.x, other.server.x)
    assert torch.equal(plain.server.x, federation.server.x)


def test_a_loss_of_ones_own() -> None:
    """Regression on noiseless lines that differ between clients only in where they are seen: all agree on the truth."""
    truth = torch.tensor([[2.0, -1.0]])
    parts = [torch.randn(30, 2, generator=torch.Generator().manual_seed(i)) * (1 + i) for i in range(4)]
    data = [(x, x @ truth.T + 0.5) for x in parts]
    for rule in (ud.fedavg(), ud.scaffold(), ud.feddyn(0.5)):
        result = ud.simulate(
            nn.Linear(2, 1),
            data,
            rule,
            rounds=60,
            batch_size=10,
            lr=0.02,
            task="regression",
            test_data=data[0],
            workers=0,
        )
        assert result.history[-1]["test_loss"] < 1e-3
        assert "test_accuracy" not in result.history[-1]
        assert result.summary["final_accuracy"] is None


@dataclass(frozen=True)
class Shy(ud.Rule):
    """A rule of one's own: the server follows the average of its last two steps; clients count their visits."""

    beta: float = 0.5

    def init_server(self, x: Tensor) -> Tree:
        return {"last": torch.zeros_like(x)}

    def init_client(self, x: Tensor) -> Tree:
        return {"visits": torch.zeros(1, dtype=x.dtype)}

    def up(self, delta: Tensor, at: ud.ClientAt) -> tuple[Tree, Tree]:
        return {"steps": torch.full((1,), float(at.steps), dtype=delta.dtype)}, {"visits": at.kept["visits"] + 1}

    def server(self, step: Tensor, at: ud.ServerAt) -> tuple[Tensor, Tree]:
        assert float(at.up["steps"]) > 0
        return self.beta * at.state["last"] + (1 - self.beta) * step, {"last": step}


@pytest.mark.parametrize("rule", [Shy(), Shy() + ud.scaffold(), ud.fedpvr(1) + Shy() + ud.fsl()])
def test_a_rule_of_ones_own(rule: ud.Rule, clients: list[tuple[Tensor, Tensor]], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Own()
    settings: dict[str, Any] = {"rounds": 6, "cohort": 5, "lr": 0.05, "server_data": make(30, 50)}
    here = ud.simulate(model, clients, rule, workers=0, out=tmp_path / "here", **settings)
    there = ud.simulate(model, clients, rule, workers=2, **settings)
    assert here.server is not None
    assert there.server is not None
    assert torch.equal(here.server.x, there.server.x)

    class StopError(Exception):
        pass

    def stop(round: int, rounds: int, record: Any) -> None:
        if round == 4:
            raise StopError

    with pytest.raises(StopError):
        ud.simulate(model, clients, rule, workers=0, out=tmp_path / "cut", progress=stop, **settings)
    again = ud.simulate(model, clients, rule, workers=0, out=tmp_path / "cut", resume=True, **settings)
    assert again.server is not None
    assert torch.equal(here.server.x, again.server.x)
    counted = 0.0
    for path in (tmp_path / "here" / "checkpoint" / "clients").iterdir():
        counted += float(load_file(path)["shy/visits"])
    assert counted == 6 * 5


def test_the_step_of_ones_own_rule_by_hand() -> None:
    """One client, one step a round, gradient 1: steps -lr; the rule halves the first, then averages."""
    result = ud.simulate(
        Slope(),
        [(torch.zeros(1, 1), torch.zeros(1))],
        Shy(),
        rounds=3,
        lr=0.5,
        workers=0,
        loss=lambda out, y: out.mean(),
    )
    assert result.server is not None
    assert result.server.x.tolist() == [-0.25 - 0.5 - 0.5]


class Slope(nn.Module):
    """``f(w) = w``: its gradient is 1 everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w + 0 * x


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "cohort": ({"cohort": 50}, ConfigError, "train.cohort = 50"),
    "no cohort": ({"cohort": 0}, ConfigError, "cohort"),
    "server data": ({"algorithm": ud.fsl()}, ConfigError, "server data"),
    "layers": ({"algorithm": ud.fedpvr(9)}, ConfigError, "layers = 9"),
    "server rate": ({"algorithm": ud.slowmo(), "server_lr": 2.0}, ConfigError, "server_lr"),
    "rate": ({"lr": 0.0}, ConfigError, "lr"),
    "rate nan": ({"lr": float("nan")}, ConfigError, "lr"),
    "rounds": ({"rounds": -1}, ConfigError, "rounds"),
    "batch": ({"batch_size": -1}, ConfigError, "batch_size"),
    "steps": ({"local_steps": 0}, ConfigError, "local_steps"),
    "epochs": ({"local_epochs": 0}, ConfigError, "local_epochs"),
    "weighting": ({"weighting": "equal"}, ConfigError, "weighting"),
    "schedule": ({"schedule": "linear"}, ConfigError, "schedule"),
    "evaluation": ({"eval_every": 0}, ConfigError, "eval_every"),
    "no clients": ({"clients": []}, DataError, "at least one"),
    "unequal lengths": (
        {"clients": [(torch.zeros(3, 4), torch.zeros(2))]},
        DataError,
        r"client 0: inputs \[3, 4\] float32 and targets \[2\] float32 differ",
    ),
    "empty client": ({"clients": [make(3, 0), (torch.zeros(0, 4), torch.zeros(0))]}, DataError, "client 1"),
    "nan": ({"clients": [make(3, 0), (torch.full((2, 4), torch.nan), torch.zeros(2).long())]}, DataError, "client 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_is_named(case: str, clients: list[tuple[Tensor, Tensor]], tmp_path: Path) -> None:
    changes, kind, message = BAD[case]
    arguments: dict[str, Any] = {"clients": clients, "workers": 0, "out": tmp_path / "out", **changes}
    with pytest.raises(kind, match=message):
        ud.simulate(Own(), **arguments)
    assert not (tmp_path / "out").exists()


def test_errors_form_one_tree() -> None:
    assert issubclass(ud.ConfigError, ud.InputError)
    assert issubclass(ud.DataError, ud.InputError)
    assert issubclass(ud.DivergedError, ud.RunError)
    assert issubclass(ud.InputError, ud.UndriftError)
    assert issubclass(ud.RunError, ud.UndriftError)
    assert not issubclass(ud.RunError, ud.InputError)


def test_an_error_at_a_client_names_it(clients: list[tuple[Tensor, Tensor]]) -> None:
    """Labels out of range are found where they are used: on a worker the message says at whom."""
    x, y = clients[4]
    spoiled = [*clients[:4], (x, y + 7), *clients[5:]]
    with pytest.raises(ud.UndriftError, match="client 4"):
        ud.simulate(Own(), spoiled, rounds=2, workers=2)
    with pytest.raises(ud.UndriftError, match="client 4"):
        ud.simulate(Own(), spoiled, rounds=2, workers=0)


def test_a_rate_that_explodes_names_the_round_and_the_clients() -> None:
    data = [make(10, i) for i in range(3)]
    with pytest.raises(ud.DivergedError, match=r"round 1: .* clients 0, 1, 2 is not finite"):
        ud.simulate(Own(), data, rounds=2, lr=1e30, local_steps=4, workers=0)
