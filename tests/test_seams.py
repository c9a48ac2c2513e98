"""Places where parts meet: the server in the mean, what a Python run is recognised by, what engines can carry."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.core.tree import Tree
from undrift.experiment.config import parse
from undrift.experiment.run_folder import RunFolder
from undrift.experiment.run_many import Planned, run_many
from undrift.rules.rule import ClientAt

Pair = tuple[Tensor, Tensor]


def clients(shift: float = 0.0) -> list[Pair]:
    make = torch.Generator().manual_seed(3)
    return [
        (torch.randn(n, 4, generator=make, dtype=torch.float64) + shift, torch.arange(n) % 3) for n in (6, 9, 12, 7)
    ]


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def run(algorithm: ud.Rule, **settings: object) -> ud.Result:
    x, y = clients()[0]
    defaults: dict[str, object] = {"rounds": 3, "cohort": 2, "batch_size": 4, "lr": 0.1, "workers": 0}
    return ud.simulate(net(), clients(), algorithm, server_data=(x, y), **(defaults | settings))  # type: ignore[arg-type]


def weights(result: ud.Result) -> Tensor:
    assert result.server is not None
    return result.server.x


def test_the_server_as_a_client_is_counted_in_before_the_momentum_whatever_the_order() -> None:
    one_more = ud.fsl(incremental=False, server_weight=0.3)
    first, last = run(one_more + ud.slowmo()), run(ud.slowmo() + one_more)
    assert torch.equal(weights(first), weights(last))
    assert not torch.equal(weights(first), weights(run(ud.slowmo())))


def test_the_weight_of_shared_data_counts_the_clients_own_samples_only() -> None:
    n_0, own, population = 6, 6 + 9 + 12 + 7, 4
    by_name = run(ud.ds() + ud.fsl(gamma="ds"))
    by_number = run(ud.ds() + ud.fsl(gamma=population * n_0 / own))
    assert torch.equal(weights(by_name), weights(by_number))


@pytest.mark.parametrize("change", ["model", "data", "rate"])
def test_a_python_run_is_not_resumed_with_something_else(tmp_path: Path, change: str) -> None:
    out = tmp_path / "run"
    ud.simulate(net(), clients(), rounds=1, workers=0, out=out)
    model, data, lr = net(), clients(), 0.01
    if change == "model":
        with torch.no_grad():
            next(model.parameters()).add_(1)
    elif change == "data":
        data = clients(shift=1.0)
    else:
        lr = 0.02
    with pytest.raises(ud.ConfigError, match="holds another run"):
        ud.simulate(model, data, rounds=1, workers=0, lr=lr, out=out, resume=True)
    ud.simulate(net(), clients(), rounds=1, workers=0, out=out, resume=True)


@dataclass(frozen=True)
class Counts(ud.Rule):
    """Keeps a whole number, which a vector of the model's type cannot carry."""

    def init_client(self, x: Tensor) -> Tree:
        return {"rounds": torch.zeros(1, dtype=torch.int64)}

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        return {}, {"rounds": at.kept["rounds"] + 1}


def test_state_of_another_type_is_refused_where_it_would_be_rounded() -> None:
    with pytest.raises(ud.ConfigError, match=r"rule 'counts': init_client gives rounds of torch\.int64"):
        run(Counts(), workers=1)


def test_records_hold_null_where_a_number_is_not_finite(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {"seed": 0}, resume=False)
    folder.begin()
    folder.append("metrics.jsonl", {"round": 1, "test_loss": float("nan"), "parts": [float("inf"), 1.0]})
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text()) == {
        "round": 1,
        "test_loss": None,
        "parts": [None, 1.0],
    }


def test_runs_are_forked_from_a_process_that_has_used_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.randn(2_000_000).clone().sum()  # large enough for a second thread
        config = parse({"partition": {"clients": 2}, "model": {"hidden": [4000]}, "train": {"rounds": 1}})
        failures = run_many([Planned("one", config, tmp_path / "one")])
    finally:
        torch.set_num_threads(before)
    assert not failures
    assert (tmp_path / "one" / "summary.json").exists()


def half_of_the_smallest() -> Tensor:
    """A denormal number, or 0 where they are flushed."""
    return torch.full((1,), torch.finfo(torch.float64).smallest_normal, dtype=torch.float64) / 2


@dataclass(frozen=True)
class Dying(ud.Rule):
    """Sends and remembers what becomes of a denormal number."""

    def init_server(self, x: Tensor) -> Tree:
        return {"server": half_of_the_smallest(), "client": torch.ones(1, dtype=x.dtype)}

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        return {"client": half_of_the_smallest()}, {}

    def server(self, step: Tensor, at: ud.ServerAt) -> tuple[Tensor, Tree]:
        return step, {"server": half_of_the_smallest(), "client": at.up["client"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_that_die_away_are_0_in_a_run_and_nowhere_else(workers: int) -> None:
    assert float(half_of_the_smallest()) > 0
    server = run(Dying(), workers=workers).server
    assert server is not None
    assert {name: float(value) for name, value in server.state["dying"].items()} == {"server": 0.0, "client": 0.0}
    assert float(half_of_the_smallest()) > 0


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda: ud.masked(ud.fedpvr(1), 2),
        lambda: ud.masked(ud.sfl_v1(cut=1), 1),
        lambda: ud.masked(ud.scaffold() + ud.slowmo(), 1) + ud.feddyn(),
    ],
)
def test_masks_that_make_no_sense_are_refused(algorithm: Callable[[], ud.Rule]) -> None:
    with pytest.raises(ud.ConfigError):
        algorithm()


def test_a_masked_chain_owns_what_its_links_own() -> None:
    with pytest.raises(ud.ConfigError, match="server_lr"):
        run(ud.masked(ud.scaffold() + ud.slowmo(), 1), server_lr=3.0)


def test_a_mask_over_all_layers_sends_what_the_rule_sends() -> None:
    rules = ud.masked(ud.fedadc(downlink="track"), 1), ud.fedadc(downlink="track"), ud.fedadc()
    masked, track, send = (run(rule, cohort=3).summary["bytes_down"] for rule in rules)
    assert masked == track != send


@pytest.mark.parametrize("settings", [{"precision": "fp16"}, {"seed": -1}])
def test_settings_of_a_python_run_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(ud.ConfigError, match=next(iter(settings))):
        run(ud.fedavg(), **settings)


def test_modules_left_in_evaluation_mode_train_at_every_worker() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    module[1].eval()
    x, y = clients()[0]
    ends = [
        ud.simulate(module, clients(), rounds=2, batch_size=0, lr=0.1, workers=workers, test_data=(x, y))
        for workers in (0, 1, 2)
    ]
    assert torch.equal(weights(ends[0]), weights(ends[1]))
    assert torch.equal(weights(ends[0]), weights(ends[2]))


def test_an_evaluation_of_many_chunks_does_not_fill_the_pipes() -> None:
    x, y = torch.randn(300_000, 4, dtype=torch.float64), torch.arange(300_000) % 3

    def child() -> None:
        ud.simulate(net(), clients(), rounds=2, workers=1, test_data=(x, y))

    process = get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == 0
