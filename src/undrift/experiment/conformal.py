"""Conformal prediction sets for a finished model: sets of classes that hold the true one with a chosen probability.

Scores and quantiles are MAPIE's. APS: Romano, Sesia, Candès, Classification with Valid and Adaptive Coverage, 2020.
RAPS: Angelopoulos et al., Uncertainty Sets for Image Classifiers using Conformal Prediction, 2021. As a measure of
federated models (coverage against mean set size): Li et al., FedPVR, 2023, figure 3.

The model is calibrated on one half of the held-out data and judged on the other. A client sees another mix of
classes than the test set: its coverage is ``sum_c q_i(c) * coverage of class c``, with its label shares ``q_i``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from undrift.core.files import read_toml, write_json
from undrift.core.nested import call
from undrift.core.streams import stream
from undrift.core.vector import FlatModel
from undrift.data import DataSet
from undrift.errors import ConfigError, DataError, InputError
from undrift.experiment.config import Config, read
from undrift.experiment.from_config import data_of, federation_of, model_of
from undrift.experiment.run_folder import read_summary
from undrift.measure.skew import counts_of

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
Method = Literal["raps", "aps"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Point:
    """What sets of one level reached on data that calibration did not see."""

    level: float
    coverage: float
    size: float
    """Mean number of classes in a set."""
    clients: list[dict[str, float]]
    """``coverage`` and ``size`` under each client's label distribution."""


def conformal(
    folder: Path, level: float = 0.9, method: Method = "raps", *, randomised: bool = False, levels: Sequence[float] = ()
) -> dict[str, Any]:
    """Calibrate the model of a finished run, write ``conformal.json`` into its folder and return its content."""
    if not 0 < level < 1:
        raise ConfigError(f"--level {level}: must lie between 0 and 1")
    config, data, module = _finished(folder)
    if data.labels is None or config.task.name not in ("auto", "classification"):
        raise ConfigError(f"{folder}: prediction sets are sets of classes; this run is no classification")
    probabilities = _softmax(module, data)
    labels = data.y_test.numpy()
    shares = _label_shares(config, data)
    curve = sorted({*(levels or LEVELS), level})
    points = calibrate(probabilities, labels, curve, method, seed=config.seed, shares=shares, randomised=randomised)
    half = len(labels) // 2
    result = {
        "method": method,
        "level": level,
        "randomised": randomised,
        "calibration_samples": half,
        "evaluation_samples": len(labels) - half,
        "accuracy": float((probabilities.argmax(1) == labels).mean()),
        "curve": [asdict(point) for point in points],
    }
    write_json(folder / "conformal.json", result)
    return result


def calibrate(
    probabilities: Floats,
    labels: Ints,
    levels: Sequence[float],
    method: Method = "raps",
    *,
    seed: int = 0,
    shares: Floats | None = None,
    randomised: bool = False,
) -> list[Point]:
    """Coverage and mean set size at every level: calibrated on a random half, judged on the other.

    ``randomised`` sets reach a level exactly but may be empty; the others hold at least one class.
    """
    order = stream(seed, "measure", 1).permutation(len(labels))
    fit, judge = order[: len(labels) // 2], order[len(labels) // 2 :]
    sets = _sets(probabilities, labels, fit, judge, levels, method, seed, randomised)
    truth = labels[judge]
    hit = sets[np.arange(len(judge)), truth]
    size = sets.sum(axis=1)
    weights = _client_weights(truth, shares) if shares is not None else np.empty((0, len(truth)))
    return [
        Point(
            float(level),
            float(hit[:, k].mean()),
            float(size[:, k].mean()),
            [{"coverage": float(w @ hit[:, k]), "size": float(w @ size[:, k])} for w in weights],
        )
        for k, level in enumerate(levels)
    ]


def _sets(
    probabilities: Floats,
    labels: Ints,
    fit: Ints,
    judge: Ints,
    levels: Sequence[float],
    method: Method,
    seed: int,
    randomised: bool,
) -> NDArray[np.bool_]:
    """MAPIE's prediction sets [samples, classes, levels]; its inputs are the probabilities themselves."""
    try:
        from mapie.classification import SplitConformalClassifier
    except ImportError:
        raise InputError("conformal prediction needs MAPIE: install undrift[report]") from None
    mapie = SplitConformalClassifier(
        _prefit(probabilities.shape[1]),
        confidence_level=list(levels),
        conformity_score=_score(method),
        prefit=True,
        random_state=seed,
    )
    try:
        mapie.conformalize(probabilities[fit], labels[fit])
        how = {"include_last_label": "randomized" if randomised else True}
        _, sets = mapie.predict_set(probabilities[judge], conformity_score_params=how)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{len(fit)} held-out samples are too few to calibrate on: {reason}") from None
    found: NDArray[np.bool_] = np.asarray(sets, dtype=bool)
    return found


def _score(method: Method) -> Any:
    """MAPIE's score; RAPS chooses its penalty on a fifth of the calibration data."""
    from mapie.conformity_scores import RAPSConformityScore

    class Raps(RAPSConformityScore):  # type: ignore[misc]
        def set_external_attributes(self, *, size_raps: float | None = None, **others: Any) -> None:
            # MAPIE 1.6 passes no share here and would fall back to a tenth, too few samples for high levels.
            super().set_external_attributes(size_raps=size_raps or 0.2, **others)

    return Raps() if method == "raps" else method


def _prefit(classes: int) -> Any:
    """A classifier for MAPIE whose inputs are already the class probabilities."""
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Known(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self, classes: int) -> None:
            self.classes = classes

        def fit(self, x: Floats, y: Ints) -> Any:
            self.classes_ = np.arange(self.classes)
            self.n_features_in_ = self.classes
            return self

        def predict_proba(self, x: Floats) -> Floats:
            return x

        def predict(self, x: Floats) -> Ints:
            best: Ints = x.argmax(axis=1)
            return best

    return Known(classes).fit(np.empty((0, classes)), np.empty(0, np.int64))


def _client_weights(truth: Ints, shares: Floats) -> Floats:
    """Weights of the judged samples under each client's label shares; classes without a sample are left out."""
    counts = np.bincount(truth, minlength=shares.shape[1])
    each = np.divide(shares, counts, out=np.zeros_like(shares), where=counts > 0)[:, truth]
    weights: Floats = each / each.sum(axis=1, keepdims=True)
    return weights


def _finished(folder: Path) -> tuple[Config, DataSet, nn.Module]:
    for name in ("config.toml", "model.safetensors"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder}: no {name} there; the folder of a finished run is needed")
    if (folder / "summary.json").exists():
        read_summary(folder)
    if "api" in read_toml(folder / "config.toml"):
        raise ConfigError(f"{folder}: a run made from Python; its data and model cannot be built again from its folder")
    config = read(folder / "config.toml")
    data = data_of(config)
    model = FlatModel(model_of(config.with_(("model.init", str(folder / "model.safetensors"))), data))
    return config, data, model.module


def _softmax(module: nn.Module, data: DataSet) -> Floats:
    module.eval()
    test = data.test
    if test is None:
        raise ConfigError("prediction sets need test data")
    with torch.inference_mode():
        chunks = [np.arange(start, min(start + 200, len(test))) for start in range(0, len(test), 200)]
        parts = [torch.softmax(call(module, test.take(chunk)[0]).double(), 1) for chunk in chunks]
    probabilities: Floats = torch.cat(parts).numpy()
    return probabilities


def _label_shares(config: Config, data: DataSet) -> Floats:
    counts = counts_of(federation_of(config, data), data.classes)
    shares: Floats = counts / counts.sum(axis=1, keepdims=True)
    return shares
