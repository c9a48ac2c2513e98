"""A hand-written loop: plain PyTorch, our networks, channels-last, one process or several with shared memory.

It knows one algorithm and checks nothing: the floor that an engine with the same kernels can be measured
against. Each process trains its share of the cohort and adds its clients' models up in a shared vector.
"""

from __future__ import annotations

import multiprocessing

import numpy as np
import torch
import torch.nn.functional as F

import undrift
from peers import common
from undrift import models

CHUNK = 200


class Trainer:
    """One process's model and its view of the data."""

    def __init__(self, work: dict, x: torch.Tensor, y: torch.Tensor, test: tuple | None) -> None:
        self.work, self.x, self.y, self.test = work, x, y, test
        self.model = build(work)
        self.parameters = list(self.model.parameters())
        self.sizes = [p.numel() for p in self.parameters]

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """The parameters' places in a flat vector, those of convolutions in channels-last order."""
        return [_shaped(part, p.shape) for p, part in zip(self.parameters, vector.split(self.sizes), strict=True)]

    def load(self, weights: torch.Tensor) -> None:
        """Copy a flat vector into the model."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.views(weights))

    def clients(self, users: list[int], weights: torch.Tensor, total: torch.Tensor, number: int = 0) -> None:
        """Train these clients, one after the other; ``total`` becomes the sum of their models."""
        total.zero_()
        batch, lr = self.work["batch"], self.work["lr"]
        pieces = self.views(total)
        self.model.train()
        for user in users:
            self.load(weights)
            own = common.rows(self.work, user)
            for index in (torch.randperm(self.work["per_user"]) + own.start).split(batch):
                x = self.x.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2) if self.x.dim() == 4 else self.x[index]
                for p in self.parameters:
                    p.grad = None
                F.cross_entropy(self.model(x), self.y[index]).backward()
                with torch.no_grad():
                    torch._foreach_add_(self.parameters, [p.grad for p in self.parameters], alpha=-lr)
            with torch.no_grad():
                torch._foreach_add_(pieces, self.parameters)

    def after(self, before: torch.Tensor, weights: torch.Tensor, cohort: int) -> None:
        """Nothing comes after the mean of the models."""

    def evaluate(self, share: int, of: int, weights: torch.Tensor) -> tuple[float, int]:
        """Do one process's part of the evaluation."""
        self.load(weights)
        self.model.eval()
        loss, correct = 0.0, 0
        x, y = self.test
        with torch.inference_mode():
            for start in range(share * CHUNK, len(y), of * CHUNK):
                out, target = self.model(x[start : start + CHUNK]), y[start : start + CHUNK]
                loss += float(F.cross_entropy(out, target, reduction="sum"))
                correct += int((out.argmax(1) == target).sum())
        return loss, correct


def _shaped(part: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if len(shape) != 4:
        return part.view(shape)
    return part.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)


def build(work: dict) -> torch.nn.Module:
    options = {"norm": "group"} if work["model"].startswith("resnet") else {}
    module = models.build(
        work["model"], input_shape=tuple(work["shape"]), classes=work["classes"], seed=work["seed"], **options
    )
    return module.to(memory_format=torch.channels_last)


def serve(pipe, trainer: Trainer, number: int, processes: int, weights: torch.Tensor, total: torch.Tensor) -> None:
    torch.set_num_threads(1)
    while True:
        task = pipe.recv()
        if task is None:
            return
        if task == "evaluate":
            pipe.send(trainer.evaluate(number, processes, weights))
        else:
            trainer.clients(task, weights, total, number)
            pipe.send(None)


def main(kind: type[Trainer] = Trainer) -> None:
    work = common.spec()
    torch.set_num_threads(1)
    x, y = common.data(work, "train")
    test = common.data(work, "test") if work["eval_every"] or work["algorithm"] == "fsl" else None
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
        test = test and (test[0].contiguous(memory_format=torch.channels_last), test[1])
    trainer = kind(work, x, y, test)
    processes = work["processes"]
    weights = torch.zeros(sum(trainer.sizes)).share_memory_()
    with torch.no_grad():
        torch._foreach_copy_(trainer.views(weights), trainer.parameters)
    totals = [torch.zeros_like(weights).share_memory_() for _ in range(processes)]
    pipes = []
    if processes > 1:
        context = multiprocessing.get_context("fork")
        for number, total in enumerate(totals):
            ours, theirs = context.Pipe()
            context.Process(
                target=serve, args=(theirs, trainer, number, processes, weights, total), daemon=True
            ).start()
            pipes.append(ours)
    rng, clock = np.random.default_rng(work["seed"]), common.Clock(work["rounds"])
    for round in range(1, work["rounds"] + 1):
        cohort = rng.choice(work["users"], work["cohort"], replace=False).tolist()
        if pipes:
            for number, pipe in enumerate(pipes):
                pipe.send(cohort[number::processes])
            for pipe in pipes:
                pipe.recv()
        else:
            trainer.clients(cohort, weights, totals[0])
        before = weights.clone() if kind is not Trainer else weights
        torch.div(sum(totals), len(cohort), out=weights)
        trainer.after(before, weights, len(cohort))
        if work["eval_every"] and round % work["eval_every"] == 0:
            for pipe in pipes:
                pipe.send("evaluate")
            _ = [pipe.recv() for pipe in pipes] or trainer.evaluate(0, 1, weights)
        clock.tick()
    for pipe in pipes:
        pipe.send(None)
    trainer.load(weights)
    common.report(work, clock, trainer.model, {"undrift": undrift.__version__})


if __name__ == "__main__":
    main()
