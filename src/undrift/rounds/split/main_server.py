"""The main server: it trains the back of the model on smashed data, and answers with their gradients.

One step for the clients that act together: ``w_s <- w_s - eta_s * (sum_n q_n grad h(w_s; z_n) + decay * w_s)``;
client ``n`` gets ``(1/q_n) * d/dz_n sum_m q_m h(w_s; z_m)``, taken before the step: without batch norm across
clients that is the gradient of its own mean loss, which does not carry ``q_n``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from undrift.core.nested import call
from undrift.core.streams import torch_seed
from undrift.rounds.messages import Broadcast
from undrift.rounds.split.messages import Gradient, MainUpdate, Smashed
from undrift.rounds.split.noise import Noise, dealt
from undrift.rounds.split.parts import SplitParts

Answer = tuple[list[Tensor], list[float]]
"""Gradients with respect to the messages, and the clients' losses."""


class MainServer:
    """The server part of a model, as views into the whole model's memory.

    Where clients' batches are not one joint batch, each client's running statistics are its own; where clients have
    copies of the server part, the part is too. Both change hands when another client acts.
    """

    def __init__(self, parts: SplitParts) -> None:
        model, size, held = parts.worker.model, parts.halves.size, parts.halves.buffer_size
        self.worker, self.work, self.algorithm, self.halves = parts.worker, parts.work, parts.algorithm, parts.halves
        self.weights, self.grad, self.buffers = model.weights[size:], model.grad[size:], model.buffers[held:]
        # Batch norm makes one batch of the messages, so they cannot be handled one by one.
        norms = any(isinstance(layer, _BatchNorm) for layer in self.halves.server.modules())
        self.one_by_one = self.algorithm.faithful and not norms

    def begin(self, round: int) -> None:
        """A round begins."""
        self.noise = Noise(torch_seed(self.work.plan.seed, "server-noise", round, 1))

    def open(self, broadcast: Broadcast) -> None:
        """A synchronisation is over: begin from the server's model."""
        self.start = broadcast.x[self.halves.size :], broadcast.buffers[self.halves.buffer_size :]
        self.copies: dict[int, Tensor] = {}
        self.statistics: dict[int, Tensor] = {}
        self.acting: int | None = None
        self.worker.model.load(broadcast.x, broadcast.buffers)
        self.worker.model.mode(training=True)

    def step(self, messages: Sequence[Smashed], q: Sequence[float], lr: float) -> list[Gradient]:
        """Answer the messages of clients that act together, and make one step of size ``lr``."""
        if not self.algorithm.joint:
            self._hand_over(messages[0].client)
        noises = [Noise.at(message.stream) for message in messages]
        if len(messages) > 1 and self.one_by_one:
            gradients, losses = self._each(messages, q, noises)
        else:
            gradients, losses = self._together(messages, q, noises)
        if decay := self.work.plan.weight_decay:
            self.grad.add_(self.weights, alpha=decay)
        self.weights.sub_(self.grad, alpha=lr)
        return [
            Gradient(message.client, dz, loss, noise.state)
            for message, dz, loss, noise in zip(messages, gradients, losses, noises, strict=True)
        ]

    def close(self) -> MainUpdate:
        """The server part at a synchronisation."""
        self._hand_over(None)
        return MainUpdate(self.weights.clone(), self.buffers.clone(), self.copies, self.statistics)

    def _hand_over(self, client: int | None) -> None:
        """Another client acts: keep what is the last one's own, and bring in what is this one's."""
        if client == self.acting:
            return
        if self.acting is not None:
            self.statistics[self.acting] = self.buffers.clone()
            if self.algorithm.copies:
                self.copies[self.acting] = self.weights.clone()
        if client is not None:
            weights, buffers = self.start
            self.buffers.copy_(self.statistics.get(client, buffers))
            if self.algorithm.copies:
                self.weights.copy_(self.copies.get(client, weights))
        self.acting = client

    def _together(self, messages: Sequence[Smashed], q: Sequence[float], noises: Sequence[Noise]) -> Answer:
        """All messages as one batch, in one forward and one backward pass."""
        received = [message.z.detach().requires_grad_() for message in messages]
        sizes = [len(z) for z in received]
        with contextlib.ExitStack() as stack:
            if len(messages) == 1:
                stack.enter_context(noises[0].drawn())
            else:
                stack.enter_context(self.noise.drawn())
                stack.enter_context(dealt(self.halves.server, sizes, noises))
            stack.enter_context(self.worker.autocast())
            out = call(self.halves.server, torch.cat(received))
        losses = [self._loss(rows, m.labels) for rows, m in zip(torch.split(out, sizes), messages, strict=True)]
        self.grad.zero_()
        joint = losses[0] if len(losses) == 1 else torch.stack(losses) @ losses[0].new_tensor(q)
        joint.backward()  # type: ignore[no-untyped-call]
        weights = [1.0] if len(losses) == 1 else q
        gradients = [_gradient_of(z).div_(weight) for z, weight in zip(received, weights, strict=True)]
        return gradients, [float(loss.detach()) for loss in losses]

    def _each(self, messages: Sequence[Smashed], q: Sequence[float], noises: Sequence[Noise]) -> Answer:
        """Message after message, their gradients added up with their weights."""
        total = torch.zeros_like(self.grad)
        gradients: list[Tensor] = []
        losses: list[float] = []
        for message, weight, noise in zip(messages, q, noises, strict=True):
            answer, loss = self._together([message], [1.0], [noise])
            total.add_(self.grad, alpha=weight)
            gradients += answer
            losses += loss
        self.grad.copy_(total)
        return gradients, losses

    def _loss(self, out: Tensor, labels: Tensor) -> Tensor:
        return self.work.loss(out.float() if out.dtype == torch.bfloat16 else out, labels)


def _gradient_of(z: Tensor) -> Tensor:
    assert z.grad is not None, "the server part does not depend on its input"
    return z.grad
