"""A low-rank adapter (LoRA, Hu et al. 2021) beside frozen weights: W x + B A x, only A and B are trained and sent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import undrift as ud
from frozen_backbone import federation


class LowRank(nn.Module):
    """A linear layer that stays as it is, and a change of rank ``rank`` that learns, starting at nothing."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + x @ self.a.T @ self.b.T
        return out


def model() -> nn.Sequential:
    """Two adapted layers."""
    torch.manual_seed(0)
    return nn.Sequential(LowRank(nn.Linear(64, 128)), nn.ReLU(), LowRank(nn.Linear(128, 10)))


def run(**settings: Any) -> ud.Result:
    """Train the adapters with FedPVR on the last of them."""
    clients, test = federation()
    given = {"rounds": 40, "lr": 0.2, "batch_size": 20, **settings}
    return ud.simulate(model(), clients, ud.fedpvr(layers=1), test_data=test, **given)


if __name__ == "__main__":
    result = run()
    trained = sum(p.numel() for p in model().parameters() if p.requires_grad)
    print(result, f"{trained} of {sum(p.numel() for p in model().parameters())} parameters are trained")
