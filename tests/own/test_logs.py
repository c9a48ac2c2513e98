"""Other tools are told of every evaluation: their files are read back."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.errors import ConfigError
from undrift.experiment.config import parse
from undrift.experiment.from_config import run_config

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
PAIR = (X, (X.sum(1) > 0).long())


def run(*callbacks: Any, **settings: Any) -> ud.Result:
    torch.manual_seed(0)
    given = {"rounds": 4, "lr": 0.1, "workers": 0, "test_data": PAIR, **settings}
    return ud.simulate(nn.Linear(4, 2), [PAIR, PAIR], callbacks=callbacks, **given)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(ud.callbacks.TensorBoard(tmp_path))
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    told = [(event.step, event.value) for event in events.Scalars("test_accuracy")]
    assert told == [(r["round"], pytest.approx(r["test_accuracy"])) for r in result.history]
    config = parse({"log": {"tensorboard": True}, "partition": {"clients": 2}, "train": {"rounds": 1}})
    run_config(config, tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    logger = ud.callbacks.MLflow(tmp_path / "mlruns")
    result = run(logger)
    client = tracking.MlflowClient((tmp_path / "mlruns").as_uri())
    told = [(m.step, m.value) for m in client.get_metric_history(logger.run, "test_loss")]
    assert sorted(told) == [(r["round"], pytest.approx(r["test_loss"])) for r in result.history]


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = ud.callbacks.WandB("undrift-test", mode="offline", dir=str(tmp_path))
    run(logger)
    logger.close()
    end = time.monotonic() + 60  # another process writes the file
    while not any(b"test_accuracy" in path.read_bytes() for path in tmp_path.rglob("run-*.wandb")):
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("torch.utils.tensorboard", lambda: ud.callbacks.TensorBoard("x")),
        ("mlflow.tracking", lambda: ud.callbacks.MLflow("x")),
        ("wandb", lambda: ud.callbacks.WandB("x")),
    ],
)
def test_what_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch, module: str, make: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"undrift\[log\]"):
        make()


def test_nothing_is_imported_unless_it_is_used() -> None:
    import subprocess

    program = "import undrift, sys; print([m for m in ('tensorboard', 'mlflow', 'wandb', 'pandas', 'ray', 'flwr', 'torchmetrics', 'matplotlib') if m in sys.modules])"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_early_stopping() -> None:
    stopped = run(ud.callbacks.EarlyStopping("-loss", patience=2), rounds=50, lr=1e-9)
    assert stopped.summary["rounds"] < 10
    with pytest.raises(ConfigError, match="nothing evaluated is called 'f1'"):
        run(ud.callbacks.EarlyStopping("f1"))


def test_a_result_shows_itself() -> None:
    pytest.importorskip("pandas")
    result = run()
    assert repr(result).startswith("Result(4 rounds, accuracy 0.")
    frame = result.to_frame()
    assert list(frame.index) == [0, 1, 2, 3, 4]
    assert frame["test_accuracy"].iloc[-1] == result.summary["final_accuracy"]
    figure = result.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", "test loss"]
    assert len(figure.axes[0].lines[0].get_xdata()) == 5


def test_progress_as_a_bar_says_nothing_when_piped(capfd: pytest.CaptureFixture[str]) -> None:
    run(progress=True)
    assert capfd.readouterr() == ("", "")
