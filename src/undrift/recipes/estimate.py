"""How long a recipe takes: steps and evaluations times seconds measured here on a few batches of its model."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from undrift import models
from undrift.core.numerics import settled
from undrift.core.vector import FlatModel
from undrift.data.layout import laid_out
from undrift.experiment.config import Config
from undrift.experiment.run_many import Planned
from undrift.recipes.recipe import Recipe
from undrift.recipes.run import Options, arms_of, fixed_for, planned
from undrift.recipes.scale import samples_of
from undrift.recipes.standin import FORMS
from undrift.rules.fsl import Fsl
from undrift.rules.rule import Owns

TEST_SAMPLES = {"emnist": 18_800, "stl10": 8_000, "digits": 355}
EVAL_BATCH = 20
LARGE = 4
"""Samples that a step of a large network is timed on."""


def planned_runs(recipe: Recipe, options: Options) -> list[Planned]:
    """All runs, tuning included; what tuning will choose is not known yet, so the given setting stands for it."""
    runs = []
    for arm in arms_of(recipe, options):
        given = fixed_for(options, arm)
        start = {**{key: arm.settings[key] for key in arm.sweep if key in arm.settings}, **given}
        if options.tune and arm.tuned_with is None:
            for key, values in arm.sweep.items():
                if key not in given and len(values) > 1:
                    runs += [
                        planned(recipe, options, arm, {**start, key: v}, recipe.tuning.seed, tuning=True)
                        for v in values
                    ]
        runs += [planned(recipe, options, arm, start, seed) for seed in range(options.seeds or recipe.seeds)]
    return list({run.out: run for run in runs}.values())


def hours_of(runs: Sequence[Planned]) -> float:
    """Core hours."""
    return sum(seconds_of(run.config) for run in runs) / 3600


def seconds_of(config: Config) -> float:
    """One run's seconds on one core."""
    train, data = config.train, config.data
    clients = config.partition.clients or 1
    samples = samples_of(data.model_dump()) or 1000
    cohort = clients if train.cohort is None else train.cohort
    own = samples / clients
    batch = min(train.batch_size or math.ceil(own), math.ceil(own))
    local = train.local_steps or train.local_epochs * math.ceil(own / batch)
    if Owns.EVERYTHING in config.rule().owns:
        cohort, local = 1, train.local_epochs * math.ceil(samples / batch)
    steps = train.rounds * cohort * local + train.rounds * _server_steps(config, own, batch)
    form = FORMS.get(data.name, (8, 1, 10))
    step, sample = _calibrated(config.model.name, config.model.norm, config.model.width, form, batch)
    evaluations = train.rounds / train.eval_every
    return steps * step + evaluations * TEST_SAMPLES.get(data.name, 10_000) * sample


def _server_steps(config: Config, own: float, batch: int) -> float:
    server = config.server_data
    learning = next((link for link in config.rule().links if isinstance(link, Fsl)), None)
    if server is None or learning is None:
        return 0.0
    size = server.size or (server.contributors or 1) * (server.samples or 500)
    epochs = learning.epochs or math.ceil(own / size)
    return float(epochs * math.ceil(size / batch))


@functools.cache
def _calibrated(name: str, norm: str, width: float, form: tuple[int, int, int], batch: int) -> tuple[float, float]:
    """Seconds of a training step, and of evaluating one sample."""
    size, channels, classes = form
    own = {"norm": norm, "width": width}
    options: dict[str, Any] = own if name.startswith("resnet") else {"width": width} if name == "vgg11" else {}
    net = models.build(name, input_shape=(channels, size, size), classes=classes, **options)
    FlatModel(net)  # lays the weights out as training does
    with settled():
        return _time_step(net, form, batch), _time_eval(net, form)


def _time_step(net: nn.Module, form: tuple[int, int, int], batch: int) -> float:
    """Large batches are extrapolated from two small ones: a fixed cost and a cost for each sample."""
    large = sum(p.numel() for p in net.parameters()) > 3e6
    small = min(batch, LARGE if large else 16)
    first = _step_seconds(net, form, small)
    if small == batch:
        return first
    slope = max(0.0, _step_seconds(net, form, 2 * small) - first) / small
    return first + slope * (batch - small)


def _step_seconds(net: nn.Module, form: tuple[int, int, int], batch: int) -> float:
    size, channels, classes = form
    x = laid_out(torch.randn(batch, channels, size, size))
    y = torch.randint(classes, (batch,))
    net.train()
    return _best_of(lambda: torch.autograd.grad(nn.functional.cross_entropy(net(x), y), list(net.parameters())))


def _time_eval(net: nn.Module, form: tuple[int, int, int]) -> float:
    size, channels, _ = form
    x = laid_out(torch.randn(EVAL_BATCH, channels, size, size))
    net.eval()
    with torch.inference_mode():
        return _best_of(lambda: net(x)) / EVAL_BATCH


def _best_of(work: Callable[[], object], times: int = 2) -> float:
    seconds = []
    for _ in range(times + 1):
        start = time.thread_time()  # what others do on this machine meanwhile does not count
        work()
        seconds.append(time.thread_time() - start)
    return min(seconds[1:])
