"""A frozen backbone with a small head: only the head is trained, sent and averaged."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import undrift as ud


class HeadOnBackbone(nn.Module):
    """Features that stay as they are (here: random ones, with batch norm), and a linear layer that learns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU())
        self.backbone.requires_grad_(False).eval()  # neither its weights nor its statistics change
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out


def federation() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Ten clients with two digits each, and a test set."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    test = torch.arange(len(y)) % 5 == 0
    pairs = [(y == a) | (y == (a + 1) % 10) for a in range(10)]
    return [(x[own & ~test], y[own & ~test]) for own in pairs], (x[test], y[test])


def run(**settings: Any) -> ud.Result:
    """Train the head with SCAFFOLD."""
    clients, test = federation()
    return ud.simulate(
        HeadOnBackbone(), clients, "scaffold", test_data=test, **{"rounds": 10, "lr": 0.3, "batch_size": 20, **settings}
    )


if __name__ == "__main__":
    result = run()
    print(result, f"{result.history[1]['bytes_up'] // 10} bytes up from each client and round")
