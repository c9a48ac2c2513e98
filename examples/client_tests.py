"""Test data of every client's own: how well the model serves each of them, and who is served worst."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import undrift as ud
from frozen_backbone import federation


def run(**settings: Any) -> ud.Result:
    """A fifth of every client's data is held out."""
    clients, test = federation()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    given = {"rounds": 10, "lr": 0.1, "batch_size": 20, **settings}
    return ud.simulate(model, clients, "fedavg", test_data=test, client_test=0.2, **given)


if __name__ == "__main__":
    last = run().history[-1]
    print(f"mean {last['clients_accuracy']:.3f}, a tenth below {last['clients_accuracy_p10']:.3f}")
    print(f"worst: client {last['clients_worst']} with {last['clients_accuracy_worst']:.3f}")
