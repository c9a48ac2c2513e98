"""Hand-written loops of single algorithms: SCAFFOLD, FedPVR, FedDyn and server learning, as one would write them once.

Each is the loop of ``loop`` with its algorithm's few lines in it, on the same kernels and as many processes. What
clients keep lies in shared memory, a row for each client.
"""

from __future__ import annotations

import mmap

import torch
import torch.nn.functional as F

from peers import common, loop

ALPHA = 0.1
"""FedDyn's, as undrift has it."""


def shared(*shape: int) -> torch.Tensor:
    """Zeros that forked processes share; pages take room when they are touched."""
    count = torch.Size(shape).numel()
    return torch.frombuffer(mmap.mmap(-1, 4 * count), dtype=torch.float32).view(shape)


class RuleTrainer(loop.Trainer):
    """A process's trainer that knows one more algorithm."""

    def __init__(self, work: dict, x: torch.Tensor, y: torch.Tensor, test: tuple | None) -> None:
        super().__init__(work, x, y, test)
        self.algorithm, size = work["algorithm"], sum(self.sizes)
        last = sum(self.sizes[-2:]) if self.algorithm == "fedpvr" else size
        self.part = slice(size - last, size)
        """What control variates act on: all of the model, or its last layer."""
        keeps = self.algorithm in ("scaffold", "fedpvr", "feddyn")
        self.kept = shared(work["users"], last) if keeps else shared(1, 1)
        self.server = shared(last)
        """``c``, or ``h``."""
        self.sums = shared(work["processes"], last)
        self.correction = torch.zeros(size)
        self.start = torch.zeros(size)
        self.flat = torch.zeros(size)

    def clients(self, users: list[int], weights: torch.Tensor, total: torch.Tensor, number: int = 0) -> None:
        """Train these clients; ``total`` becomes the sum of their models, ``sums`` that of what else they send."""
        total.zero_()
        self.sums[number].zero_()
        pieces = self.views(total)
        self.model.train()
        for user in users:
            self.load(weights)
            self._open(user, weights)
            steps = 0
            own = common.rows(self.work, user)
            for index in (torch.randperm(self.work["per_user"]) + own.start).split(self.work["batch"]):
                x = self.x.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2) if self.x.dim() == 4 else self.x[index]
                self._step(x, self.y[index])
                steps += 1
            with torch.no_grad():
                torch._foreach_add_(pieces, self.parameters)
                self._close(user, weights, steps, number)

    def _open(self, user: int, weights: torch.Tensor) -> None:
        if self.algorithm in ("scaffold", "fedpvr"):
            torch.sub(self.kept[user], self.server, out=self.correction[self.part])
        elif self.algorithm == "feddyn":
            torch.add(self.kept[user], weights, alpha=ALPHA, out=self.correction)

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        lr = self.work["lr"]
        for p in self.parameters:
            p.grad = None
        F.cross_entropy(self.model(x), y).backward()
        with torch.no_grad():
            gradient = [p.grad for p in self.parameters]
            if self.algorithm == "feddyn":
                torch._foreach_add_(gradient, self.parameters, alpha=ALPHA)
            if self.algorithm in ("scaffold", "feddyn"):
                torch._foreach_sub_(gradient, self.views(self.correction))
            elif self.algorithm == "fedpvr":
                torch._foreach_sub_(gradient[-2:], self.views(self.correction)[-2:])
            torch._foreach_add_(self.parameters, gradient, alpha=-lr)

    def _close(self, user: int, weights: torch.Tensor, steps: int, number: int) -> None:
        if self.algorithm in ("scaffold", "fedpvr"):
            torch._foreach_copy_(self.views(self.flat), self.parameters)
            delta = (self.flat - weights)[self.part]
            c = torch.sub(self.correction[self.part], delta, alpha=1 / (steps * self.work["lr"]))
            self.sums[number].add_(c).sub_(self.kept[user])
            self.kept[user] = c
        elif self.algorithm == "feddyn":
            torch._foreach_copy_(self.views(self.flat), self.parameters)
            self.kept[user].sub_(self.flat - weights, alpha=ALPHA)

    def after(self, before: torch.Tensor, weights: torch.Tensor, cohort: int) -> None:
        """The server's part after the mean of the models has been taken."""
        users = self.work["users"]
        if self.algorithm in ("scaffold", "fedpvr"):
            self.server.add_(self.sums.sum(0), alpha=1 / users)
        elif self.algorithm == "feddyn":
            self.server.sub_(weights - before, alpha=ALPHA * cohort / users)
            weights.sub_(self.server, alpha=1 / ALPHA)
        elif self.algorithm == "fsl":
            self._learn(weights)

    def _learn(self, weights: torch.Tensor) -> None:
        """An epoch on the server's data, as far in all as a client goes."""
        assert self.test is not None
        x, y = (part[: self.work["server_samples"]] for part in self.test)
        batch, lr = self.work["batch"], self.work["lr"]
        clients_steps, steps = -(-self.work["per_user"] // batch), -(-len(y) // batch)
        self.load(weights)
        self.model.train()
        for index in torch.randperm(len(y)).split(batch):
            for p in self.parameters:
                p.grad = None
            F.cross_entropy(self.model(x[index]), y[index]).backward()
            with torch.no_grad():
                gradient = [p.grad for p in self.parameters]
                torch._foreach_add_(self.parameters, gradient, alpha=-lr * clients_steps / steps)
        with torch.no_grad():
            torch._foreach_copy_(self.views(weights), self.parameters)


if __name__ == "__main__":
    loop.main(RuleTrainer)
