"""What other federations say of this one: by hand for a few made-up ones, and what comes with the package."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_race import findings

from undrift.diagnose import experience as subject
from undrift.diagnose.candidates import field_of
from undrift.diagnose.experience import ALL, WIDTH, WORST, Experience, experience, features
from undrift.diagnose.probe import ServerData


def made(*rows: tuple[float, bool, dict[str, float]]) -> Experience:
    chains = list(dict.fromkeys(chain for _, _, gains in rows for chain in gains))
    federations = [
        {"name": str(number), "served": served, "features": {"a": value}, "gains": gains}
        for number, (value, served, gains) in enumerate(rows)
    ]
    return Experience.of({"features": ["a"], "chains": chains, "federations": federations})


def test_likeness_by_hand() -> None:
    known = made((0.0, False, {"x": 1.0}), (1.0, False, {"x": 5.0}), (4.0, True, {"x": 3.0}))
    spread = math.sqrt(((0 - 5 / 3) ** 2 + (1 - 5 / 3) ** 2 + (4 - 5 / 3) ** 2) / 3)
    alike = [math.exp(-((d / spread) ** 2) / (2 * WIDTH**2)) for d in (0, 1, 4)]
    weights = known.weights([0.0], served=False)
    assert weights == pytest.approx([one + ALL / 3 for one in alike])
    assert known.weights([0.0], served=True)[:2] == pytest.approx([0.0, 0.0])
    expected = known.expected(weights, ["x", "unheard of"])
    assert expected["x"] == pytest.approx(np.average([1, 5, 3], weights=weights))
    assert expected["unheard of"] == 0.0


def test_few_are_selected_of_which_one_is_close_to_the_best() -> None:
    """`middling` is never far behind, `x` and `y` are each the best in half of all federations: together they cover."""
    known = made(
        (0.0, False, {"middling": 8.0, "x": 10.0, "y": 0.0, "second": 9.5}),
        (0.0, False, {"middling": 8.0, "x": 0.0, "y": 10.0, "second": 0.0}),
    )
    labels, weights = ["middling", "x", "y", "second"], known.weights([0.0], served=False)
    assert known.selected(weights, labels, 1) == ["middling"]
    assert known.selected(weights, labels, 3)[1:] == ["x", "y"]
    assert known.selected(weights, ["x", "second"], 5) == ["x", "second"]


def test_the_prediction_by_hand() -> None:
    known = made((0.0, False, {"x": 3.0, "y": 2.0, "z": 0.0}), (0.0, False, {"x": 40.0, "y": 50.0, "z": 49.0}))
    weights = np.array([3.0, 1.0])
    assert known.predicted(weights, ["x", "y", "z", "unheard of"]) == pytest.approx(
        {"x": (0 + WORST) / 4, "y": 3 * 1 / 4, "z": (3 * 3 + 1) / 4, "unheard of": WORST}
    )
    assert known.predicted(weights, ["x", "z"])["x"] == pytest.approx(WORST / 4)  # 9 points behind are as bad as 4


def test_a_chain_that_is_not_possible_somewhere_is_no_good_there() -> None:
    known = made((0.0, False, {"x": 3.0, "fsl": math.nan}), (0.0, True, {"x": 0.0, "fsl": WORST}))
    assert known.selected(known.weights([0.0], served=True), ["x", "fsl"], 1) == ["fsl"]
    assert known.expected(known.weights([0.0], served=False), ["fsl"]) == {"fsl": WORST}


def test_features_are_finite_whatever_was_found() -> None:
    strange = {"excess": 0.0, "drift": math.nan, "smoothness": 0.0, "steps": 1e9}
    for found in (findings(), findings(server=None), findings(**strange)):
        assert all(math.isfinite(value) for value in features(found).values())
    assert features(findings(rate=0.2))["curvature"] == pytest.approx(math.log(0.2))


def test_what_comes_with_the_package_knows_all_candidates() -> None:
    known = experience()
    assert len(known.names) >= 30
    assert known.served.any()
    assert np.isfinite(known.features).all()
    labels = {one.label for one in field_of(findings(), ["head"]).candidates}
    assert labels <= set(known.chains)
    plain = known.gains[:, known.chains.index("fedavg")]
    assert (plain == 0).all()
    assert list(features(findings())) == subject.read()["features"]


def test_who_enters_a_race_is_selected_first_and_then_by_prediction() -> None:
    found: Any = field_of(findings(), ["head"])
    entered = [one.label for one in found.entered(5)]
    assert entered == found.selection[:5]
    every = [one.label for one in found.entered(99)]
    assert sorted(every) == sorted(one.label for one in found.candidates)
    alone = field_of(findings(server=None), ["head"])
    assert not any("fsl" in one.parts for one in alone.entered(9))
    broad = field_of(replace(findings(), rounds=100), ["head"], broad=True)
    assert "fedprox" in {one.label for one in broad.candidates}


def test_server_data_in_doubt_race_behind_the_best_without() -> None:
    doubtful = field_of(findings(server=ServerData(50, 0.4, 0.2, True, 0.05)), ["head"])
    assert [("fsl" in one.parts) for one in doubtful.entered(5)] == [False, False, True, False, False]
    behind = {one.candidate.label: one.behind for one in doubtful.predicted}
    best = min(behind.values())
    assert min(value for label, value in behind.items() if "fsl" in label) == pytest.approx(best + 3)
    for server in (ServerData(50, 0.5, 0.2, True, 0.05), ServerData(50, 0.2, 0.1, True, 0.05)):
        assert "fsl" in field_of(findings(server=server), ["head"]).candidates[0].parts
