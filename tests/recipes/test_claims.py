"""Verdicts on claims, from numbers given by hand."""

from __future__ import annotations

from typing import Any

import pytest

from undrift.recipes.claims import Ahead, Check, Claim, GrowsWithDepth, Reaches, Smaller, told, verdict
from undrift.recipes.evidence import spread


def line(label: str, group: str = "", measured: Any = None, paper: Any = None, **ours: Any) -> dict[str, Any]:
    numbers = {name: spread(values) for name, values in ours.items()}
    seeds = max((len(values) for values in ours.values()), default=0)
    runs = [{"seed": seed, "measured": measured or {}} for seed in range(seeds)]
    return {"label": label, "group": group, "ours": numbers, "paper": paper or {}, "runs": runs}


def values(ours: dict[str, Any]) -> dict[str, Any]:
    return ours


def judged(check: Check, *lines: dict[str, Any]) -> str:
    return verdict(Claim("so it is", (check,)), lines)[0]


def lines(a: float, b: float, metric: str = "final_accuracy", group: str = "") -> list[dict[str, Any]]:
    return [line("A", group, **values({metric: [a]})), line("B", group, **values({metric: [b]}))]


@pytest.mark.parametrize(
    ("metric", "a", "b", "by", "said"),
    [
        ("final_accuracy", 0.6, 0.5, 0.0, "met"),
        ("final_accuracy", 0.5, 0.5, 0.0, "not met"),
        ("final_accuracy", 0.54, 0.5, 0.05, "not met"),
        ("final_accuracy", 0.56, 0.5, 0.05, "met"),
        ("rounds_to:0.5", 90, 100, 0.0, "met"),
        ("rounds_to:0.5", 100, 90, 0.0, "not met"),
        ("late:B", 0.6, 1.0, 0.0, "met"),
        ("conformal:size", 3.0, 2.0, 0.0, "not met"),
        ("rounds_to:0.5", 90, None, 0.0, "met"),
        ("rounds_to:0.5", None, 90, 0.0, "not met"),
        ("rounds_to:0.5", None, None, 0.0, "open"),
    ],
)
def test_one_line_ahead_of_another(metric: str, a: float, b: float, by: float, said: str) -> None:
    assert judged(Ahead("A", ("B",), metric, by), *lines(a, b, metric)) == said


def test_it_has_to_be_ahead_in_every_group_and_of_every_rival() -> None:
    check = Ahead("A", ("B", "C"), "final_accuracy")
    one, two = lines(0.6, 0.5, group="one"), lines(0.6, 0.7, group="two")
    assert judged(check, *one) == "met as far as run", "C has not been run"
    assert judged(check, *one, line("C", "one", final_accuracy=[0.4])) == "met"
    assert judged(check, *one, *two) == "not met"
    assert judged(check, *one, line("C", "one", final_accuracy=[0.7])) == "not met"
    assert judged(check, *one, line("C", "two", final_accuracy=[0.7])) == "met as far as run", "no rival"


def test_full_labels_compare_across_groups() -> None:
    check = Ahead("L=2: A", ("L=1: A",), "final_accuracy")
    deep, shallow = line("A", "L=2", final_accuracy=[0.6]), line("A", "L=1", final_accuracy=[0.7])
    assert judged(check, deep, shallow) == "not met"


def test_a_line_that_was_not_run_decides_nothing() -> None:
    assert judged(Ahead("A", ("B",), "final_accuracy"), line("A", final_accuracy=[0.6]), line("B")) == "open"


def test_reaching_a_number() -> None:
    fast = line("A", paper={"rounds_to:0.5": 100}, **values({"rounds_to:0.5": [90, 110]}))
    assert judged(Reaches(("A",), "rounds_to:0.5"), fast) == "met"
    assert judged(Reaches(("A",), "rounds_to:0.5", 99), fast) == "not met"
    partly = line("A", paper={"rounds_to:0.5": 100}, **values({"rounds_to:0.5": [90, None]}))
    assert judged(Reaches(("A",), "rounds_to:0.5"), partly) == "not met", "one seed never got there"
    assert judged(Reaches(("A",), "rounds_to:0.5"), line("A", **values({"rounds_to:0.5": [90]}))) == "open"


def test_one_quantity_below_another() -> None:
    check = Smaller("A", "mean:x", "mean:y")
    assert judged(check, line("A", **values({"mean:x": [1.0], "mean:y": [2.0]}))) == "met"
    assert judged(check, line("A", **values({"mean:x": [3.0], "mean:y": [2.0]}))) == "not met"
    assert judged(check, line("A", **values({"mean:x": [3.0]}))) == "open"


def test_growth_towards_the_output() -> None:
    check = GrowsWithDepth("A", "last:drift.model")
    for layers, said in (({"a": 1.0, "b": None, "c": 2.0}, "met"), ({"a": 2.0, "b": 1.0}, "not met"), ({}, "open")):
        measured = {"drift": {"model": 1.0, "layers": layers}}
        assert judged(check, line("A", measured=measured, final_accuracy=[0.1])) == said


def test_numbers_and_seeds_are_told() -> None:
    a, b = line("A", final_accuracy=[0.5, 0.7]), line("B", final_accuracy=[0.65])
    _, findings = verdict(Claim("so", (Ahead("A", ("B",), "final_accuracy"),)), [a, b])
    assert told(findings) == "accuracy: A 0.6000 ± 0.1414 (2), B 0.6500 (1) (**no**)"
    assert findings[0].seeds == 1
    many = [finding for _ in range(5) for finding in [*verdict_of(0.7, 0.6)]]
    assert told(many) == "accuracy: all 5 comparisons"
    assert "(**no**)" in told([*many, *verdict_of(0.5, 0.6)]), "what does not hold is never counted away"


def verdict_of(a: float, b: float) -> list[Any]:
    return verdict(Claim("so", (Ahead("A", ("B",), "final_accuracy"),)), lines(a, b))[1]
