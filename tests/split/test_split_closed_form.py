"""Two rounds of each split algorithm, once more in plain NumPy loops written from the equations.

A two-layer net cut in the middle: the client has ``a = tanh(W1 x + b1)``, the server ``softmax(W2 a + b2)``. For one
minibatch of size ``m`` with its mean loss: ``dl = (softmax - onehot) / m``, ``dW2 = dl^T a``, ``db2 = sum dl``,
the smashed data's gradient ``da = dl W2``; at the client ``du = da * (1 - a^2)``, ``dW1 = du^T x``, ``db1 = sum du``.
Only draws (the order of samples and of clients) come from the library, because they define the data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from splitting import clients
from torch import nn

import undrift as ud
from undrift.core.streams import stream
from undrift.rounds.plan import batches

Array = NDArray[np.float64]
Part = list[Array]
SIZES, B, E, LR, MAIN, DECAY, SEED = (2, 11, 5, 40), 3, 2, 0.3, 0.2, 0.01, 7
DATA = [(x.numpy(), y.numpy()) for x, y in clients((3,), SIZES)]
P = np.array(SIZES) / sum(SIZES)


def start() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def smash(c: Part, x: Array) -> Array:
    return np.tanh(x @ c[0].T + c[1])


def serve(s: Part, a: Array, y: NDArray[np.int64]) -> tuple[Part, Array]:
    """The server part's gradient of the minibatch's mean loss, and the smashed data's."""
    u = a @ s[0].T + s[1]
    p = np.exp(u - u.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    dl = (p - np.eye(3)[y]) / len(y)
    return [dl.T @ a + DECAY * s[0], dl.sum(0) + DECAY * s[1]], dl @ s[0]


def client_step(c: Part, x: Array, a: Array, da: Array) -> Part:
    du = da * (1 - a**2)
    return [c[0] - LR * (du.T @ x + DECAY * c[0]), c[1] - LR * (du.sum(0) + DECAY * c[1])]


def less(part: Part, rate: float, gradient: Part) -> Part:
    return [w - rate * g for w, g in zip(part, gradient, strict=True)]


def mean(parts: list[Part], weights: Array) -> Part:
    return [sum(w * part[i] for w, part in zip(weights / weights.sum(), parts, strict=True)) for i in range(2)]


def epochs_of(client: int, round: int) -> list[list[NDArray[np.int64]]]:
    """A client's batches, epoch by epoch."""
    walk = list(batches(SIZES[client], B, E, None, stream(SEED, "order", round, client)))
    each = math.ceil(SIZES[client] / B)
    return [walk[e * each : (e + 1) * each] for e in range(E)]


def step(c: Part, s: Part, client: int, batch: NDArray[np.int64]) -> tuple[Part, Part]:
    """One client and the main server alone; returns both parts after the step."""
    x, y = DATA[client][0][batch], DATA[client][1][batch]
    a = smash(c, x)
    gs, da = serve(s, a, y)
    return client_step(c, x, a, da), less(s, MAIN, gs)


def v1(c: Part, s: Part, round: int) -> tuple[Part, Part]:
    ends = []
    for client in range(4):
        own = copy.deepcopy((c, s))
        for epoch in epochs_of(client, round):
            for batch in epoch:
                own = step(*own, client, batch)
        ends.append(own)
    return mean([e[0] for e in ends], P), mean([e[1] for e in ends], P)


def v2(c: Part, s: Part, round: int) -> tuple[Part, Part]:
    fronts = {}
    for client in stream(SEED, "main-order", round).permutation(4):
        own = copy.deepcopy(c)
        for epoch in epochs_of(client, round):
            for batch in epoch:
                own, s = step(own, s, client, batch)
        fronts[int(client)] = own
    return mean([fronts[client] for client in range(4)], P), s


def v2_step(c: Part, s: Part, round: int) -> tuple[Part, Part]:
    fronts = [copy.deepcopy(c) for _ in range(4)]
    walks = [epochs_of(client, round) for client in range(4)]
    order = stream(SEED, "main-order", round).permutation(4)
    for e in range(E):
        for t in range(max(len(walk[e]) for walk in walks)):
            for client in order:
                if t < len(walks[client][e]):
                    fronts[client], s = step(fronts[client], s, client, walks[client][e][t])
    return mean(fronts, P), s


def minibatch(c: Part, s: Part, round: int, sync: int = 10**9) -> tuple[Part, Part]:
    fronts = {client: copy.deepcopy(c) for client in range(4)}
    walks = [epochs_of(client, round) for client in range(4)]
    count, acted = 0, set()
    for e in range(E):
        for t in range(max(len(walk[e]) for walk in walks)):
            acting = [client for client in range(4) if t < len(walks[client][e])]
            q = P[acting] / P[acting].sum()
            total: Part = [np.zeros_like(w) for w in s]
            for client, weight in zip(acting, q, strict=True):
                x, y = (part[walks[client][e][t]] for part in DATA[client])
                a = smash(fronts[client], x)
                gs, da = serve(s, a, y)
                total = less(total, -weight, gs)
                fronts[client] = client_step(fronts[client], x, a, da)
            s = less(s, MAIN, total)
            acted |= set(acting)
            count += 1
            if count % sync == 0:
                c = mean([fronts[client] for client in sorted(acted)], P[sorted(acted)])
                fronts, acted = {client: copy.deepcopy(c) for client in range(4)}, set()
    if acted:
        c = mean([fronts[client] for client in sorted(acted)], P[sorted(acted)])
    return c, s


def minibatch_synchronised(c: Part, s: Part, round: int) -> tuple[Part, Part]:
    return minibatch(c, s, round, sync=3)


Round = Callable[[Part, Part, int], tuple[Part, Part]]


@pytest.mark.parametrize(
    ("algorithm", "round_of"),
    [
        (ud.sfl_v1(main_lr=MAIN), v1),
        (ud.sfl_v1(main_lr=MAIN, faithful=True), v1),
        (ud.sfl_v2(main_lr=MAIN), v2),
        (ud.sfl_v2(main_lr=MAIN, order="step"), v2_step),
        (ud.minibatch_sfl(main_lr=MAIN), minibatch),
        (ud.minibatch_sfl(main_lr=MAIN, faithful=True), minibatch),
        (ud.minibatch_sfl(main_lr=MAIN, sync_steps=3), minibatch_synchronised),
    ],
    ids=["v1", "v1-messages", "v2", "v2-step", "minibatch", "minibatch-messages", "minibatch-sync"],
)
def test_two_rounds(algorithm: ud.Rule, round_of: Round) -> None:
    model = start()
    w1, b1, w2, b2 = (p.detach().numpy().copy() for p in model.parameters())
    c, s = [w1, b1], [w2, b2]
    for round in (1, 2):
        c, s = round_of(c, s, round)
    data: Any = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in DATA]
    result = ud.simulate(
        model, data, algorithm, rounds=2, local_epochs=E, batch_size=B, lr=LR, weight_decay=DECAY, seed=SEED, workers=0
    )
    for parameter, expected in zip(result.model.parameters(), (*c, *s), strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-12)
