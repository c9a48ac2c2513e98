"""Two one-CPU Ray workers against one, on the CNN's work (1000 clients of 50 CIFAR-sized images, 10 a round).

Run: ``python benchmarks/ray_workers.py [rounds]``. Needs two free cores to say anything; prints the load it saw.
One and two workers take turns, and medians are compared.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch
from torch import nn

from undrift import models
from undrift.data.federation import Federation, from_clients
from undrift.engines.ray import Cluster
from undrift.rounds.loop import Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rules.rule import FedAvg

CLIENTS, SAMPLES, COHORT, BATCH, WANTED = 1000, 50, 10, 10, 1.6
TURNS = 5


def federation() -> Federation:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * SAMPLES, 3, 32, 32, generator=draw)
    y = torch.randint(10, (len(x),), generator=draw)
    return from_clients([(x[i : i + SAMPLES], y[i : i + SAMPLES]) for i in range(0, len(x), SAMPLES)])


def seconds_a_round(workers: int, rounds: int, data: Federation) -> float:
    module = models.build("cnn-cifar", input_shape=(3, 32, 32), classes=10, seed=0)
    plan = Plan(rounds=rounds + 2, lr=0.05, cohort=COHORT, batch_size=BATCH, eval_every=rounds + 2)
    work = prepare(module, FedAvg(), data, plan, nn.functional.cross_entropy, "cpu")
    result = Run(work, Cluster(), workers).go()
    return float(statistics.median(line["seconds"] for line in result.rounds[2:]))


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    data, start = federation(), time.time()
    turns = [(seconds_a_round(1, rounds, data), seconds_a_round(2, rounds, data)) for _ in range(TURNS)]
    one, two = (statistics.median(times) for times in zip(*turns, strict=True))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {load:.1f}, {time.time() - start:.0f} s in all")
    print(f"one worker {one:.3f} s a round, two workers {two:.3f} s: {one / two:.2f} times as fast (wanted {WANTED})")
    return 0 if one / two >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
