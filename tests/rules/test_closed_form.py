"""Every algorithm against an independent computation: partial participation, unequal clients, decaying rates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import Data, Net, Settings, Vector, run
from safetensors.torch import load_file
from torch import nn

import undrift as ud
from undrift.rules.rule import Rule

SIZES = (5, 12, 3, 20, 9, 1, 14)
INPUTS, HIDDEN, CLASSES = 4, 5, 3
TOLERANCE = 1e-12
"""Rounding: the largest difference seen is below 1e-13."""


def draw(seed: int, n: int, shift: float) -> Data:
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1.0, (n, INPUTS)), rng.integers(0, CLASSES, n)


CLIENTS = [draw(10 + i, n, 0.3 * i - 1) for i, n in enumerate(SIZES)]
SERVER = draw(99, 10, 0.2)


def module(hidden: int) -> nn.Sequential:
    torch.manual_seed(3)
    if hidden:
        return nn.Sequential(nn.Linear(INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES)).double()
    return nn.Sequential(nn.Linear(INPUTS, CLASSES)).double()


def flat(model: nn.Module) -> Vector:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def tensors(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(data[0]), torch.from_numpy(data[1])


NET = Net(INPUTS, HIDDEN, CLASSES)
PARTS = NET.parts()


def layers(*numbers: int) -> Vector:
    """1 on the weights and biases of these layers, 0 elsewhere."""
    mask = np.zeros(PARTS[-1].stop)
    for number in numbers:
        mask[PARTS[2 * number]] = mask[PARTS[2 * number + 1]] = 1
    return mask


def adc(**more: Any) -> dict[str, Any]:
    return {"beta": 0.8, "alpha": 1.0, "variant": "nesterov", "embed": 1.0} | more


def adc_rule(**more: Any) -> Rule:
    return ud.fedadc(**{"beta": 0.8, **more})


# name -> (rule, the same for the reference, settings that differ from the reference's defaults)
Case = tuple[Rule, dict[str, dict[str, Any]], dict[str, Any]]
CASES: dict[str, Case] = {
    "fedavg": (ud.fedavg(), {}, {}),
    "fedavg-all-clients": (ud.fedavg(), {}, {"cohort": None}),
    "fedavg-uniform-sqrt": (ud.fedavg(), {}, {"weighting": "uniform", "server_lr": "sqrt"}),
    "fedavg-steps-server-lr": (ud.fedavg(), {}, {"local_steps": 6, "server_lr": 0.7}),
    "fedavg-full-batch-multistep": (
        ud.fedavg(),
        {},
        {"batch_size": 0, "schedule": "multistep", "milestones": [1, 3], "decay": 0.5},
    ),
    "fedavg-epochs-lr-min": (ud.fedavg(), {}, {"local_epochs": 3, "lr_min": 0.1}),
    "fedprox": (ud.fedprox(mu=0.4), {"fedprox": {"mu": 0.4}}, {}),
    "fedprox-uniform": (ud.fedprox(mu=0.4), {"fedprox": {"mu": 0.4}}, {"weighting": "uniform", "local_epochs": 2}),
    "scaffold-2": (ud.scaffold(), {"scaffold": {}}, {}),
    "scaffold-2-uniform-sqrt": (
        ud.scaffold(option=2),
        {"scaffold": {}},
        {"weighting": "uniform", "server_lr": "sqrt", "local_epochs": 2},
    ),
    "scaffold-2-steps-multistep": (
        ud.scaffold(),
        {"scaffold": {}},
        {"local_steps": 3, "schedule": "multistep", "milestones": [2], "rounds": 6},
    ),
    "scaffold-1": (ud.scaffold(option=1), {"scaffold": {"option": 1}}, {"rounds": 6}),
    "scaffold-1-uniform": (
        ud.scaffold(option=1),
        {"scaffold": {"option": 1}},
        {"weighting": "uniform", "server_lr": 0.5},
    ),
    "fedpvr-last": (ud.fedpvr(layers=1), {"fedpvr": {"mask": layers(1)}}, {"rounds": 6}),
    "fedpvr-first-by-name": (ud.fedpvr(layers=["0"]), {"fedpvr": {"mask": layers(0)}}, {"weighting": "uniform"}),
    "fedpvr-all": (ud.fedpvr(layers=2), {"fedpvr": {}}, {}),
    "feddyn": (ud.feddyn(alpha=0.3), {"feddyn": {"alpha": 0.3}}, {"rounds": 6}),
    "feddyn-uniform-epochs": (
        ud.feddyn(alpha=0.3),
        {"feddyn": {"alpha": 0.3}},
        {"weighting": "uniform", "local_epochs": 2},
    ),
    "slowmo": (ud.slowmo(beta=0.6), {"slowmo": {"beta": 0.6}}, {"rounds": 6}),
    "slowmo-alpha-multistep": (
        ud.slowmo(beta=0.6, alpha=0.5),
        {"slowmo": {"beta": 0.6, "alpha": 0.5}},
        {"schedule": "multistep", "milestones": [1, 2], "weighting": "uniform"},
    ),
    **{
        f"fedadc-{variant}-{embed:g}-{downlink}": (
            adc_rule(variant=variant, embed=embed, downlink=downlink, alpha=a),
            {"fedadc": adc(variant=variant, embed=embed, alpha=a)},
            {"rounds": 5, "weighting": weighting},
        )
        for variant, a, weighting in (("heavyball", 0.9, "samples"), ("nesterov", 1.0, "uniform"))
        for embed in (0.0, 0.8, 1.0)
        for downlink in ("send", "track")
    },
    "fsl": (ud.fsl(), {"fsl": {}}, {}),
    "fsl-sqrt-uniform": (ud.fsl(gamma=0.6), {"fsl": {"gamma": 0.6}}, {"weighting": "uniform", "server_lr": "sqrt"}),
    "fsl-steps-at-clients": (ud.fsl(), {"fsl": {}}, {"local_steps": 7, "server_lr": 0.8}),
    "fsl-conference": (ud.fsl(lr=0.07, epochs=2), {"fsl": {"lr": 0.07, "epochs": 2}}, {}),
    "fsl-steps": (ud.fsl(steps=7), {"fsl": {"steps": 7}}, {}),
    "fsl-steps-lr-batch": (
        ud.fsl(steps=7, lr=0.05, batch_size=3),
        {"fsl": {"steps": 7, "lr": 0.05, "batch_size": 3}},
        {"local_epochs": 2},
    ),
    "fsl-epochs-coupled": (ud.fsl(epochs=3), {"fsl": {"epochs": 3}}, {"schedule": "multistep", "milestones": [2]}),
    "fsl-full-batches": (ud.fsl(batch_size=0), {"fsl": {"batch_size": 0}}, {}),
    "fsl-gamma-cosine": (
        ud.fsl(gamma=1.5, gamma_schedule="cosine", gamma_min=0.2),
        {"fsl": {"gamma": 1.5, "gamma_schedule": "cosine", "gamma_min": 0.2}},
        {},
    ),
    "fsl-gamma-multistep": (
        ud.fsl(gamma=1.5, gamma_schedule="multistep", gamma_milestones=(1, 3), gamma_decay=0.3),
        {"fsl": {"gamma": 1.5, "gamma_schedule": "multistep", "gamma_milestones": [1, 3], "gamma_decay": 0.3}},
        {},
    ),
    "fsl-gamma-ds": (ud.fsl(gamma="ds"), {"fsl": {"gamma": "ds"}}, {}),
    "fsl-p": (ud.fsl(incremental=False), {"fsl": {"incremental": False}}, {"server_lr": "sqrt"}),
    "fsl-weight": (
        ud.fsl(incremental=False, server_weight=0.3),
        {"fsl": {"incremental": False, "server_weight": 0.3}},
        {"server_lr": 0.9},
    ),
    "fsl-pretrained": (ud.fsl(), {"fsl": {}}, {"pretrain_epochs": 3, "pretrain_lr": 0.05}),
    "fedavg-pretrained": (ud.fedavg(), {}, {"pretrain_epochs": 2, "pretrain_lr": 0.1, "server_lr": "sqrt"}),
    "ds": (ud.ds(), {"ds": {}}, {}),
    "ds-share": (ud.ds(share=0.5), {"ds": {"share": 0.5}}, {}),
    "ds-uniform": (ud.ds(share=0.3), {"ds": {"share": 0.3}}, {"weighting": "uniform", "local_steps": 4}),
    "dsl": (ud.dsl(), {"ds": {}, "fsl": {}}, {}),
    "dsl-share": (ud.dsl(share=0.5, gamma=0.5), {"ds": {"share": 0.5}, "fsl": {"gamma": 0.5}}, {}),
    "centralised": (ud.centralised(), {"centralised": {}}, {"local_epochs": 2}),
    "centralised-server-lr-has-no-meaning": (ud.centralised(), {"centralised": {}}, {"server_lr": "sqrt"}),
    "fedpvr+fsl": (
        ud.fedpvr(1) + ud.fsl(gamma=0.8),
        {"fedpvr": {"mask": layers(1)}, "fsl": {"gamma": 0.8}},
        {"server_lr": "sqrt"},
    ),
    "fedadc+ds+fsl": (adc_rule() + ud.ds() + ud.fsl(), {"fedadc": adc(), "ds": {}, "fsl": {}}, {}),
    "fedadc-heavyball+ds": (
        adc_rule(variant="heavyball", embed=0.5) + ud.ds(0.5),
        {"fedadc": adc(variant="heavyball", embed=0.5), "ds": {"share": 0.5}},
        {"weighting": "uniform"},
    ),
    "scaffold+slowmo": (ud.scaffold() + ud.slowmo(beta=0.6), {"scaffold": {}, "slowmo": {"beta": 0.6}}, {"rounds": 6}),
    "fedpvr+slowmo": (
        ud.slowmo(beta=0.6) + ud.fedpvr(1),
        {"fedpvr": {"mask": layers(1)}, "slowmo": {"beta": 0.6}},
        {"weighting": "uniform"},
    ),
    "scaffold-1+fedadc": (
        ud.scaffold(option=1) + adc_rule(),
        {"scaffold": {"option": 1}, "fedadc": adc()},
        {"rounds": 5},
    ),
    "scaffold+fedadc-heavyball": (
        ud.scaffold() + adc_rule(variant="heavyball"),
        {"scaffold": {}, "fedadc": adc(variant="heavyball")},
        {"rounds": 5},
    ),
    "fedprox+fedadc": (ud.fedprox(0.4) + adc_rule(), {"fedprox": {"mu": 0.4}, "fedadc": adc()}, {}),
    "fedprox+scaffold": (
        ud.fedprox(0.4) + ud.scaffold(),
        {"fedprox": {"mu": 0.4}, "scaffold": {}},
        {"server_lr": "sqrt"},
    ),
    "fedprox+feddyn": (ud.fedprox(0.4) + ud.feddyn(0.3), {"fedprox": {"mu": 0.4}, "feddyn": {"alpha": 0.3}}, {}),
    "feddyn+fsl": (ud.feddyn(0.3) + ud.fsl(), {"feddyn": {"alpha": 0.3}, "fsl": {}}, {"rounds": 5}),
    "slowmo+fsl-p": (
        ud.slowmo(beta=0.6) + ud.fsl(incremental=False),
        {"slowmo": {"beta": 0.6}, "fsl": {"incremental": False}},
        {},
    ),
    "scaffold+ds": (ud.scaffold() + ud.ds(0.5), {"scaffold": {}, "ds": {"share": 0.5}}, {}),
    "fedprox+fedpvr+dsl": (
        ud.fedprox(0.4) + ud.fedpvr(1) + ud.dsl(),
        {"fedprox": {"mu": 0.4}, "fedpvr": {"mask": layers(1)}, "ds": {}, "fsl": {}},
        {},
    ),
}


def error(a: Any, b: Any) -> float:
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0.0))


@pytest.mark.parametrize("hidden", [0, HIDDEN], ids=["softmax", "two-layer"])
@pytest.mark.parametrize("name", CASES)
def test_same_numbers_as_the_equations(name: str, hidden: int, tmp_path: Path) -> None:
    rule, algorithm, changes = CASES[name]
    if not hidden and "fedpvr" in algorithm:
        pytest.skip("one layer only")
    settings = Settings(**changes)
    net = Net(INPUTS, hidden, CLASSES)
    start = module(hidden)
    expected = run(net, flat(start), CLIENTS, SERVER, settings, algorithm)
    result = ud.simulate(
        start,
        [tensors(c) for c in CLIENTS],
        rule,
        server_data=tensors(SERVER),
        workers=0,
        out=tmp_path / "run",
        **vars(settings),
    )
    assert result.server is not None
    found = {"x": error(result.server.x, expected.x), "model": error(flat(result.model), expected.x)}
    found["train_loss"] = error([r["train_loss"] for r in result.history[1:]], expected.losses)
    found["lr"] = error([r["lr"] for r in result.rounds], expected.rates)
    mask = algorithm.get("fedpvr", {}).get("mask", np.ones_like(expected.x)) != 0
    for link, own in result.server.state.items():
        for key, value in own.items():
            found[f"{link}/{key}"] = error(value, getattr(expected, key)[mask if key == "c" else slice(None)])
    for client, memory in memories(tmp_path / "run").items():
        for path, value in memory.items():
            found[f"{client}:{path}"] = error(value, getattr(expected, f"{path[-1]}_i")[client][mask])
    drawn = set(expected.c_i) | set(expected.h_i)
    assert set(memories(tmp_path / "run")) == drawn
    assert error(expected.x, flat(start)) > 1e-3
    assert max(found.values()) < TOLERANCE, found


def memories(folder: Path) -> dict[int, dict[str, torch.Tensor]]:
    """What every client that took part keeps, read from the last checkpoint."""
    files = json.loads((folder / "checkpoint" / "state.json").read_text())["clients"]
    return {int(client): load_file(folder / "checkpoint" / "clients" / name) for client, name in files.items()}


def test_the_reference_gradients_are_gradients() -> None:
    rng = np.random.default_rng(0)
    for hidden in (0, HIDDEN):
        net = Net(INPUTS, hidden, CLASSES)
        theta = rng.normal(size=net.parts()[-1].stop)
        _, g = net.loss_and_gradient(theta, CLIENTS[1])
        for k in range(len(theta)):
            step = np.zeros_like(theta)
            step[k] = 1e-5
            up, down = (net.loss_and_gradient(theta + sign * step, CLIENTS[1])[0] for sign in (1, -1))
            assert math.isclose((up - down) / 2e-5, g[k], abs_tol=1e-8)


def test_a_mask_of_slices_that_do_not_touch(tmp_path: Path) -> None:
    """FedPVR on the first and the last of three layers: the middle one is trained by plain SGD."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(INPUTS, 3), nn.Linear(3, 3), nn.Linear(3, CLASSES)).double()
    common: dict[str, Any] = {
        "rounds": 4,
        "cohort": 3,
        "batch_size": 4,
        "lr": 0.2,
        "schedule": "cosine",
        "seed": 2,
        "workers": 0,
    }
    clients = [tensors(c) for c in CLIENTS]
    split = ud.simulate(model, clients, ud.fedpvr(["0", "2"]), out=tmp_path / "split", **common)
    first = 3 * INPUTS + 3
    mask = np.ones(first + 12 + 3 * CLASSES + CLASSES, dtype=bool)
    mask[first : first + 12] = False
    rule = ByHand(tuple(float(bit) for bit in mask))
    whole = ud.simulate(model, clients, rule, out=tmp_path / "whole", **common)
    assert split.server is not None
    assert whole.server is not None
    assert error(split.server.x, whole.server.x) < 1e-13
    assert split.server.state["fedpvr"]["c"].numel() == mask.sum()
    assert error(split.server.state["fedpvr"]["c"], whole.server.state["byhand"]["c"][mask]) < 1e-13
    assert error(whole.server.state["byhand"]["c"][~mask], 0) == 0
    plain = ud.simulate(model, clients, ud.scaffold(), **common)
    assert plain.server is not None
    assert error(split.server.x, plain.server.x) > 1e-6


class ByHand(ud.Rule):
    """SCAFFOLD with zeros for the uncontrolled part, written out with full vectors."""

    def __init__(self, mask: tuple[float, ...]) -> None:
        self.mask = torch.tensor(mask, dtype=torch.float64)

    def init_server(self, x: torch.Tensor) -> dict[str, Any]:
        return {"c": torch.zeros_like(x)}

    init_client = init_server

    def down(self, state: dict[str, Any], round: int) -> dict[str, Any]:
        return {"c": state["c"]}

    def gradient(self, g: torch.Tensor, y: torch.Tensor, at: ud.ClientAt) -> None:
        g += self.mask * (at.down["c"] - at.kept["c"])

    def up(self, delta: torch.Tensor, at: ud.ClientAt) -> tuple[dict[str, Any], dict[str, Any]]:
        c = self.mask * (at.kept["c"] - at.down["c"] - delta / (at.steps * at.lr))
        return {"dc": c - at.kept["c"]}, {"c": c}

    def server(self, step: torch.Tensor, at: ud.ServerAt) -> tuple[torch.Tensor, dict[str, Any]]:
        return step, {"c": at.state["c"] + at.up["dc"]}
