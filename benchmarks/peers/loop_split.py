"""A hand-written MiniBatch-SFL: the model is cut after its first block, and all clients step together.

In one process: a front for each client of the cohort, one back, whose batch is that of all clients together.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F

from peers import common, loop
from undrift.models import cut


class SplitTrainer(loop.Trainer):
    """The only process's trainer."""

    def __init__(self, work: dict, x: torch.Tensor, y: torch.Tensor, test: tuple | None) -> None:
        super().__init__(work, x, y, test)
        client, self.back = cut(self.model, 1)
        self.fronts = [copy.deepcopy(client) for _ in range(work["cohort"])]
        self.halves = [list(front.parameters()) for front in self.fronts]
        self.rest = list(self.back.parameters())

    def clients(self, users: list[int], weights: torch.Tensor, total: torch.Tensor, number: int = 0) -> None:
        """A round of all clients together; ``total`` becomes as many times the mean of their models."""
        first = len(self.halves[0])
        self.load(weights)
        for half in self.halves:
            with torch.no_grad():
                torch._foreach_copy_(half, self.parameters[:first])
        self.model.train()
        own = [torch.randperm(self.work["per_user"]) + common.rows(self.work, user).start for user in users]
        for indices in zip(*(order.split(self.work["batch"]) for order in own), strict=True):
            self._step(indices)
        total.zero_()
        pieces = self.views(total)
        with torch.no_grad():
            for half in self.halves:
                torch._foreach_add_(pieces[:first], half)
            torch._foreach_add_(pieces[first:], self.rest, alpha=len(users))

    def _step(self, indices: tuple[torch.Tensor, ...]) -> None:
        lr, count = self.work["lr"], len(indices)
        for p in self.rest:
            p.grad = None
        sent = []
        for front, half, index in zip(self.fronts, self.halves, indices, strict=True):
            for p in half:
                p.grad = None
            sent.append(front(self.x.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2)))
        joint = torch.cat([z.detach() for z in sent]).requires_grad_()
        F.cross_entropy(self.back(joint), torch.cat([self.y[index] for index in indices])).backward()
        answers = (joint.grad * count).split([len(index) for index in indices])
        for half, z, answer in zip(self.halves, sent, answers, strict=True):
            z.backward(answer)
            with torch.no_grad():
                torch._foreach_add_(half, [p.grad for p in half], alpha=-lr)
        with torch.no_grad():
            torch._foreach_add_(self.rest, [p.grad for p in self.rest], alpha=-lr)


if __name__ == "__main__":
    loop.main(SplitTrainer)
