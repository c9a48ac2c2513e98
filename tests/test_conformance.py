"""Every rule and every combination: finite, deterministic, the same bits however it is carried out, bytes as sent."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import undrift as ud
from undrift import models
from undrift.cli import main
from undrift.core.files import read_lines
from undrift.core.tree import Tree, copy_into, flatten
from undrift.data.federation import from_clients
from undrift.engines import local_worker
from undrift.engines.auto import engine_for
from undrift.errors import ConfigError
from undrift.experiment.config import read
from undrift.experiment.from_config import run_config, work_of
from undrift.experiment.run_folder import RunFolder
from undrift.models.layers import Dropout
from undrift.rounds.loop import Result, Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rules import RULES, named
from undrift.rules.chain import Chain
from undrift.rules.rule import Rule

FULL = ("fedavg", "fedprox", "scaffold", "fedpvr", "feddyn", "slowmo", "fedadc", "fsl", "ds", "centralised")
PARAMETERS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.1},
    "feddyn": {"alpha": 0.2},
    "slowmo": {"beta": 0.5},
    "fedadc": {"beta": 0.5},
    "fsl": {"gamma": 0.5},
    "ds": {"share": 0.5},
    "fedpvr": {"layers": 1},
}
SIZES = (6, 11, 7, 14, 10)
COHORT, ROUNDS, SHARED = 3, 4, 4
PARAMETER_COUNT, BUFFER_COUNT, LAST_LAYER = 4 * 6 + 6 + 12 + 6 * 3 + 3, 12, 6 * 3 + 3


def reason_against(names: tuple[str, ...]) -> bool:
    """Whether a combination makes no sense: two owners of one thing, or a partner for centralised training."""
    others = [name for name in names if name != "fedavg"]
    step = {"feddyn", "slowmo", "fedadc"} & set(names)
    correction = {"feddyn", "scaffold", "fedpvr"} & set(names)
    return len(step) > 1 or len(correction) > 1 or ("centralised" in names and len(others) > 1)


COMBINATIONS = [c for size in (1, 2, 3) for c in itertools.combinations(FULL, size)]
SENSIBLE = [c for c in COMBINATIONS if not reason_against(c) and (len(c) == 1 or "fedavg" not in c)]
SENSELESS = [c for c in COMBINATIONS if reason_against(c)]


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), Dropout(0.25), nn.Linear(6, 3))


@cache
def data() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    make = torch.Generator().manual_seed(0)

    def draw(n: int, shift: float) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 4, generator=make) + shift, torch.randint(3, (n,), generator=make)

    return [draw(n, 0.2 * i) for i, n in enumerate(SIZES)], draw(8, 0.0), draw(50, 0.5)


def combined(names: tuple[str, ...]) -> Chain:
    return named("+".join(names), PARAMETERS)


def simulated(rule: Rule, workers: int = 0, **more: Any) -> Result:
    clients, server, test = data()
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "cohort": COHORT,
        "batch_size": 4,
        "lr": 0.1,
        "schedule": "cosine",
        "weight_decay": 0.01,
        "seed": 3,
        "server_data": server,
        "test_data": test,
        "workers": workers,
    }
    return ud.simulate(model(), clients, rule, **{**settings, **more})


def facts(result: Result) -> dict[str, Any]:
    """Everything that must be the same, without the clock."""
    assert result.server is not None
    return {
        "model": {name: tensor.tolist() for name, tensor in result.model.state_dict().items()},
        "x": result.server.x.tolist(),
        "history": [{k: v for k, v in r.items() if k != "seconds"} for r in result.history],
        "rounds": [{k: v for k, v in r.items() if k != "seconds"} for r in result.rounds],
        "summary": {k: v for k, v in result.summary.items() if k != "seconds"},
    }


def label(names: tuple[str, ...]) -> str:
    return "+".join(names)


def test_all_rules_are_covered() -> None:
    assert set(FULL) <= set(RULES)
    assert len(SENSIBLE) == 60


@pytest.mark.parametrize("names", SENSELESS, ids=label)
def test_senseless_combinations_are_refused_with_a_reason(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="algorithm: ") as refusal:
        combined(names)
    assert sum(repr(name) in str(refusal.value) for name in names) >= 2
    assert "both own" in str(refusal.value) or "has no rounds between clients" in str(refusal.value)


def test_a_rule_may_not_be_given_twice() -> None:
    with pytest.raises(ConfigError, match="'fsl' is given twice"):
        named("dsl+fsl")
    with pytest.raises(ConfigError, match="'scaffold' is given twice"):
        named("scaffold+fsl+scaffold")


def expected_bytes(names: tuple[str, ...], rounds: list[list[int]], *, track: bool = False) -> list[tuple[int, int]]:
    """Down and up in each round, from the sizes of the messages: 4 bytes a number, 8 a label."""
    whole = 4 * (PARAMETER_COUNT + BUFFER_COUNT)
    vector, last = 4 * PARAMETER_COUNT, 4 * LAST_LAYER
    informed: set[int] = set()
    expected = []
    for cohort in rounds:
        if "centralised" in names:
            expected.append((0, 0))
            continue
        each_down = vector * ("scaffold" in names) + last * ("fedpvr" in names)
        each_down += vector * ("fedadc" in names and not track)
        each_up = whole + vector * ("scaffold" in names) + last * ("fedpvr" in names)
        fresh = set(cohort) - informed if "ds" in names else set()
        informed |= fresh
        down = whole * (len(SIZES) if track else len(cohort)) + each_down * len(cohort)
        expected.append((down + len(fresh) * SHARED * (4 * 4 + 8), each_up * len(cohort)))
    return expected


@pytest.mark.parametrize("names", SENSIBLE, ids=label)
def test_finite_deterministic_the_same_on_workers_and_bytes_as_the_formula_says(names: tuple[str, ...]) -> None:
    rule = combined(names)
    first, second = simulated(rule), simulated(rule, workers=2 if len(names) < 3 else 0)
    assert facts(first) == facts(second)
    assert first.server is not None
    assert torch.isfinite(first.server.x).all()
    assert torch.isfinite(first.server.buffers).all()
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    assert not torch.equal(first.server.x, start)
    sent = [(r["bytes_down"], r["bytes_up"]) for r in first.history[1:]]
    assert sent == expected_bytes(names, [line["clients"] for line in first.rounds])
    assert first.summary["bytes_down"] == sum(down for down, _ in sent)
    assert first.summary["bytes_up"] == sum(up for _, up in sent)
    if "centralised" not in names:
        assert [line["clients"] for line in first.rounds] == cohorts()


@cache
def cohorts() -> list[list[int]]:
    """Who is drawn under FedAvg: every other algorithm must see the same draws."""
    return [line["clients"] for line in simulated(ud.fedavg()).rounds]


def test_cohorts_are_subsets_drawn_without_replacement() -> None:
    assert all(len(set(cohort)) == COHORT and set(cohort) <= set(range(len(SIZES))) for cohort in cohorts())
    assert len({tuple(sorted(cohort)) for cohort in cohorts()}) > 1
    drawn = [c for round in range(1, 401) for c in Plan(rounds=400, lr=0.1, cohort=2, seed=1).cohort_of(round, 5)]
    assert all(abs(drawn.count(client) - 160) < 45 for client in range(5))
    plan = Plan(rounds=1, lr=0.1, cohort=2)
    assert plan.cohort_of(1, 2) == [0, 1]
    assert plan.cohort_of(1, 1) == [0]


def test_tracked_momentum_is_broadcast_to_all() -> None:
    result = simulated(ud.fedadc(beta=0.5, downlink="track") + ud.scaffold())
    sent = [(r["bytes_down"], r["bytes_up"]) for r in result.history[1:]]
    assert sent == expected_bytes(("fedadc", "scaffold"), cohorts(), track=True)


SINGLE = [c for c in SENSIBLE if len(c) == 1]


@pytest.mark.parametrize("names", [*SINGLE, ("scaffold", "fedadc"), ("fedpvr", "fsl")], ids=label)
def test_the_number_of_workers_changes_nothing(names: tuple[str, ...]) -> None:
    rule = combined(names)
    runs = [facts(simulated(rule, workers=workers, rounds=3)) for workers in (0, 1, 3)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(
    ("name", "width", "layers", "times", "tolerance"),
    [("vgg11", 1.0, 3, 2.1, 0.04), ("resnet8", 1.0, 1, 2.02, 0.01)],
)
def test_partial_control_sends_hardly_more_than_averaging(
    name: str, width: float, layers: int, times: float, tolerance: float
) -> None:
    torch.manual_seed(0)
    module = models.build(name, input_shape=(3, 32, 32), classes=10, width=width, seed=0)
    clients = [(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))]
    result = ud.simulate(module, clients, ud.fedpvr(layers), rounds=1, batch_size=2, lr=0.001, workers=0)
    size = 4 * sum(t.numel() for t in module.state_dict().values() if t.is_floating_point())
    assert (result.summary["bytes_down"] + result.summary["bytes_up"]) / size == pytest.approx(times, abs=tolerance)


# Resuming.


@dataclass
class PowerCutError(Exception):
    """Stands for a power cut after a round."""

    round: int


STATEFUL = [
    ("scaffold",),
    ("fedpvr",),
    ("feddyn",),
    ("slowmo",),
    ("fedadc",),
    ("ds",),
    ("fsl",),
    ("fedavg",),
    ("centralised",),
    ("scaffold", "slowmo"),
    ("fedadc", "ds", "fsl"),
    ("fedpvr", "fsl"),
    ("scaffold", "fedadc", "ds"),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("names", STATEFUL, ids=label)
def test_a_resumed_run_ends_in_the_same_bits(names: tuple[str, ...], workers: int, tmp_path: Path) -> None:
    """Stopped after round 5 of 7 with checkpoints after every round but the last ones: rounds are done again."""
    clients, server, test = data()
    plan = Plan(rounds=7, lr=0.1, schedule="cosine", cohort=COHORT, batch_size=4, seed=3, weight_decay=0.01)
    federation = from_clients(clients, server=server, test=test)
    work = prepare(model(), combined(names), federation, plan, nn.functional.cross_entropy, "cpu")
    whole = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "whole", {}, resume=False), state_budget=400).go()

    def cut(round: int, rounds: int, record: Any) -> None:
        if round == 5:
            raise PowerCutError(round)
        run.checkpoint_seconds = -1.0 if round < 2 else 1e9

    run = Run(
        work, engine_for, workers, folder=RunFolder(tmp_path / "cut", {}, resume=False), progress=cut, state_budget=400
    )
    run.checkpoint_seconds = -1.0
    with pytest.raises(PowerCutError):
        run.go()
    state = json.loads((tmp_path / "cut" / "checkpoint" / "state.json").read_text())
    assert 1 <= state["round"] < 5
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as file:
        file.write('{"round": 6, "test_acc')
    resumed = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "cut", {}, resume=True), state_budget=400).go()
    assert facts(resumed) == facts(whole)
    assert_same_folders(tmp_path / "cut", tmp_path / "whole")
    again = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "cut", {}, resume=True)).go()
    assert facts(again) == facts(whole)


def without_clock(folder: Path, name: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_lines(folder / name)]


def assert_same_folders(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "rounds.jsonl"):
        assert without_clock(one, name) == without_clock(other, name)
        assert without_clock(one, name)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    for summary in summaries:
        summary.pop("seconds")
        assert summary.pop("checksums")  # of files that hold seconds
    assert summaries[0] == summaries[1]
    states = [json.loads((folder / "checkpoint" / "state.json").read_text()) for folder in (one, other)]
    assert states[0]["clients"].keys() == states[1]["clients"].keys()
    for client in states[0]["clients"]:
        pairs = zip((one, other), states, strict=True)
        memories = [load_file(f / "checkpoint" / "clients" / s["clients"][client]) for f, s in pairs]
        assert all(torch.equal(memories[0][path], memories[1][path]) for path in memories[0])
    leftovers = [p for p in one.rglob("*") if p.name.endswith(".part")]
    assert not leftovers


class Killer(ud.Rule):
    """Kills the worker of each round's first client: in its steps, or in every other round while it answers."""

    def __init__(self, flag: Path, driver: int) -> None:
        self.flag, self.driver = flag, driver
        self.round = 0

    def shift(self, y: Tensor, at: ud.ClientAt) -> None:
        self.round = at.round
        if at.round % 2:
            self.strike()

    def answer(self, source: Tree, target: Tree) -> None:
        """In place of the engine's own function that puts an answer into shared memory."""
        if self.round % 2 == 0:
            self.strike(target)
        copy_into(source, target)

    def strike(self, target: Tree | None = None) -> None:
        if self.round > 1 and os.getpid() != self.driver and not (mark := self.flag / str(self.round)).exists():
            mark.touch()
            for value in flatten(target or {}).values():
                value.fill_(7.0)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rule", [ud.fedavg(), ud.scaffold(), ud.feddyn(0.2) + ud.fsl()])
def test_a_killed_worker_is_replaced_and_the_bits_stay(
    rule: Rule, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = facts(simulated(rule))
    killer = Killer(tmp_path, os.getpid())
    monkeypatch.setattr(local_worker, "copy_into", killer.answer)
    shaken = simulated(rule + killer, workers=workers)
    assert len(list(tmp_path.iterdir())) == ROUNDS - 1
    assert {**facts(shaken), "summary": 0} == {**quiet, "summary": 0}


@pytest.mark.parametrize("room", [0, 1 << 30])
def test_client_memories_in_shared_memory_and_out_of_it(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where shared memory has no room for what clients keep, it is copied: the same bits."""
    monkeypatch.setattr(local_worker, "_ROOM", room)
    rule = ud.scaffold() + ud.fedprox(0.1)
    assert facts(simulated(rule, workers=2)) == facts(simulated(rule))


# Real processes.

CONFIG = """
seed = 2
[data]
name = "synthetic"
samples = 400
features = 6
[partition]
scheme = "dirichlet"
alpha = 0.5
clients = 8
[server_data]
source = "iid"
size = 20
[model]
name = "mlp"
hidden = [16]
[algorithm]
name = "{algorithm}"
[algorithm.fedadc]
beta = 0.5
[train]
rounds = {rounds}
cohort = 3
lr = 0.05
batch_size = 10
eval_every = 3
[engine]
workers = {workers}
checkpoint_seconds = {checkpoint}
"""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "undrift.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def forked(*arguments: str | Path) -> ForkProcess:
    """The command in a process of its own, without the seconds that importing takes."""

    def child() -> None:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        sys.argv = ["undrift", *map(str, arguments)]
        main()

    process = get_context("fork").Process(target=child)
    process.start()
    return process


@pytest.mark.parametrize(
    ("algorithm", "workers", "checkpoint", "kills"),
    [
        ("scaffold", 0, 0, 3),
        ("scaffold", 2, 0.02, 3),
        ("fedadc+ds+fsl", 2, 0.02, 2),
        ("feddyn", 0, 0, 2),
        ("fedpvr+slowmo", 0, 0.02, 2),
    ],
)
def test_kill_minus_nine_at_random_moments(
    algorithm: str, workers: int, checkpoint: float, kills: int, tmp_path: Path
) -> None:
    """Processes killed at moments drawn from a seed and resumed, against an uninterrupted run."""
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(algorithm=algorithm, workers=workers, checkpoint=checkpoint, rounds=40))
    run_config(read(path, ["engine.workers=0", "engine.checkpoint_seconds=10"]), tmp_path / "whole")
    draw = random.Random(f"{algorithm} {workers}")
    out, killed = tmp_path / "killed", 0
    for _ in range(kills):
        if rounds_in(out) > 30:
            break
        resume = ["--resume"] if (out / "config.toml").exists() else []
        process = forked("run", path, "--out", out, "--quiet", *resume)
        kill_after(process.pid, rounds_in(out) + draw.randrange(2, 9), draw.random() * 0.02, out, process.is_alive)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed
    last = forked("run", path, "--out", out, "--quiet", "--resume")
    last.join()
    assert last.exitcode == 0
    assert_same_folders(out, tmp_path / "whole")


def kill_after(pid: int | None, target: int, pause: float, out: Path, alive: Callable[[], bool]) -> None:
    """Kill a process and its workers a moment after it has made so many rounds (or none, if it never gets there)."""
    for _ in patience(300):
        if rounds_in(out) >= target or not alive():
            break
    time.sleep(pause)
    if alive() and pid is not None:
        os.killpg(pid, signal.SIGKILL)


def test_kill_minus_nine_of_the_command_itself(tmp_path: Path) -> None:
    """The installed program, killed once, against a run in this process: two programs, the same bits."""
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(algorithm="scaffold+fsl", workers=2, checkpoint=0.05, rounds=50))
    run_config(read(path, ["engine.workers=0"]), tmp_path / "whole")
    start = command("run", path, "--out", tmp_path / "killed", "--quiet")
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment()}
    process = subprocess.Popen(start, start_new_session=True, **quiet)
    kill_after(process.pid, 10, 0.005, tmp_path / "killed", lambda: process.poll() is None)
    assert process.wait() == -signal.SIGKILL
    assert rounds_in(tmp_path / "killed") < 50
    assert subprocess.run([*start, "--resume"], **quiet).returncode == 0
    assert_same_folders(tmp_path / "killed", tmp_path / "whole")


def rounds_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def patience(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.005)
    raise AssertionError("it took too long")


def test_partitions_and_cohorts_do_not_depend_on_the_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(algorithm="fedavg", workers=0, checkpoint=10, rounds=20))
    plain = work_of(read(path))
    for algorithm in ("scaffold", "fedprox+fedadc", "fsl", "dsl"):
        other = work_of(read(path, [f"algorithm.name={algorithm}"]))
        assert (other.federation.indices == plain.federation.indices).all()
        assert (other.federation.offsets == plain.federation.offsets).all()
        assert [other.plan.cohort_of(t, 8) for t in range(20)] == [plain.plan.cohort_of(t, 8) for t in range(20)]
    moved = work_of(read(path, ["seed=3", "partition.seed=2"]))
    assert (moved.federation.indices == plain.federation.indices).all()
    assert [moved.plan.cohort_of(t, 8) for t in range(20)] != [plain.plan.cohort_of(t, 8) for t in range(20)]
