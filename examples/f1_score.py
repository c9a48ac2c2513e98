"""A torchmetrics metric: it stands in every record, in the summary, and decides when the run has gone far enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchmetrics.classification import MulticlassF1Score

import undrift as ud
from frozen_backbone import federation


def run(**settings: Any) -> ud.Result:
    """Stop when F1 has not improved for five evaluations."""
    clients, test = federation()
    torch.manual_seed(0)
    return ud.simulate(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        clients,
        "fedadc",
        test_data=test,
        metrics={"f1": MulticlassF1Score(num_classes=10, average="macro")},
        monitor="f1",
        **{"rounds": 12, "lr": 0.05, "batch_size": 20, "patience": 5, **settings},
    )


if __name__ == "__main__":
    result = run()
    print(result, f"best {result.summary['best_f1']:.3f}")
