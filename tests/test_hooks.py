"""What a rule of one's own can get wrong is refused before round 1 with its name; nothing is corrupted in silence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from shell import Undrift
from undrift.core.tree import Tree
from undrift.rounds.client_states import ClientStates

DRAW = torch.Generator().manual_seed(3)
CLIENTS = [(torch.randn(n, 4, generator=DRAW), torch.arange(n) % 3) for n in (6, 9, 12, 7)]


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def run(rule: ud.Rule, **settings: Any) -> ud.Result:
    usual: dict[str, Any] = {"rounds": 2, "cohort": 2, "batch_size": 4, "lr": 0.1, "workers": 0}
    return ud.simulate(net(), CLIENTS, rule, **(usual | settings))


def weights(result: ud.Result) -> Tensor:
    assert result.server is not None
    return result.server.x


@dataclass(frozen=True)
class ChangesUpdate(ud.Rule):
    """Changes what it is given."""

    name = "mine"

    def up(self, delta: Tensor, at: ud.ClientAt) -> tuple[Tree, Tree]:
        delta.add_(1.0)
        return {}, {}


@dataclass(frozen=True)
class ChangesModel(ud.Rule):
    name = "mine"

    def init_server(self, x: Tensor) -> Tree:
        return {"m": x.zero_()}


@dataclass(frozen=True)
class ChangesState(ud.Rule):
    name = "mine"

    def init_server(self, x: Tensor) -> Tree:
        return {"m": torch.zeros_like(x)}

    def server(self, step: Tensor, at: ud.ServerAt) -> tuple[Tensor, Tree]:
        return step, {"m": at.state["m"].add_(1.0)}


@dataclass(frozen=True)
class ReturnsGradient(ud.Rule):
    name = "mine"

    def gradient(self, g: Tensor, y: Tensor, at: ud.ClientAt) -> Tensor:  # type: ignore[override]
        return g + y


@dataclass(frozen=True)
class KeepsNumber(ud.Rule):
    name = "mine"

    def init_client(self, x: Tensor) -> Tree:
        return {"rounds": 0}


@dataclass(frozen=True)
class ForgetsState(ud.Rule):
    name = "mine"

    def init_server(self, x: Tensor) -> Tree:
        return {"m": torch.zeros_like(x)}


@dataclass(frozen=True)
class SendsOne(ud.Rule):
    name = "mine"

    def up(self, delta: Tensor, at: ud.ClientAt) -> Tree:  # type: ignore[override]
        return {"d": delta}


@dataclass(frozen=True)
class ShortStep(ud.Rule):
    name = "mine"

    def mean(self, delta: Tensor, at: ud.ServerAt) -> Tensor:
        return delta[:3]


@dataclass(frozen=True)
class EncodesOnly(ud.Rule):
    """Does not undo what it does."""

    name = "mine"

    def encode(self, sent: Tree, at: ud.ClientAt) -> tuple[Tree, Tree]:
        return sent | {"delta": sent["delta"][:5]}, {}


@dataclass(frozen=True)
class EncodesInPlace(ud.Rule):
    name = "mine"

    def encode(self, sent: Tree, at: ud.ClientAt) -> tuple[Tree, Tree]:
        at.kept["e"].add_(1.0)
        return sent, {"e": at.kept["e"]}

    def init_client(self, x: Tensor) -> Tree:
        return {"e": torch.zeros_like(x)}


@dataclass(frozen=True)
class ForgetsResidual(ud.Rule):
    name = "mine"

    def init_client(self, x: Tensor) -> Tree:
        return {"e": torch.zeros_like(x)}

    def encode(self, sent: Tree, at: ud.ClientAt) -> tuple[Tree, Tree]:
        return sent, {}


@dataclass(frozen=True)
class SendsText(ud.Rule):
    name = "mine"

    def encode(self, sent: Tree, at: ud.ClientAt) -> tuple[Tree, Tree]:
        return sent | {"note": "hello"}, {}


@dataclass(frozen=True)
class ReceivesLess(ud.Rule):
    name = "mine"

    def receive(self, sent: Tree) -> Tree:
        return sent | {"delta": sent["delta"][:5]}


@dataclass(frozen=True)
class LosesLoss(ud.Rule):
    name = "mine"

    def loss(self, loss: Tensor, features: Any, at: ud.ClientAt) -> Tensor:
        return None  # type: ignore[return-value]


WRONG = {
    r"decode changes the form of what is sent: delta was \[51\] at first, is \[5\] now": EncodesOnly(),
    "encode changes kept/e in place": EncodesInPlace(),
    "encode changes the form of what a client keeps: e was .* is nothing": ForgetsResidual(),
    "encode gives note = 'hello'; only tensors can be sent": SendsText(),
    "receive changes the form of what is sent": ReceivesLess(),
    "loss must return the loss": LosesLoss(),
    "up changes delta in place": ChangesUpdate(),
    "init_server changes x in place": ChangesModel(),
    "server changes state/m in place": ChangesState(),
    "gradient returns a value": ReturnsGradient(),
    "init_client gives rounds = 0; only tensors": KeepsNumber(),
    "server changes the form of the server's memory: m was .* is nothing": ForgetsState(),
    "up must return what is sent and what is kept": SendsOne(),
    r"mean must return a vector of shape \[51\], got \[3\]": ShortStep(),
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_rule_must_not_do_is_refused_before_round_1(message: str, workers: int, tmp_path: Path) -> None:
    with pytest.raises(ud.ConfigError, match=f"rule 'mine': {message}"):
        run(WRONG[message], workers=workers, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_misspelt_hook_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="rule Mine: there is no hook 'gradeint'; did you mean 'gradient'"):

        class Mine(ud.Rule):
            def gradeint(self, g: Tensor, y: Tensor, at: ud.ClientAt) -> None: ...


def test_an_own_method_is_no_misspelt_hook() -> None:
    class Fine(ud.Rule):
        def angle(self) -> float:
            return 0.0

    assert run(Fine()).history


@dataclass(frozen=True)
class Touches(ud.Rule):
    """Changes its input only in a round, where it is allowed to have a copy: the start must stay what it was."""

    def up(self, delta: Tensor, at: ud.ClientAt) -> tuple[Tree, Tree]:
        return {"d": delta.clone().mul_(2)}, {}


@pytest.mark.parametrize("workers", [1, 2])
def test_finding_out_shapes_leaves_the_starting_model_alone(workers: int) -> None:
    assert torch.equal(weights(run(Touches(), workers=workers)), weights(run(ud.fedavg(), workers=0)))


@dataclass(frozen=True)
class Frozen(ud.Rule):
    """A mean of nothing."""

    def mean(self, delta: Tensor, at: ud.ServerAt) -> Tensor:
        return torch.zeros_like(delta)


FRONT = 4 * 6 + 6


@pytest.mark.parametrize(
    "split", [ud.sfl_v1(), ud.sfl_v1(faithful=True), ud.sfl_v2(), ud.minibatch_sfl(), ud.minibatch_sfl(sync_steps=2)]
)
def test_a_mean_is_honoured_by_every_kind_of_round(split: ud.Rule) -> None:
    start = torch.cat([p.detach().flatten() for p in net().parameters()])
    assert torch.equal(weights(run(Frozen())), start)
    assert torch.equal(weights(run(split + Frozen()))[:FRONT], start[:FRONT])
    assert not torch.equal(weights(run(split))[:FRONT], start[:FRONT])


@dataclass(frozen=True)
class LearnsInMean(ud.Rule):
    name = "mine"

    def mean(self, delta: Tensor, at: ud.ServerAt) -> Tensor:
        return at.learn(at.x, 0.1, epochs=1) - at.x


def test_what_a_split_round_cannot_honour_is_refused_by_name() -> None:
    assert run(LearnsInMean(), server_data=CLIENTS[0]).history
    with pytest.raises(ud.ConfigError, match="server learning trains whole models"):
        run(ud.minibatch_sfl() + LearnsInMean(), server_data=CLIENTS[0])


@dataclass(frozen=True)
class Draws(ud.Rule):
    """Sends random numbers, from its own generator or from torch's default one."""

    own: bool = True

    def start(self, at: ud.ClientAt) -> Tree:
        return {"drawn": self._draw(at, "start")}

    def up(self, delta: Tensor, at: ud.ClientAt) -> tuple[Tree, Tree]:
        return {"start": at.local["drawn"], "up": self._draw(at, "up")}, {}

    def _draw(self, at: ud.ClientAt, purpose: str) -> Tensor:
        return torch.randn(4, generator=at.generator(purpose) if self.own else None)


class Seen:
    """Notes what clients sent."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int, str], tuple[float, ...]] = {}

    def begin(self, worker: Any) -> None: ...

    def observe(self, round: int, outcome: Any, weight: float, x: Tensor) -> None:
        for name, value in outcome.up["draws"].items():
            self.sent[round, outcome.client, name] = tuple(value.tolist())

    def report(self, round: int, server: Any) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("own", [True, False])
def test_random_numbers_of_a_hook_are_a_clients_own_on_every_engine(own: bool) -> None:
    found = []
    for workers in (0, 1, 2):
        seen = Seen()
        run(Draws(own), workers=workers, measures=[seen])
        found.append(seen.sent)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0].values())) == len(found[0]) == 2 * 2 * 2


def test_random_numbers_of_a_hook_do_not_change_dropout() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    both = [ud.simulate(model, CLIENTS, rule, rounds=2, lr=0.1, workers=0) for rule in (Draws(own=False), ud.fedavg())]
    assert torch.equal(weights(both[0]), weights(both[1]))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("every", [1, 2])
def test_progress_is_told_of_every_evaluation_and_ends_with_the_last(workers: int, every: int) -> None:
    told: list[tuple[int, int | None]] = []
    result = ud.simulate(
        net(),
        CLIENTS,
        rounds=5,
        workers=workers,
        lr=0.1,
        eval_every=every,
        test_data=CLIENTS[0],
        progress=lambda round, rounds, record: told.append((round, None if record is None else record["round"])),
    )
    assert [round for round, _ in told] == sorted(round for round, _ in told)
    assert {round for round, _ in told} >= {1, 2, 3, 4, 5}
    heard = list(dict.fromkeys(record for _, record in told))
    assert heard == [record["round"] for record in result.history]
    assert told[-1] == (5, 5)
    if workers == 0:
        assert all(record == max(r for r in heard if r is not None and r <= round) for round, record in told)


def test_the_command_ends_with_the_final_accuracy(tmp_path: Path, undrift: Undrift) -> None:
    (tmp_path / "c.toml").write_text("[partition]\nclients = 4\n[train]\nrounds = 3\nlr = 0.1\n[engine]\nworkers = 2\n")
    answer = undrift("run", tmp_path / "c.toml", "--out", tmp_path / "run")
    final = answer.out.split("final accuracy ")[1].split()[0]
    assert f"round 3/3  accuracy {final}" in answer.err


def test_what_clients_keep_comes_back_where_the_run_computes(tmp_path: Path) -> None:
    like = {"r": {"c": torch.zeros(4)}}
    states = ClientStates(like, tmp_path, budget=0, device="meta")
    states.put(3, {"r": {"c": torch.ones(4)}}, 1)
    found = states.get(3)
    assert found is not None
    assert found["r"]["c"].device.type == "meta"
    resumed = ClientStates(like, tmp_path, device="meta")
    resumed.restore(states.flush())
    again = resumed.get(3)
    assert again is not None
    assert again["r"]["c"].device.type == "meta"


def test_another_loss_is_not_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 1, "workers": 0, "out": tmp_path / "run"}
    ud.simulate(net(), CLIENTS, **settings)
    with pytest.raises(ud.ConfigError, match=r"loss is .*Classification\.loss.* there and .*multi_margin"):
        ud.simulate(net(), CLIENTS, loss=nn.functional.multi_margin_loss, resume=True, **settings)


@dataclass(frozen=True)
class Fails(ud.Rule):
    """Fails in a round, not before."""

    def up(self, delta: Tensor, at: ud.ClientAt) -> tuple[Tree, Tree]:
        sent: Tree = {}
        return sent if at.round < 2 else sent["nope"], {}


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scales: dict[str, float] = {} if torch.is_grad_enabled() else {"nope": 1.0}
        out: Tensor = self.layer(x) * scales["nope"]
        return out


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_rule_or_a_model_says_where_it_happened(workers: int) -> None:
    with pytest.raises(ud.RunError, match=r"client \d: .*\(test_hooks\.py, line \d+, in up\)"):
        run(Fails(), workers=workers)
    with pytest.raises(ud.RunError, match=r"KeyError: 'nope' \(test_hooks\.py, line \d+, in forward\)"):
        ud.simulate(Broken(), CLIENTS, rounds=1, workers=workers)


def test_an_error_while_a_rule_is_tried_out_names_the_rule_and_the_hook() -> None:
    class Odd(ud.Rule):
        def start(self, at: ud.ClientAt) -> Tree:
            return {"x": at.down["nope"]}

    with pytest.raises(ud.RunError, match=r"rule 'odd', hook start: KeyError: 'nope' \(test_hooks\.py, line \d+"):
        run(Odd())


def test_two_rules_that_draw_or_aggregate_are_refused_even_if_they_do_not_say_that_they_own_it() -> None:
    class Draws1(ud.Rule):
        def draw(self, at: ud.DrawAt) -> list[int]:
            return [0]

    class Means(ud.Rule):
        def aggregate(self, stacks: dict[str, Tensor]) -> dict[str, Tensor]:
            return {path: stack.mean(0) for path, stack in stacks.items()}

    with pytest.raises(ud.ConfigError, match="'draws1' and 'choice' cannot be combined: both own who takes part"):
        Draws1() + ud.choice()
    with pytest.raises(ud.ConfigError, match="both own how updates are aggregated"):
        Means() + ud.median()
    means = run(Means(), weighting="uniform")
    assert torch.allclose(weights(means), weights(run(ud.fedavg(), weighting="uniform")), atol=1e-6)
    assert [line["clients"] for line in run(Draws1()).rounds] == [[0], [0]]
