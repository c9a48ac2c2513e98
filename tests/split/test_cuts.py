"""What a cut costs, and the gradient variance of the clients' part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from splitting import clients, net, run
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.experiment.cuts import cut_table, expected_visits
from undrift.measure.split import SplitVariance
from undrift.models import build
from undrift.rounds.plan import Plan

DATA = clients((4,), (3, 12, 8, 7))


def test_costs_of_the_papers_cnn() -> None:
    """28x28: conv 1->32 (9 weights), pool, conv 32->64, pool, dense 3136->128, dense 128->10."""
    rows = cut_table(build("cnn-split", input_shape=(1, 28, 28), classes=10), (1, 28, 28))
    parameters = [9 * 32 + 32, 9 * 32 * 64 + 64, 3136 * 128 + 128, 128 * 10 + 10]
    madds = [28 * 28 * 9 * 32, 14 * 14 * 9 * 32 * 64, 3136 * 128, 128 * 10]
    assert [row.client.parameters for row in rows] == [sum(parameters[:k]) for k in (1, 2, 3)]
    assert [row.server.parameters for row in rows] == [sum(parameters[k:]) for k in (1, 2, 3)]
    assert [row.client.madds for row in rows] == [sum(madds[:k]) for k in (1, 2, 3)]
    assert [row.server.madds for row in rows] == [sum(madds[k:]) for k in (1, 2, 3)]
    assert [row.smashed for row in rows] == [32 * 14 * 14, 64 * 7 * 7, 128]


def test_transposed_convolutions_and_shared_modes() -> None:
    """2x2 to 4x4: every one of the 3*5*4 weights meets each of the 4 inputs; the model stays in training mode."""
    model = nn.Sequential(nn.ConvTranspose2d(3, 5, 2, stride=2), nn.Flatten(), nn.Linear(80, 2))
    assert cut_table(model, (3, 2, 2))[0].client.madds == 3 * 5 * 4 * 4
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_of_a_round_are_those_of_a_run(norm: bool) -> None:
    model = net(norm=norm)
    result = run(model, DATA, ud.minibatch_sfl(cut=2), local_epochs=2)
    plan = Plan(rounds=1, lr=0.1, local_epochs=2, batch_size=4)
    row = cut_table(model, (4,))[1]
    assert row.bytes_per_round(*expected_visits(plan, [len(y) for _, y in DATA])) == (
        result.history[1]["bytes_down"],
        result.history[1]["bytes_up"],
    )


def test_visits_count_repetitions() -> None:
    plan = Plan(rounds=1, lr=0.1, local_steps=7, batch_size=5)
    assert plan.visits(12) == 2 * 12 + 5
    assert Plan(rounds=1, lr=0.1, local_epochs=3).visits(12) == 36


def test_the_command_prints_every_cut(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[partition]\nclients = 5\n")
    result = CliRunner().invoke(app, ["cuts", str(path), "--set", "model.hidden=[20, 10]"])
    assert result.exit_code == 0
    assert "1,300" in result.output
    assert "dense1" not in result.output
    assert "relu2" in result.output
    short = CliRunner().invoke(app, ["cuts", str(path), "--set", "model.name=linear"])
    assert "cannot be cut" in short.output


@pytest.mark.parametrize(("algorithm", "cut"), [(ud.minibatch_sfl(cut=2), 2), (ud.sfl_v2(cut="2"), 1)])
def test_gradient_variance_of_the_clients_part(algorithm: ud.Rule, cut: int) -> None:
    """With one batch for each client there is none at a client, and across clients it is that of full gradients."""
    result = run(net(), DATA, algorithm, batch_size=0, measures=[SplitVariance()])
    model = result.model
    front = [p for name, p in model.named_parameters() if int(name.split(".")[0]) < 4 * cut]
    gradients = []
    for x, y in DATA:
        loss = nn.functional.cross_entropy(model(x), y)
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, front)]))
    stacked = torch.stack(gradients)
    across = float((stacked - stacked.mean(0)).square().sum(1).mean()) / cut
    record = result.history[-1]["split_variance"]
    assert record["client"] == 0
    assert record["clients"] == pytest.approx(across, rel=1e-10)
    assert record["blocks"] == cut


def test_gradient_variance_at_a_client() -> None:
    x, y = DATA[1]
    result = run(net(dropout=False), [(x, y)], ud.minibatch_sfl(cut=1), batch_size=1, measures=[SplitVariance()])
    model = result.model
    each = []
    for row, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(row[None]), label[None])
        each.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.get_submodule("0").parameters()))])
        )
    stacked = torch.stack(each)
    expected = float((stacked - stacked.mean(0)).square().sum(1).mean())
    assert result.history[-1]["split_variance"]["client"] == pytest.approx(expected, rel=1e-10)
    assert result.history[-1]["split_variance"]["clients"] == 0
    whole = run(net(), DATA, ud.fedavg(), measures=[SplitVariance()]).history[-1]["split_variance"]
    assert whole["blocks"] == 3
