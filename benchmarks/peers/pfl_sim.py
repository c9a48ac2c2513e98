"""The work on pfl-research: simulated backend, one process with some threads, or two processes (gloo)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from peers import common


def _join_workers(processes: int) -> subprocess.Popen | None:
    """Start the other worker (unless this is it) and tell pfl about both; must run before pfl is imported."""
    if processes == 1 or "PFL_WORKER_RANK" in os.environ:
        return None
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port + rank}" for rank in range(processes))
    other = subprocess.Popen([sys.executable, "-m", "peers.pfl_sim"], env={**os.environ, "PFL_WORKER_RANK": "1"})
    os.environ["PFL_WORKER_RANK"] = "0"
    return other


def main() -> None:
    work = common.spec()
    other = _join_workers(work["processes"])
    first = os.environ.get("PFL_WORKER_RANK", "0") == "0"

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

    torch.set_num_threads(work["threads"])
    np.random.seed(work["seed"])

    class Net(torch.nn.Module):
        """The textbook network with the two functions that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.net = common.textbook(work)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
            self.eval() if eval else self.train()
            return F.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict:
            self.eval()
            out = self(x)
            loss = F.cross_entropy(out, y, reduction="sum").item()
            return {"loss": Weighted(loss, len(y)), "accuracy": Weighted((out.argmax(1) == y).sum().item(), len(y))}

    class Tick(TrainingProcessCallback):
        """Stamps the ends of rounds."""

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.tick()
            return False, Metrics()

    x, y = common.data(work, "train", mapped=work["processes"] > 1)

    def user_data(user: int) -> Dataset:
        own = common.rows(work, user)
        order = torch.randperm(work["per_user"])
        return Dataset((x[own][order], y[own][order]), user_id=str(user))

    clock, net = common.Clock(work["rounds"]), Net()
    amp = torch.bfloat16 if work["precision"] == "bf16" else None
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0), amp_dtype=amp)
    users = FederatedDataset(user_data, get_user_sampler("random", list(range(work["users"]))))
    general = {
        "central_num_iterations": work["rounds"], "evaluation_frequency": work["rounds"] + 1,
        "train_cohort_size": work["cohort"], "val_cohort_size": 0,
    }  # fmt: skip
    if work["algorithm"] == "scaffold":
        algorithm = SCAFFOLD()
        params = SCAFFOLDParams(
            **general, population=work["users"], use_gradient_as_control_variate=False,
            user_state_storage=InMemoryUserStateStorage(),
        )  # fmt: skip
    else:
        algorithm, params = FederatedAveraging(), NNAlgorithmParams(**general)
    evaluation = NNEvalHyperParams(local_batch_size=200)
    callbacks: list = []
    if work["eval_every"]:
        # pfl counts iterations from 0: the evaluation falls one round later than elsewhere, as often.
        held = Dataset(common.data(work, "test"))
        callbacks.append(CentralEvaluationCallback(held, evaluation, frequency=work["eval_every"]))
    algorithm.run(
        params, SimulatedBackend(users, users), model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work["lr"], local_batch_size=work["batch"]),
        evaluation, callbacks=[*callbacks, Tick()], send_metrics_to_platform=False,
    )  # fmt: skip
    if first:
        common.report(work, clock, net, {"pfl": __version__})
    if other is not None:
        other.wait()


if __name__ == "__main__":
    main()
