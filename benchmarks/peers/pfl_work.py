"""The work in terms of pfl-research; imported when pfl has been told of all its processes."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.version import __version__

from peers import common


class Net(torch.nn.Module):
    """The textbook network with the two functions that pfl asks for."""

    def __init__(self, work: dict) -> None:
        super().__init__()
        self.net = common.textbook(work)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The network's answers."""
        return self.net(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """The mean loss."""
        self.eval() if eval else self.train()
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict:
        """Loss and accuracy."""
        self.eval()
        out = self(x)
        loss = F.cross_entropy(out, y, reduction="sum").item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted((out.argmax(1) == y).sum().item(), len(y))}


class Tick(TrainingProcessCallback):
    """Stamps the ends of rounds."""

    def __init__(self, clock: common.Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """A round has ended."""
        self.clock.tick()
        return False, Metrics()


def _users(work: dict) -> FederatedDataset:
    x, y = common.data(work, "train", mapped=work["processes"] > 1)

    def data_of(user: int) -> Dataset:
        own = common.rows(work, user)
        order = torch.randperm(work["per_user"])
        return Dataset((x[own][order], y[own][order]), user_id=str(user))

    return FederatedDataset(data_of, get_user_sampler("random", list(range(work["users"]))))


def _algorithm(work: dict) -> tuple:
    general = {
        "central_num_iterations": work["rounds"],
        "evaluation_frequency": work["rounds"] + 1,
        "train_cohort_size": work["cohort"],
        "val_cohort_size": 0,
    }
    if work["algorithm"] != "scaffold":
        return FederatedAveraging(), NNAlgorithmParams(**general)
    return SCAFFOLD(), SCAFFOLDParams(
        **general,
        population=work["users"],
        use_gradient_as_control_variate=False,
        user_state_storage=InMemoryUserStateStorage(),
    )


def run(work: dict, *, first: bool) -> None:
    """Train; the first process reports."""
    torch.set_num_threads(work["threads"])
    np.random.seed(work["seed"])
    clock, net, users = common.Clock(work["rounds"], turns=first), Net(work), _users(work)
    amp = torch.bfloat16 if work["precision"] == "bf16" else None
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0), amp_dtype=amp)
    evaluation, callbacks = NNEvalHyperParams(local_batch_size=200), [Tick(clock)]
    if work["eval_every"]:
        # pfl counts iterations from 0: the evaluation falls one round later than elsewhere, as often.
        held = Dataset(common.data(work, "test"))
        callbacks.insert(0, CentralEvaluationCallback(held, evaluation, frequency=work["eval_every"]))
    algorithm, params = _algorithm(work)
    algorithm.run(
        params,
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work["lr"], local_batch_size=work["batch"]),
        evaluation,
        callbacks=callbacks,
        send_metrics_to_platform=False,
    )
    if first:
        common.report(work, clock, net, {"pfl": __version__})
