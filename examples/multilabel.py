"""Several labels for each sample, each yes or no: accuracy per label, and how often all are right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import undrift as ud
from frozen_backbone import federation

TRAITS = ("even", "above four", "prime", "has a closed loop")


def traits(digits: Tensor) -> Tensor:
    """What is true of a digit."""
    prime, loop = torch.tensor([2, 3, 5, 7]), torch.tensor([0, 4, 6, 8, 9])
    return torch.stack([digits % 2 == 0, digits > 4, torch.isin(digits, prime), torch.isin(digits, loop)], 1).long()


def run(**settings: Any) -> ud.Result:
    """Clients who know two digits each learn what is true of all of them."""
    clients, (x, y) = federation()
    torch.manual_seed(0)
    return ud.simulate(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, len(TRAITS))),
        [(own, traits(labels)) for own, labels in clients],
        "fedavg",
        test_data=(x, traits(y)),
        task="multilabel",
        **{"rounds": 10, "lr": 0.3, "batch_size": 20, **settings},
    )


if __name__ == "__main__":
    result = run()
    print(result, f"all labels right: {result.summary['final_exact']:.3f}")
