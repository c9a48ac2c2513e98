"""The main server: it trains the back of the model on smashed data, and answers with their gradients.

One step for the clients that act together: ``w_s <- w_s - eta_s * (sum_n q_n grad h(w_s; z_n) + decay * w_s)``;
client ``n`` gets ``(1/q_n) * d/dz_n sum_m q_m h(w_s; z_m)``, taken before the step: without batch norm across
clients that is the gradient of its own mean loss, which does not carry ``q_n``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from undrift.split.messages import Gradient, Smashed
from undrift.split.noise import Noise, dealt
from undrift.worker import Loss

Answer = tuple[list[Gradient], list[float]]
"""Gradients for the clients, and their losses."""


class MainServer:
    """The server part of a model, as views into the whole model's memory."""

    def __init__(
        self,
        half: nn.Sequential,
        weights: Tensor,
        grad: Tensor,
        buffers: Tensor,
        loss: Loss,
        decay: float,
        autocast: Callable[[], contextlib.AbstractContextManager[object]],
        *,
        faithful: bool,
    ) -> None:
        self.half, self.weights, self.grad, self.buffers = half, weights, grad, buffers
        self.loss, self.decay, self.autocast = loss, decay, autocast
        # Batch norm makes one batch of the messages, so they cannot be handled one by one.
        self.one_by_one = faithful and not any(isinstance(layer, _BatchNorm) for layer in half.modules())

    def step(
        self,
        messages: Sequence[Smashed],
        q: Sequence[float],
        noises: Sequence[Noise],
        own: Noise,
        lr: float,
    ) -> Answer:
        """Answer the messages of clients that act together, and make one step of size ``lr``."""
        if len(messages) > 1 and self.one_by_one:
            answer = self._each(messages, q, noises)
        else:
            answer = self._together(messages, q, noises, own)
        if self.decay:
            self.grad.add_(self.weights, alpha=self.decay)
        self.weights.sub_(self.grad, alpha=lr)
        return answer

    def _together(self, messages: Sequence[Smashed], q: Sequence[float], noises: Sequence[Noise], own: Noise) -> Answer:
        """All messages as one batch, in one forward and one backward pass."""
        received = [message.z.detach().requires_grad_() for message in messages]
        sizes = [len(z) for z in received]
        with contextlib.ExitStack() as stack:
            if len(messages) == 1:
                stack.enter_context(noises[0].drawn())
            else:
                stack.enter_context(own.drawn())
                stack.enter_context(dealt(self.half, sizes, noises))
            stack.enter_context(self.autocast())
            out = self.half(torch.cat(received))
        losses = [self._loss(rows, m.labels) for rows, m in zip(out.split(sizes), messages, strict=True)]
        self.grad.zero_()
        joint = losses[0] if len(losses) == 1 else torch.stack(losses) @ losses[0].new_tensor(q)
        joint.backward()  # type: ignore[no-untyped-call]
        weights = [1.0] if len(losses) == 1 else q
        gradients = [
            Gradient(message.client, _gradient_of(z).div_(weight))
            for message, z, weight in zip(messages, received, weights, strict=True)
        ]
        return gradients, [float(loss.detach()) for loss in losses]

    def _each(self, messages: Sequence[Smashed], q: Sequence[float], noises: Sequence[Noise]) -> Answer:
        """Message after message, their gradients added up with their weights."""
        total = torch.zeros_like(self.grad)
        gradients: list[Gradient] = []
        losses: list[float] = []
        for message, weight, noise in zip(messages, q, noises, strict=True):
            answer, loss = self._together([message], [1.0], [noise], noise)
            total.add_(self.grad, alpha=weight)
            gradients += answer
            losses += loss
        self.grad.copy_(total)
        return gradients, losses

    def _loss(self, out: Tensor, labels: Tensor) -> Tensor:
        return self.loss(out.float() if out.dtype == torch.bfloat16 else out, labels)


def _gradient_of(z: Tensor) -> Tensor:
    assert z.grad is not None, "the server part does not depend on its input"
    return z.grad
