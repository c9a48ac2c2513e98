"""The work on Flower's simulation runtime: Ray backend, one core for each client, message API."""

from __future__ import annotations

import functools

import flwr
import ray
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peers import common

client_app, server_app = ClientApp(), ServerApp()


@functools.cache
def _client_side() -> tuple:
    """Loaded once in every worker of the simulation: the work, the data, a network."""
    torch.set_num_threads(1)
    work = common.spec()
    return work, *common.data(work, "train", mapped=True), common.textbook(work)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A client's round."""
    work, x, y, net = _client_side()
    own = common.rows(work, int(context.node_config["partition-id"]))
    x, y = x[own], y[own]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=work["lr"])
    total = 0.0
    for index in torch.randperm(len(y)).split(work["batch"]):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[index]), y[index])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(index)
    metrics = MetricRecord({"train-loss": total / len(y), "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@server_app.main()
def main_server(grid: Grid, context: Context) -> None:
    """The server's side."""
    work = common.spec()
    net, clock = common.textbook(work), common.Clock(work["rounds"])
    test = common.data(work, "test") if work["eval_every"] else None

    def after_round(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = None
        if test is not None and round % work["eval_every"] == 0:
            torch.set_num_threads(work["threads"])
            net.load_state_dict(arrays.to_torch_state_dict())
            loss, accuracy = common.evaluate(net, *test)
            metrics = MetricRecord({"loss": loss, "accuracy": accuracy})
        if round:
            clock.tick()
        return metrics

    strategy = FedAvg(
        fraction_train=work["cohort"] / work["users"],
        fraction_evaluate=0.0,
        min_train_nodes=work["cohort"],
        min_available_nodes=work["users"],
    )
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=work["rounds"], evaluate_fn=after_round
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    common.report(work, clock, net, {"flwr": flwr.__version__, "ray": ray.__version__})


def main() -> None:
    work = common.spec()
    cores = work["threads"]
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=work["users"],
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False, "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    # Under its own name, so that workers import the module (and keep what it has loaded) instead of unpickling it.
    from peers import flower_sim

    flower_sim.main()
