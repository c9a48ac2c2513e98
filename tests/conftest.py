"""One thread for the tests (many fork, and a fork has none of its parent's threads); the command as a fixture."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shell import CONFIG, Answer, Undrift, arrays
from undrift.cli import main

torch.set_num_threads(1)
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would let its workers wait for all other tests


SLOW = (
    "test_federation.py",
    "test_ray.py",
    "test_strangers.py",
    "test_processes.py",
    "test_campaign.py",
    "test_browser.py",
    "test_examples.py",
    "test_interruptions.py",
    "test_conformance.py",
    "test_running.py",
    "test_demo.py",
    "test_documents.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that side by side no worker is left alone with one of them in the end."""
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and its data, the current one."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "data.npz", **arrays())
    (tmp_path / "c.toml").write_text(CONFIG)
    (tmp_path / "c.toml.copy").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def undrift(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Undrift:
    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["undrift", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, captured.out, captured.err)

    return call
