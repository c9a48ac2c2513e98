"""Every example runs, learns, and gives the same bits on any engine and after an interruption."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from undrift.core.files import read_lines
from undrift.experiment import from_config
from undrift.rounds.loop import Result

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
LEARNT = {
    "adapter": ("accuracy", 0.5),
    "client_tests": ("accuracy", 0.6),
    "f1_score": ("f1", 0.6),
    "frozen_backbone": ("accuracy", 0.7),
    "image_folder": ("accuracy", 0.6),
    "language_model": ("accuracy", 0.5),
    "multilabel": ("accuracy", 0.7),
    "tabular_regression": ("mae", 0.6),
    "text_classifier": ("accuracy", 0.8),
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def run(example: str, /, **settings: Any) -> Result:
    result = importlib.import_module(example).run(**settings)
    assert isinstance(result, Result)
    return result


def numbers(result: Result) -> tuple[list[float], list[dict[str, Any]]]:
    assert result.server is not None
    return result.server.x.tolist(), [{k: v for k, v in r.items() if k != "seconds"} for r in result.history]


def killed(name: str, at: int, **settings: Any) -> bool:
    """Whether an example, run in a process of its own, was killed by SIGKILL at its evaluation of round ``at``."""

    def kill(record: dict[str, Any]) -> None:
        if record["round"] >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        vars(from_config)["logs_of"] = lambda *_: (kill,)  # where an example runs a configuration
        try:
            run(name, **settings, callbacks=[kill])
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_learns(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
    metric, bar = LEARNT[name]
    reached = run(name, workers=0).summary[f"final_{metric}"]
    assert reached < bar if metric == "mae" else reached > bar


@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_the_same_bits_with_any_workers_and_after_a_kill(name: str, tmp_path: Path) -> None:
    here = numbers(run(name, workers=0, rounds=4))
    for workers in (1, 2):
        assert numbers(run(name, workers=workers, rounds=4)) == here
    run(name, workers=0, rounds=2, out=tmp_path / "run")
    assert killed(name, at=3, workers=0, rounds=4, out=tmp_path / "run", resume=True)
    further = run(name, workers=2, rounds=4, out=tmp_path / "run", resume=True)
    assert numbers(further) == here
    stored = [{k: v for k, v in r.items() if k != "seconds"} for r in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert stored == here[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*", "ignore::FutureWarning:ray.*")
def test_examples_give_the_same_bits_on_ray() -> None:
    ray = pytest.importorskip("ray")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    try:
        ray.init(address="local", num_cpus=1, _node_ip_address="127.0.0.1", **quiet)
        for name in NAMES:
            # Ray's workers do not know this test's search path.
            ray.cloudpickle.register_pickle_by_value(importlib.import_module(name))
            engine = {"name": "ray"} if name == "tabular_regression" else {"engine": "ray"}
            assert numbers(run(name, rounds=2, **engine)) == numbers(run(name, rounds=2, workers=0)), name
    finally:
        ray.shutdown()
