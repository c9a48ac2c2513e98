"""The algorithms once more, in plain NumPy loops written from their equations.

Nothing here is computed by the library: gradients are derived by hand, sums are loops. Only the draws come from
the library's random streams (who takes part, in which order samples are visited), because they define the data.

Softmax regression: ``z = W x + b``, loss ``-log softmax(z)[y]``, so ``dz = softmax(z) - onehot(y)``,
``dW = dz x^T``, ``db = dz``. Two layers: ``a = tanh(W1 x + b1)``, ``z = W2 a + b2``,
``da = W2^T dz``, ``d(W1 x + b1) = da * (1 - a^2)``. Gradients are means over the batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.core.streams import stream
from undrift.rounds.plan import batches

Vector = NDArray[np.float64]
Labels = NDArray[np.int64]
Data = tuple[Vector, Labels]


@dataclass
class Net:
    """Softmax regression (no hidden units) or a two-layer net with tanh; parameters in one vector."""

    inputs: int
    hidden: int
    classes: int

    def parts(self) -> list[slice]:
        """W (and b) of each layer: [W1, b1, W2, b2], or [W, b]."""
        sizes = (
            [self.hidden * self.inputs, self.hidden, self.classes * self.hidden, self.classes]
            if self.hidden
            else [self.classes * self.inputs, self.classes]
        )
        ends = np.cumsum([0, *sizes])
        return [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]

    def loss_and_gradient(self, theta: Vector, data: Data) -> tuple[float, Vector]:
        """Mean loss over a batch, and its gradient."""
        x, y = data
        parts = [theta[p] for p in self.parts()]
        if self.hidden:
            W1, b1, W2, b2 = parts[0].reshape(self.hidden, -1), parts[1], parts[2].reshape(self.classes, -1), parts[3]
            a = np.tanh(x @ W1.T + b1)
        else:
            W2, b2 = parts[0].reshape(self.classes, -1), parts[1]
            a = x
        z = a @ W2.T + b2
        z = z - z.max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        loss = float(-np.log(p[np.arange(len(y)), y]).mean())
        dz = p.copy()
        dz[np.arange(len(y)), y] -= 1
        dz /= len(y)
        gradient = [(dz.T @ a).ravel(), dz.sum(axis=0)]
        if self.hidden:
            before = (dz @ W2) * (1 - a**2)
            gradient = [(before.T @ x).ravel(), before.sum(axis=0), *gradient]
        return loss, np.concatenate(gradient)


@dataclass
class Settings:
    """What every algorithm shares; names as in the configuration."""

    rounds: int = 4
    lr: float = 0.3
    cohort: int | None = 3
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int = 4
    server_lr: float | Literal["sqrt"] = 1.0
    weight_decay: float = 0.01
    schedule: str = "cosine"
    lr_min: float | None = None
    milestones: Sequence[int] = ()
    decay: float = 0.1
    weighting: Literal["samples", "uniform"] = "samples"
    pretrain_epochs: int = 0
    pretrain_lr: float = 0.01
    seed: int = 5


@dataclass
class Server:
    """The server's memory, and the clients'."""

    x: Vector
    c: Vector
    h: Vector
    m: Vector
    c_i: dict[int, Vector] = field(default_factory=dict)
    h_i: dict[int, Vector] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def scheduled(
    value: float, kind: str, low: float | None, milestones: Sequence[int], decay: float, t: int, T: int
) -> float:
    """A rate in round ``t`` of ``T``."""
    if kind == "cosine" and T > 1:
        end = value / 100 if low is None else low
        return end + 0.5 * (value - end) * (1 + math.cos(math.pi * (t - 1) / (T - 1)))
    if kind == "multistep":
        for milestone in milestones:
            if t > milestone:
                value *= decay
    return value


def steps_of(n: int, s: Settings) -> int:
    """A client's own number of steps."""
    if s.local_steps is not None:
        return s.local_steps
    return s.local_epochs * math.ceil(n / (s.batch_size or n))


def cohort_of(t: int, N: int, s: Settings) -> list[int]:
    """Who takes part in round ``t``."""
    if s.cohort is None or s.cohort >= N:
        return list(range(N))
    return [int(i) for i in stream(s.seed, "cohort", t).choice(N, s.cohort, replace=False)]


def sgd(net: Net, start: Vector, data: Data, order: list[NDArray[np.int64]], rate: float, decay: float) -> Vector:
    """Plain SGD over given batches; weight decay is part of the gradient."""
    y = start.copy()
    for batch in order:
        _, g = net.loss_and_gradient(y, (data[0][batch], data[1][batch]))
        y = y - rate * (g + decay * y)
    return y


def run(
    net: Net,
    x: Vector,
    clients: list[Data],
    server_data: Data | None,
    s: Settings,
    algorithm: dict[str, dict[str, Any]],
) -> Server:
    """All rounds of an algorithm: ``{"fedpvr": {"mask": ...}, "fsl": {...}}``."""
    N = len(clients)
    own_sizes = [len(y) for _, y in clients]
    if "centralised" in algorithm:
        clients, N = [(np.concatenate([c[0] for c in clients]), np.concatenate([c[1] for c in clients]))], 1
    if "ds" in algorithm:
        assert server_data is not None
        clients = [with_share(i, c, server_data, s, algorithm["ds"].get("share", 1.0)) for i, c in enumerate(clients)]
    n = np.array([len(y) for _, y in clients])
    p = n / n.sum() if s.weighting == "samples" else np.full(N, 1 / N)
    zero = np.zeros_like(x)
    server = Server(x.copy(), zero.copy(), zero.copy(), zero.copy())
    if s.pretrain_epochs:
        assert server_data is not None
        order = list(batches(len(server_data[1]), s.batch_size, s.pretrain_epochs, None, stream(s.seed, "pretrain")))
        server.x = sgd(net, server.x, server_data, order, s.pretrain_lr, s.weight_decay)
    for t in range(1, s.rounds + 1):
        eta = scheduled(s.lr, s.schedule, s.lr_min, s.milestones, s.decay, t, s.rounds)
        one_round(net, server, t, eta, clients, n, p, server_data, sum(own_sizes), s, algorithm)
    return server


def with_share(i: int, client: Data, server_data: Data, s: Settings, share: float) -> Data:
    """``D_i`` and (a random part of) ``D_0`` together, as a multiset."""
    n_0 = len(server_data[1])
    rows = np.arange(n_0) if share == 1 else stream(s.seed, "share", i).choice(n_0, round(share * n_0), replace=False)
    return np.concatenate([client[0], server_data[0][rows]]), np.concatenate([client[1], server_data[1][rows]])


def one_round(
    net: Net,
    server: Server,
    t: int,
    eta: float,
    clients: list[Data],
    n: NDArray[np.int64],
    p: Vector,
    server_data: Data | None,
    own_samples: int,
    s: Settings,
    algorithm: dict[str, dict[str, Any]],
) -> None:
    x, N = server.x.copy(), len(clients)
    cohort = cohort_of(t, N, s)
    total = p[cohort].sum()
    w = {i: p[i] / total for i in cohort}
    delta, dc, dh, mean_y = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    loss = visits = steps = 0.0
    for i in cohort:
        y, own_loss, seen, K, change = one_client(net, server, x, t, eta, i, clients[i], s, algorithm)
        delta += w[i] * (y - x)
        mean_y += w[i] * y
        dc += p[i] * change
        dh += p[i] * (y - x)
        loss, visits, steps = loss + own_loss, visits + seen, steps + K
    server.losses.append(loss / visits)
    server.rates.append(eta)
    server.c = server.c + dc
    own_step = {"feddyn", "slowmo", "fedadc", "centralised"} & set(algorithm)
    eta_g = 1.0 if own_step else math.sqrt(len(cohort)) if s.server_lr == "sqrt" else float(s.server_lr)
    fsl = algorithm.get("fsl")

    def server_learning(start: Vector) -> Vector:
        assert fsl is not None
        assert server_data is not None
        n_0 = len(server_data[1])
        B = fsl.get("batch_size", s.batch_size) or n_0
        E = fsl.get("epochs") or math.ceil(visits / len(cohort) / n_0)
        K_0 = fsl.get("steps") or E * math.ceil(n_0 / B)
        eta_0 = fsl.get("lr") or eta_g * eta * (steps / len(cohort)) / K_0
        gamma = fsl.get("gamma", 1.0)
        if gamma == "ds":
            gamma = N * n_0 / own_samples
        gamma = scheduled(
            gamma,
            fsl.get("gamma_schedule", "constant"),
            fsl.get("gamma_min"),
            fsl.get("gamma_milestones", ()),
            fsl.get("gamma_decay", 0.1),
            t,
            s.rounds,
        )
        order = list(batches(n_0, B, 10_000, K_0, stream(s.seed, "server-order", t)))
        return sgd(net, start, server_data, order, gamma * eta_0, s.weight_decay)

    if "feddyn" in algorithm:
        alpha = algorithm["feddyn"]["alpha"]
        server.h = server.h - alpha * dh
        new = mean_y - server.h / alpha
    elif "slowmo" in algorithm:
        beta, a = algorithm["slowmo"]["beta"], algorithm["slowmo"].get("alpha", 1.0)
        server.m = beta * server.m + -delta / eta
        new = x - a * eta * server.m
    elif "fedadc" in algorithm:
        beta, a, e = (algorithm["fedadc"][k] for k in ("beta", "alpha", "embed"))
        server.m = -delta / eta + (beta - e) * server.m
        new = x - a * eta * server.m
    elif fsl is not None and "server_weight" in fsl:
        w_0 = fsl["server_weight"]
        new = x + eta_g * ((1 - w_0) * delta + w_0 * (server_learning(x) - x))
    else:
        new = x + eta_g * delta
    if fsl is not None and "server_weight" not in fsl:
        new = server_learning(new) if fsl.get("incremental", True) else new + (server_learning(x) - x)
    server.x = new


def one_client(
    net: Net,
    server: Server,
    x: Vector,
    t: int,
    eta: float,
    i: int,
    data: Data,
    s: Settings,
    algorithm: dict[str, dict[str, Any]],
) -> tuple[Vector, float, int, int, Vector]:
    """A client's steps; returns (y_i, summed loss, samples seen, K, c_i' - c_i) and writes its memory."""
    control = next((a for name, a in algorithm.items() if name in ("scaffold", "fedpvr")), None)
    mask = np.ones_like(x) if control is None else np.asarray(control.get("mask", np.ones_like(x)), dtype=np.float64)
    c_i, h_i = server.c_i.get(i, np.zeros_like(x)), server.h_i.get(i, np.zeros_like(x))
    adc, alpha = algorithm.get("fedadc"), algorithm.get("feddyn", {}).get("alpha", 0.0)
    mu = algorithm.get("fedprox", {}).get("mu", 0.0)
    K = steps_of(len(data[1]), s)
    m_bar = adc["embed"] * server.m / K if adc else np.zeros_like(x)
    order = list(batches(len(data[1]), s.batch_size, s.local_epochs, s.local_steps, stream(s.seed, "order", t, i)))
    assert len(order) == K
    y, loss, seen = x.copy(), 0.0, 0
    for batch in order:
        if adc and adc["variant"] == "nesterov":
            y = y - eta * m_bar
        value, g = net.loss_and_gradient(y, (data[0][batch], data[1][batch]))
        g = g + s.weight_decay * y + mu * (y - x)
        if control is not None:
            g = g + mask * (server.c - c_i)
        if alpha:
            g = g - h_i + alpha * (y - x)
        if adc and adc["variant"] == "heavyball":
            g = g + m_bar
        y = y - eta * g
        loss, seen = loss + value * len(batch), seen + len(batch)
    change = np.zeros_like(x)
    if control is not None:
        if control.get("option", 2) == 1:
            new = net.loss_and_gradient(x, data)[1] + s.weight_decay * x
        else:
            new = c_i - server.c + (x - y) / (K * eta)
        change = mask * (new - c_i)
        server.c_i[i] = mask * new
    if alpha:
        server.h_i[i] = h_i - alpha * (y - x)
    return y, loss, seen, K, change
