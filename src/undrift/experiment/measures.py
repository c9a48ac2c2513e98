"""From the ``[measure]`` section to measures; what is switched off is not made, so it costs nothing."""

from __future__ import annotations

from undrift.experiment.config import MeasureConfig
from undrift.measure.cka import Cka
from undrift.measure.clients import ClassAccuracy, ClientAccuracy
from undrift.measure.drift import Drift, Updates
from undrift.measure.gradients import GradientMeasure
from undrift.measure.skew import SkewMeasure
from undrift.measure.split import SplitVariance
from undrift.rounds.loop import Measure


def chosen(config: MeasureConfig) -> tuple[Measure, ...]:
    """The measures that are switched on."""
    every = config.every
    plain = {
        "skew": SkewMeasure,
        "drift": Drift,
        "updates": Updates,
        "gradients": GradientMeasure,
        "classes": ClassAccuracy,
        "clients": ClientAccuracy,
        "split_variance": SplitVariance,
    }
    measures: list[Measure] = [make(every) for name, make in plain.items() if getattr(config, name)]
    if config.cka:
        measures.append(Cka(every, None if config.cka is True else tuple(config.cka), config.cka_samples))
    return tuple(measures)
