"""What the probe will do, fixed before it starts: bounded by arithmetic, not by a clock, so that it is repeatable."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from undrift.core.nested import call
from undrift.core.streams import stream
from undrift.engines.auto import cores
from undrift.measure.gradients import Group
from undrift.rounds.plan import Plan
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

ROUNDS = 3
"""Of FedAvg: enough for layers to show their drift in more than one round, few enough to stay a probe."""
COHORT = 10
"""Clients a round, whatever the run's own cohort is: the drift of a few updates depends too much on who was drawn."""
GRADIENT_CLIENTS = 50
"""Clients whose gradients are taken, at most."""
POINTS = 3
"""Where gradients are taken: the start, after FedAvg's rounds, after as much pooled training."""
FLOPS = 6e11
"""Arithmetic for training and as much for gradients: half a minute each on one core that makes 2e10 a second."""
SAMPLES = 60_000
"""Samples visited in training, and as many for gradients, at most: small models are bound by overhead."""
FEWEST = 600
"""Samples visited at least, however large the model is: below this, gradients are mostly noise."""
SMALLEST_BATCH = 4
STEPS = 1500
"""Steps of training at most, for the same reason."""
POOLED_STEPS = 60
"""Steps of training on the pooled data: past the start, far from the end."""
TEST_SAMPLES = 2000
BACKWARD = 3
"""A forward and a backward pass cost about three forward passes."""


@dataclass(frozen=True)
class ProbePlan:
    """How large the probe is."""

    rounds: int
    cohort: int
    batch_size: int
    local_steps: int | None
    """Steps of each client; None: what the configuration says."""
    pooled_steps: int
    clients: int
    """Clients whose gradients are taken."""
    rows: int
    """Samples for each point's gradients, over all these clients."""
    server_rows: int
    passes: int
    """Samples visited in all, forward and backward."""
    seconds: float
    """Estimated from one batch."""

    def describe(self) -> str:
        """What will be done, in one paragraph."""
        steps = "their usual steps" if self.local_steps is None else f"{self.local_steps} steps each"
        server = f", {self.server_rows} samples of the server" if self.server_rows else ""
        return (
            f"The probe makes {self.rounds} rounds of FedAvg ({self.cohort} clients, {steps}) and "
            f"{self.pooled_steps} steps on pooled data, and takes gradients at {POINTS} models "
            f"({self.clients} clients, {self.rows} samples{server}), "
            f"each a second time with the samples dealt out at random for comparison. "
            f"{self.passes} samples in all, about {self.seconds:.0f} s."
        )


def plan_probe(work: Work, most: float = math.inf) -> ProbePlan:
    """Fit the probe to the federation and the model; ``most``: samples for training and as many for gradients."""
    federation, plan = work.federation, work.plan
    affordable = max(FEWEST, int(min(SAMPLES, FLOPS / (BACKWARD * forward_flops(work)), most)))
    cohort = min(COHORT, len(federation))
    usual = max(plan.steps(int(n)) for n in federation.sizes)
    own = plan.batch_size or int(federation.sizes.max())
    batch = min(own, max(SMALLEST_BATCH, affordable // (ROUNDS * cohort)))
    steps = max(1, min(STEPS, affordable // batch) // (ROUNDS * cohort))
    pooled = max(1, min(POOLED_STEPS, affordable // (4 * batch)))
    clients = min(GRADIENT_CLIENTS, len(federation))
    server = 0 if federation.server is None else len(federation.server)
    each = affordable // POINTS
    server_rows = min(server, each // 4)
    rows = min(int(federation.sizes.sum()), max((each - server_rows) // 2, clients))
    local = ROUNDS * cohort * min(steps, usual) * min(batch, int(federation.sizes.mean()))
    passes = local + pooled * batch + POINTS * (2 * rows + server_rows)
    seconds = (local / min(cores(), cohort) + passes - local) * seconds_a_sample(work)
    local_steps = None if usual <= steps and batch == own else steps
    return ProbePlan(ROUNDS, cohort, batch, local_steps, pooled, clients, rows, server_rows, passes, seconds)


def forward_flops(work: Work) -> float:
    """Arithmetic of one sample's forward pass in dense and convolutional layers; at least one for each parameter."""
    model = copy.deepcopy(work.module).cpu().eval()
    counted: list[int] = []

    def count(layer: Any, _: Any, output: torch.Tensor) -> None:
        counted.append(2 * output.numel() * layer.weight[0].numel())

    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            layer.register_forward_hook(count)
    with torch.no_grad():
        call(model, work.federation.pool.take(np.array([0]))[0])
    return float(max(sum(counted), sum(p.numel() for p in model.parameters())))


def seconds_a_sample(work: Work) -> float:
    """One gradient of one batch, by the clock: for the estimate alone."""
    worker = Worker(work)
    count = min(work.plan.batch_size or 64, 64, len(work.federation.pool))
    pool, index = work.federation.pool, np.arange(count)
    x, buffers = worker.model.weights.clone(), worker.model.buffers.clone()
    worker.gradient_of(pool, x, buffers, index)
    start = time.perf_counter()
    worker.gradient_of(pool, x, buffers, index)
    return (time.perf_counter() - start) / len(index)


def training_plan(plan: Plan, probe: ProbePlan) -> Plan:
    """The settings of the probe's FedAvg rounds; drift is judged without the server's own rate."""
    return plan.with_(
        rounds=probe.rounds,
        cohort=probe.cohort,
        batch_size=probe.batch_size,
        local_steps=probe.local_steps or plan.local_steps,
        server_lr=1.0,
        eval_every=probe.rounds,
        pretrain_epochs=0,
    )


def gradient_rows(work: Work, probe: ProbePlan) -> list[Group]:
    """(rows, weight) of the clients whose gradients are taken: drawn once, used at every point."""
    federation, rng = work.federation, stream(work.plan.seed, "probe", 1)
    drawn = np.sort(rng.choice(len(federation), probe.clients, replace=False))
    total = sum(federation.size(int(client)) for client in drawn)
    groups = []
    for client in drawn:
        own = federation.rows(int(client))
        count = max(1, min(len(own), round(probe.rows * len(own) / total)))
        index = np.sort(rng.choice(own, count, replace=False))
        groups.append((index, work.plan.weight(len(own))))
    return groups


def dealt_at_random(groups: list[Group], seed: int) -> list[Group]:
    """The same samples dealt out to clients of the same sizes without regard to who had them."""
    pooled = np.concatenate([index for index, _ in groups])
    mixed = pooled[stream(seed, "probe", 2).permutation(len(pooled))]
    parts = np.split(mixed, np.cumsum([len(index) for index, _ in groups])[:-1])
    return [(part, weight) for part, (_, weight) in zip(parts, groups, strict=True)]
