"""What a GPU needs, as far as it can be tested without one: on the ``meta`` device a hidden ``.item()`` or a tensor
of another device raises; the process that starts others does not touch CUDA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud
from undrift.data.federation import from_clients
from undrift.rounds.client_states import ClientStates
from undrift.rounds.evaluation import pieces
from undrift.rounds.messages import Broadcast, ClientTask
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rule import Rule


def on_meta(rule: Rule, plan: Plan | None = None) -> tuple[Work, Worker]:
    """A run's work whose model and data have shapes but no numbers."""
    x, y = torch.randn(24, 1, 6, 6), torch.arange(24) % 3
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    federation = from_clients([(x, y), (x, y)], test=(x, y), server=(x, y))
    work = prepare(model, rule, federation, plan or Plan(batch_size=5, lr=0.1, weight_decay=1e-3), None, "meta")
    return work, Worker(work)


@pytest.mark.parametrize(
    "rule", [ud.fedavg(), ud.fedprox(0.1), ud.scaffold(), ud.fedpvr(layers=1), ud.feddyn(0.1), ud.fedadc(), ud.slowmo()]
)
def test_a_clients_round_never_waits_for_the_device(rule: Rule) -> None:
    work, worker = on_meta(rule)
    x = worker.model.weights.clone()
    state, kept = work.rule.init_server(x), work.rule.init_client(x)
    broadcast = Broadcast(1, 0.1, x, worker.model.buffers.clone(), work.rule.down(state, 1))
    outcome = worker.client(broadcast, ClientTask(0, kept))
    assert outcome.delta.device.type == "meta"
    assert outcome.loss.device.type == "meta"
    assert outcome.visits == 24


def test_an_evaluation_never_waits_for_the_device() -> None:
    work, worker = on_meta(ud.fedavg())
    scores = [worker.evaluate(piece) for piece in pieces(work)]
    assert scores[0].loss.device.type == "meta"
    assert scores[0].sums["accuracy"][0].device.type == "meta"


def test_server_learning_never_waits_for_the_device() -> None:
    work, worker = on_meta(ud.fsl())
    assert work.federation.server is not None
    order = iter([np.arange(5), np.arange(5, 10)])
    learnt = worker.learn(
        worker.model.weights.clone(), worker.model.buffers.clone(), work.federation.server, 0.1, order, 1
    )
    assert learnt.device.type == "meta"


def test_client_memories_follow_the_device(tmp_path: Path) -> None:
    states = ClientStates({"c": torch.zeros(4)}, tmp_path, 0, torch.device("meta"))  # no room: all lie in files
    states.put(3, {"c": torch.ones(4)}, 1)
    states.flush()
    found = states.get(3)
    assert found is not None
    assert found["c"].device.type == "meta"


def test_the_starting_process_does_not_touch_cuda() -> None:
    """Forked processes could not use CUDA afterwards."""
    program = (
        "import torch, sys\n"
        "def spy(*_): raise SystemExit('CUDA was initialised')\n"
        "torch.cuda._lazy_init = spy\n"
        "torch.cuda.init = spy\n"
        "import undrift.cli\n"
        "from undrift.experiment.config import parse\n"
        "from undrift.experiment.from_config import data_of, federation_of, model_of\n"
        "from undrift.experiment.run_many import Planned, check\n"
        "from pathlib import Path\n"
        "config = parse({'partition': {'clients': 2}, 'train': {'rounds': 1}})\n"
        "check([Planned('a', config, Path('nowhere'))], {})\n"
        "print('untouched')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "untouched", done.stdout + done.stderr
