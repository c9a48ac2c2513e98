"""The second family once more, in plain NumPy loops written from the equations.

Local steps of the first family come from ``reference``; what is sent, clipped, rounded, noised, aggregated and stepped
is written out here. Only draws come from the library's random streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import reference
import torch
from numpy.typing import NDArray
from reference import Data, Net, Settings, Vector

from undrift.core.streams import HookRandom, stream
from undrift.rounds.plan import batches

Algorithm = dict[str, dict[str, Any]]


@dataclass
class World:
    """What server and clients remember."""

    first: reference.Server
    """x, c, h, m and the clients' c_i, h_i."""
    start: Vector
    v: Vector
    residual: dict[int, Vector] = field(default_factory=dict)
    last: dict[int, Vector] = field(default_factory=dict)
    """Each client's last model (moon), or its own layers (personal)."""
    cohorts: list[list[int]] = field(default_factory=list)


def uniforms(s: Settings, rule: str, purpose: str, t: int, client: int | None, size: int) -> Vector:
    generator = HookRandom(s.seed, t, client, rule).generator(purpose)
    return torch.rand(size, generator=generator, dtype=torch.float64).numpy()


def normals(s: Settings, rule: str, purpose: str, t: int, client: int | None, size: int) -> Vector:
    generator = HookRandom(s.seed, t, client, rule).generator(purpose)
    return torch.randn(size, generator=generator, dtype=torch.float64).numpy()


def run(net: Net, x: Vector, clients: list[Data], server_data: Data | None, s: Settings, algorithm: Algorithm) -> World:
    zero = np.zeros_like(x)
    tau = algorithm.get("fedopt", {}).get("tau", 1e-3)
    world = World(reference.Server(x.copy(), zero.copy(), zero.copy(), zero.copy()), x.copy(), np.full_like(x, tau**2))
    for t in range(1, s.rounds + 1):
        eta = reference.scheduled(s.lr, s.schedule, s.lr_min, s.milestones, s.decay, t, s.rounds)
        one_round(net, world, t, eta, clients, server_data, s, algorithm)
    return world


def cohort_of(net: Net, world: World, t: int, clients: list[Data], s: Settings, algorithm: Algorithm) -> list[int]:
    N, S = len(clients), s.cohort or len(clients)
    if "dp" in algorithm:
        chance = uniforms(s, "dp", "cohort", t, None, N)
        return [i for i in range(N) if chance[i] < S / N]
    if "choice" in algorithm:
        sizes = torch.tensor([float(len(y)) for _, y in clients], dtype=torch.float64)
        generator = HookRandom(s.seed, t, None, "choice").generator("candidates")
        d = algorithm["choice"]["candidates"]
        drawn = [int(i) for i in torch.multinomial(sizes, d, generator=generator)]
        losses = {i: net.loss_and_gradient(world.first.x, clients[i])[0] for i in drawn}
        return sorted(drawn, key=lambda i: -losses[i])[:S]
    return reference.cohort_of(t, N, s)


def one_round(
    net: Net,
    world: World,
    t: int,
    eta: float,
    clients: list[Data],
    server_data: Data | None,
    s: Settings,
    algorithm: Algorithm,
) -> None:
    first, N = world.first, len(clients)
    x = first.x.copy()
    n = np.array([len(y) for _, y in clients])
    p = n / n.sum() if s.weighting == "samples" else np.full(N, 1 / N)
    cohort = cohort_of(net, world, t, clients, s, algorithm)
    world.cohorts.append(cohort)
    deltas, changes, lengths = [], [], []
    for i in cohort:
        y, change, K = local(net, world, x, t, eta, i, clients[i], s, algorithm)
        a = float(K)
        if mu := algorithm.get("fedprox", {}).get("mu", 0.0):
            a = (1 - (1 - eta * mu) ** K) / (eta * mu)
        start = own_start(world, x, i, algorithm)
        delta, change = sent(world, y - start, change, a, t, i, net, s, algorithm)
        deltas.append(delta)
        changes.append(change)
        lengths.append(a)
    w = p[cohort] / p[cohort].sum() if cohort else np.zeros(0)
    share = float(p[cohort].sum())
    if "dp" in algorithm:
        delta, dc, share = private(x, deltas, changes, t, N, s, algorithm)
    else:
        delta = aggregated(np.array(deltas), np.array(deltas), w, algorithm)
        dc = share * aggregated(np.array(changes), np.array(deltas), w, algorithm)
    if "fednova" in algorithm:
        delta = delta * (w @ np.array(lengths))
    first.c = first.c + dc
    steps = [reference.steps_of(int(k), s) for k in (n if "dp" in algorithm else n[cohort])]
    first.x = server_step(world, x, delta, share, eta, len(cohort), s, algorithm)
    if "fsl" in algorithm:
        assert server_data is not None
        first.x = learnt(net, first.x, eta, float(np.mean(steps)), server_data, t, s, algorithm["fsl"])


def learnt(net: Net, x: Vector, eta: float, K: float, data: Data, t: int, s: Settings, fsl: dict[str, Any]) -> Vector:
    """Server learning with ``eta_0 = eta*K/K_0`` (server rate 1)."""
    K_0 = fsl["steps"]
    order = list(batches(len(data[1]), s.batch_size, 10_000, K_0, stream(s.seed, "server-order", t)))
    return reference.sgd(net, x, data, order, fsl["gamma"] * eta * K / K_0, s.weight_decay)


def own_start(world: World, x: Vector, i: int, algorithm: Algorithm) -> Vector:
    """The model that a client starts from: the server's with its own layers."""
    if "personal" not in algorithm:
        return x
    own = algorithm["personal"]["mask"]
    return np.where(own, world.last.get(i, world.start), x)


def local(
    net: Net, world: World, x: Vector, t: int, eta: float, i: int, data: Data, s: Settings, algorithm: Algorithm
) -> tuple[Vector, Vector, int]:
    if "moon" in algorithm:
        return with_moon(net, world, x, t, eta, i, data, s, algorithm["moon"])
    start = own_start(world, x, i, algorithm)
    y, _, _, K, change = reference.one_client(net, world.first, start, t, eta, i, data, s, algorithm)
    if "personal" in algorithm:
        world.last[i] = y.copy()
    return y, change, K


def with_moon(
    net: Net, world: World, x: Vector, t: int, eta: float, i: int, data: Data, s: Settings, moon: dict[str, Any]
) -> tuple[Vector, Vector, int]:
    """Features ``a = tanh(W1 u + b1)``; ``s = a.b/(|a||b|)``, so ``ds/da = b/(|a||b|) - s*a/|a|^2``.

    With ``f = e^{s_prev/t}/(e^{s_glob/t} + e^{s_prev/t})`` the term's gradient is ``mu*f*(ds_prev - ds_glob)/t``.
    """
    mu, temperature = moon["mu"], moon["temperature"]
    prev = world.last.get(i)
    order = list(batches(len(data[1]), s.batch_size, s.local_epochs, s.local_steps, stream(s.seed, "order", t, i)))
    y = x.copy()
    for batch in order:
        inputs = data[0][batch]
        _, g = net.loss_and_gradient(y, (inputs, data[1][batch]))
        if prev is not None:
            a, glob, old = (features(net, model, inputs) for model in (y, x, prev))
            s_glob, d_glob = cosine(a, glob)
            s_prev, d_prev = cosine(a, old)
            f = np.exp(s_prev / temperature) / (np.exp(s_glob / temperature) + np.exp(s_prev / temperature))
            da = mu * f[:, None] * (d_prev - d_glob) / temperature / len(batch)
            before = da * (1 - a**2)
            g = g + np.concatenate(
                [(before.T @ inputs).ravel(), before.sum(axis=0), np.zeros(len(g) - net.parts()[2].start)]
            )
        y = y - eta * (g + s.weight_decay * y)
    world.last[i] = y.copy()
    return y, np.zeros_like(x), len(order)


def features(net: Net, theta: Vector, inputs: Vector) -> Vector:
    W1, b1 = (theta[part] for part in net.parts()[:2])
    out: Vector = np.tanh(inputs @ W1.reshape(net.hidden, -1).T + b1)
    return out


def cosine(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """Row by row: the similarity, and its gradient with respect to ``a``."""
    na, nb = (np.sqrt((m**2).sum(1, keepdims=True)) for m in (a, b))
    s = (a * b).sum(1, keepdims=True) / (na * nb)
    return s[:, 0], b / (na * nb) - s * a / na**2


def sent(
    world: World, delta: Vector, change: Vector, a: float, t: int, i: int, net: Net, s: Settings, algorithm: Algorithm
) -> tuple[Vector, Vector]:
    """What the server makes of a client's update and control variate."""
    places: NDArray[np.int64] | None = None
    if "personal" in algorithm:
        delta = np.where(algorithm["personal"]["mask"], 0.0, delta)
    if "attack" in algorithm and i in algorithm["attack"]["members"]:
        delta, change = -algorithm["attack"]["scale"] * delta, -algorithm["attack"]["scale"] * change
    if "fednova" in algorithm:
        delta = delta / a
    if "topk" in algorithm:
        full = delta + world.residual.get(i, np.zeros_like(delta))
        k = math.ceil(algorithm["topk"]["fraction"] * len(full))
        places = np.sort(np.argsort(-np.abs(full), kind="stable")[:k])
        delta = np.zeros_like(full)
        delta[places] = full[places]
        world.residual[i] = full - delta
    if "quantise" in algorithm:
        levels = 2 ** (algorithm["quantise"]["bits"] - 1) - 1
        if places is None:
            drawn = uniforms(s, "quantise", "/delta", t, i, len(delta))
            delta = rounded(delta, drawn, levels, layers_of(net))
        else:
            drawn = uniforms(s, "quantise", "/delta/values", t, i, len(places))
            delta[places] = rounded(delta[places], drawn, levels, [np.arange(len(places))])
        if "scaffold" in algorithm:
            drawn = uniforms(s, "quantise", "/up/scaffold/dc", t, i, len(change))
            change = rounded(change, drawn, levels, layers_of(net))
    if "dp" in algorithm:
        C = algorithm["dp"]["clip"]
        factor = min(1.0, C / math.sqrt((delta**2).sum() + (change**2).sum()))
        delta, change = factor * delta, factor * change
    if "clip" in algorithm:
        delta = delta * min(1.0, algorithm["clip"]["norm"] / math.sqrt((delta**2).sum()))
    return delta, change


def layers_of(net: Net) -> list[NDArray[np.int64]]:
    """Weight and bias are one layer."""
    parts = net.parts()
    return [np.arange(parts[i].start, parts[i + 1].stop) for i in range(0, len(parts), 2)]


def rounded(v: Vector, drawn: Vector, levels: int, layers: list[NDArray[np.int64]]) -> Vector:
    out = np.zeros_like(v)
    for layer in layers:
        scale = np.abs(v[layer]).max()
        if scale == 0:
            continue
        exact = v[layer] / scale * levels
        low = np.floor(exact)
        out[layer] = (low + (drawn[layer] < exact - low)) * scale / levels
    return out


def private(
    x: Vector, deltas: list[Vector], changes: list[Vector], t: int, N: int, s: Settings, algorithm: Algorithm
) -> tuple[Vector, Vector, float]:
    """Noised sums, updates over ``q*N``, control variates over ``N``."""
    sigma, S = algorithm["dp"]["noise"] * algorithm["dp"]["clip"], s.cohort or N
    delta = sum(deltas, np.zeros_like(x)) + sigma * normals(s, "dp", "delta", t, None, len(x))
    dc = sum(changes, np.zeros_like(x))
    if "scaffold" in algorithm:
        dc = dc + sigma * normals(s, "dp", "up/scaffold/dc", t, None, len(x))
    return delta / S, dc / N, S / N


def aggregated(vectors: Vector, deltas: Vector, w: Vector, algorithm: Algorithm) -> Vector:
    out: Vector
    if "median" in algorithm:
        out = np.median(vectors, axis=0)
    elif "trimmed" in algorithm:
        cut = int(algorithm["trimmed"]["share"] * len(vectors))
        columns = [sorted(column)[cut : len(column) - cut] for column in vectors.T]
        out = np.array([sum(column) / len(column) for column in columns])
    elif "krum" in algorithm:
        f, m = algorithm["krum"]["byzantine"], algorithm["krum"]["keep"]
        scores = []
        for i, one in enumerate(deltas):
            far = sorted(((one - other) ** 2).sum() for j, other in enumerate(deltas) if j != i)
            scores.append(sum(far[: len(deltas) - f - 2]))
        out = vectors[np.argsort(scores, kind="stable")[:m]].mean(axis=0)
    else:
        out = w @ vectors
    return out


def server_step(
    world: World, x: Vector, d: Vector, share: float, eta: float, S: int, s: Settings, algorithm: Algorithm
) -> Vector:
    first = world.first
    if "fedopt" in algorithm:
        return adaptive(world, x, d, algorithm["fedopt"])
    if "feddyn" in algorithm:
        alpha = float(algorithm["feddyn"]["alpha"])
        first.h = first.h - alpha * share * d
        return x + d - first.h / alpha
    if "slowmo" in algorithm:
        first.m = algorithm["slowmo"]["beta"] * first.m - d / eta
        return x - eta * first.m
    if "fedadc" in algorithm:
        beta, e = algorithm["fedadc"]["beta"], algorithm["fedadc"]["embed"]
        first.m = -d / eta + (beta - e) * first.m
        return x - eta * first.m
    eta_g = math.sqrt(S) if s.server_lr == "sqrt" else float(s.server_lr)
    return x + eta_g * d


def adaptive(world: World, x: Vector, d: Vector, o: dict[str, Any]) -> Vector:
    first, kind, lr, beta1 = world.first, o["optimiser"], float(o["lr"]), float(o.get("beta1", 0.9))
    beta2, tau = float(o.get("beta2", 0.99)), float(o.get("tau", 1e-3))
    if kind == "momentum":
        first.m = beta1 * first.m + d
        return x + lr * first.m
    first.m = beta1 * first.m + (1 - beta1) * d
    if kind == "adam":
        world.v = beta2 * world.v + (1 - beta2) * d**2
    elif kind == "yogi":
        world.v = world.v - (1 - beta2) * d**2 * np.sign(world.v - d**2)
    else:
        world.v = world.v + d**2
    return x + lr * first.m / (np.sqrt(world.v) + tau)
