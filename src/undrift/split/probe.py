"""What has to be known before the first split round: sizes at the cut, and what the rules will ask for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from undrift.rule import Chain, ClientAt
from undrift.worker import Worker


def smashed_bytes(worker: Worker, client: nn.Sequential) -> int:
    """What one sample's smashed data cost."""
    with torch.no_grad():
        return _forward(worker, client).nbytes


def graph_bytes(worker: Worker, client: nn.Sequential) -> int:
    """What autograd keeps of one sample's forward pass through the clients' part."""
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(0 if isinstance(tensor, nn.Parameter) else tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _forward(worker, client)
    return sum(kept)


def asks_full_gradient(rule: Chain, x: Tensor) -> bool:
    """Whether a rule has clients compute full-batch gradients, which go through the cut too."""
    asked: list[bool] = []

    def ask() -> Tensor:
        asked.append(True)
        return torch.zeros_like(x)

    at = ClientAt(x, rule.down(rule.init_server(x), 1), rule.init_client(x), 1.0, 1, 1, ask)
    at.local = rule.start(at)
    rule.up(x, at)
    return bool(asked)


def _forward(worker: Worker, client: nn.Sequential) -> Tensor:
    worker.mode(training=False)
    with worker.autocast():
        z: Tensor = client(worker.work.federation.x[:1].to(worker.work.device))
    return z
