"""What a diagnosis may cost, counted before it starts: by arithmetic, not by a clock, so that it is repeatable.

Everything is counted in forward passes of one sample. A step of training is three passes of its batch and what any step
costs, however small the model is; an evaluation is one pass of every sample evaluated. A run evaluates on test data; a
race does not, which is why it can make more rounds than its share of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from undrift.diagnose.costs import cohort
from undrift.diagnose.plan import BACKWARD, ProbePlan, forward_flops
from undrift.rounds.work import Work

RUNS = 1.3
"""Runs of the configured length that a diagnosis costs, the probe included."""
LONG = 6.0
"""The same for the long race."""
PROBE = 0.05
"""Of the samples that a run visits: what the probe before a race visits for training, and as many for gradients."""
STEP = 1e7
"""Arithmetic that takes as long as the overhead of a step: half a millisecond at 2e10 a second."""
START = 2e9
"""The same for continuing a candidate: a process, its model, its checkpoint."""
SMALLEST = 2.5e10
"""A budget below this (a second) is raised to it: where a run takes half a second nobody counts."""


@dataclass(frozen=True)
class Budget:
    """What a race may cost, in rounds of a candidate with server learning."""

    rounds: float
    start: float = 0.0
    """What continuing a candidate costs."""


def visited(work: Work) -> float:
    """Samples that the clients of one round visit, on average."""
    sizes = work.federation.sizes
    return cohort(work) * sum(work.plan.visits(int(n)) for n in sizes) / len(sizes)


def probe_samples(work: Work) -> float:
    """How large the probe before a race is."""
    return PROBE * work.plan.rounds * visited(work)


def budget_of(work: Work, validation: int, runs: float, probe: ProbePlan) -> Budget:
    """So many runs, less what the probe took."""
    flops, plan = forward_flops(work), work.plan
    steps = sum(plan.steps(int(n)) for n in work.federation.sizes) / len(work.federation)
    client = BACKWARD * visited(work) / cohort(work) + steps * STEP / flops
    tested = sum(len(samples) for samples in work.evaluated().values()) + sum(map(len, work.federation.tests or ()))
    run = plan.rounds * (cohort(work) * client + tested / plan.eval_every)
    total = max(runs * run, SMALLEST / flops) - BACKWARD * probe.passes
    served = work.federation.server is not None
    round = (cohort(work) + served) * client + validation
    return Budget(max(total, 0.0) / round, START / flops / round)
