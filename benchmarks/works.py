"""What is compared: the work, the systems, and the bars that ours must clear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Spec = dict[str, Any]

CORES = 2
"""Threads, or one-thread processes, that a system may keep busy."""
WARM = 2
"""Rounds at the start of a run that are not counted, where systems took no turns (there, it is the first turn)."""
CNN: Spec = {"model": "cnn-cifar", "shape": [3, 32, 32], "classes": 10, "set": "images", "samples": 50_000, "lr": 0.05}
ROWS: Spec = {"model": "mlp", "shape": [784], "classes": 47, "set": "rows", "samples": 50_000, "lr": 0.1}
DEFAULTS: Spec = {
    "algorithm": "fedavg",
    "users": 1000,
    "per_user": 50,
    "cohort": 10,
    "batch": 10,
    "eval_every": 0,
    "test": 10_000,
    "seed": 0,
    "precision": "fp32",
    "workers": None,
    "threads": 1,
    "processes": 1,
    "server_samples": 200,
}


@dataclass(frozen=True)
class System:
    """One system at one setting."""

    name: str
    module: str
    label: str
    settings: tuple[tuple[str, Any], ...] = ()
    quick: bool = True
    """Whether the quick run takes it too."""
    checkout: Path | None = None
    """Another checkout of undrift, whose code it runs."""

    @property
    def environment(self) -> str | None:
        """The environment it runs in (None: the project's own)."""
        return {"flower_sim": "flower", "pfl_sim": "pfl", "fluke_sim": "fluke"}.get(self.module)


def system(name: str, module: str, label: str, *, quick: bool = True, **settings: Any) -> System:
    return System(name, module, label, tuple(settings.items()), quick)


OURS = system("ours", "ours", "undrift (processes chosen by itself)")
OURS_BF16 = system("ours-bf16", "ours", "undrift, bf16", precision="bf16")
OURS_ONE = system("ours-1", "ours", "undrift, one worker process", workers=1)
FLOWER = system("flower", "flower_sim", f"Flower, Ray, {CORES} clients at a time, 1 thread each", threads=CORES)
PFL_1 = system("pfl-1t", "pfl_sim", "pfl-research, 1 thread")
PFL_2 = system("pfl-2t", "pfl_sim", "pfl-research, 2 threads", threads=CORES)
PFL_2P = system("pfl-2p", "pfl_sim", "pfl-research, 2 processes (gloo)", processes=CORES, quick=False)
FLUKE_1 = system("fluke-1t", "fluke_sim", "fluke, 1 thread")
FLUKE_2 = system("fluke-2t", "fluke_sim", "fluke, 2 threads", threads=CORES)
LOOP_1 = system("loop-1", "loop", "hand-written loop, 1 process")
LOOP_2 = system("loop-2", "loop", "hand-written loop, 2 processes", processes=CORES)


@dataclass(frozen=True)
class Bar:
    """``slow`` must take at least ``factor`` times as long as ``fast`` (the best of several names each)."""

    text: str
    fast: tuple[str, ...]
    slow: tuple[str, ...]
    factor: float


@dataclass(frozen=True)
class Work:
    """One comparison."""

    key: str
    title: str
    spec: Spec
    systems: tuple[System, ...]
    rounds: int
    quick_rounds: int
    bars: tuple[Bar, ...] = ()
    turn: int = 5
    """Rounds until it is another system's turn; the first turn is not counted."""
    at_once: int = 12
    """Systems that are alive together."""

    def of(self, chosen: System, rounds: int) -> Spec:
        """What a system is told."""
        return {**DEFAULTS, **self.spec, **dict(chosen.settings), "rounds": rounds, "turn": self.turn}

    def groups(self, chosen: list[System]) -> list[list[System]]:
        """The systems that are alive together."""
        return [chosen[first : first + self.at_once] for first in range(0, len(chosen), self.at_once)]


FLOWER_BAR = Bar("3.4x Flower", ("ours",), ("flower",), 3.4)
PFL_BAR = Bar(
    "1.5x pfl-research in its best setting, two processes (gloo) included",
    ("ours",),
    ("pfl-1t", "pfl-2t", "pfl-2p"),
    1.5,
)


def loop_bar(percent: int) -> Bar:
    return Bar(
        f"at most {percent} % slower than the hand-written loop in {CORES} processes",
        ("ours",),
        ("loop-2",),
        1 / (1 + percent / 100),
    )


A = Work(
    "a",
    "cnn-cifar, 10 of 1,000 clients x 50 samples, batch 10, 1 epoch, FedAvg",
    CNN,
    (OURS, LOOP_2, FLOWER, PFL_2, PFL_2P, FLUKE_2, FLUKE_1, OURS_BF16, OURS_ONE, PFL_1, LOOP_1),
    20,
    15,
    (loop_bar(5), PFL_BAR, FLOWER_BAR, Bar("two workers 1.7x one worker", ("ours",), ("ours-1",), 1.7)),
)
B = Work(
    "b",
    "cnn-cifar, 50 of 1,000 clients x 50 samples, batch 10, 10,000 images evaluated every 10 rounds",
    {**CNN, "cohort": 50, "eval_every": 10},
    (OURS, LOOP_2, FLOWER, PFL_2, PFL_2P, OURS_BF16),
    30,
    20,
    (PFL_BAR, FLOWER_BAR),
    turn=10,
)
C = Work(
    "c",
    "MLP 784-200-47, 10 of 1,000 clients x 50 samples, batch 10",
    ROWS,
    (OURS, LOOP_2, FLOWER, PFL_1, PFL_2, PFL_2P, FLUKE_1, FLUKE_2, LOOP_1),
    100,
    40,
    (loop_bar(15), PFL_BAR, FLOWER_BAR),
    turn=20,
)
D = Work(
    "d",
    "the work of (a) under SCAFFOLD and FedADC (Flower has neither)",
    CNN,
    (
        OURS,
        system("ours-scaffold", "ours", "undrift, SCAFFOLD", algorithm="scaffold"),
        system("pfl-2t-scaffold", "pfl_sim", "pfl-research, SCAFFOLD, 2 threads", algorithm="scaffold", threads=CORES),
        system("ours-fedadc", "ours", "undrift, FedADC", algorithm="fedadc"),
        system("pfl-1t-scaffold", "pfl_sim", "pfl-research, SCAFFOLD, 1 thread", algorithm="scaffold"),
    ),
    40,
    12,
    (
        Bar("SCAFFOLD costs at most 10 % more than FedAvg", ("ours-scaffold",), ("ours",), 1 / 1.1),
        Bar("FedADC costs at most 10 % more than FedAvg", ("ours-fedadc",), ("ours",), 1 / 1.1),
    ),
)
E = Work(
    "e",
    "ResNet-8 (group norm), 4 of 40 clients x 500 samples, batch 50",
    {**CNN, "model": "resnet8", "users": 40, "per_user": 500, "cohort": 4, "batch": 50, "lr": 0.1},
    (OURS, LOOP_2, FLOWER, PFL_2, PFL_2P, replace(OURS_BF16, quick=False), PFL_1, LOOP_1),
    6,
    4,
    (loop_bar(5), PFL_BAR),
    turn=2,
)
RULES = ("scaffold", "fedpvr", "feddyn", "fsl", "minibatch-sfl")
LOOPS = {"minibatch-sfl": "loop_split"}


def _like(rule: str) -> Spec:
    """What the hand-written loop of a rule is told; where all clients step together, undrift uses one process, too."""
    return {"algorithm": rule, "processes": 1 if rule in LOOPS else CORES}


R = Work(
    "r",
    "the work of (a) under other algorithms, each beside a hand-written loop of the same algorithm",
    CNN,
    (
        OURS,
        *(
            made
            for name in RULES
            for made in (
                system(f"ours-{name}", "ours", f"undrift, {name}", algorithm=name),
                system(f"loop-{name}", LOOPS.get(name, "loop_rules"), f"hand-written {name} loop", **_like(name)),
            )
        ),
        system("ours-fedadc", "ours", "undrift, fedadc", algorithm="fedadc"),
    ),
    20,
    10,
    (
        *(
            Bar(f"{name} costs at most 10 % more than FedAvg", (f"ours-{name}",), ("ours",), 1 / 1.1)
            for name in ("scaffold", "fedpvr", "fedadc", "feddyn")
        ),
        *(
            Bar(f"{name}: at most 5 % above its hand-written loop", (f"ours-{name}",), (f"loop-{name}",), 1 / 1.05)
            for name in RULES
        ),
    ),
)
GROWTH = Work(
    "growth",
    "undrift's time a round and memory as one quantity grows, the rest as in (a)",
    CNN,
    (
        *(
            system(f"population-{n}", "ours", f"population {n:,}", users=n, quick=n in (100, 1_000_000))
            for n in (100, 1_000, 10_000, 100_000, 1_000_000)
        ),
        *(system(f"cohort-{n}", "ours", f"cohort {n}", cohort=n) for n in (1, 10, 100)),
        *(
            system(f"model-{key}", "ours", f"model {key}", quick=key == "linear", model=name, options=options)
            for key, name, options in (
                ("linear", "linear", {}),
                ("mlp-200", "mlp", {"hidden": [200]}),
                ("cnn-cifar", "cnn-cifar", {}),
                ("mlp-1000", "mlp", {"hidden": [1000, 1000]}),
                ("vgg11-quarter", "vgg11", {"width": 0.25}),
            )
        ),
    ),
    20,
    8,
    (Bar("population 1,000,000 within 10 % of 100", ("population-1000000",), ("population-100",), 1 / 1.1),),
    at_once=5,
)
WORKS = {work.key: work for work in (A, B, C, D, E, R, GROWTH)}


def against(checkout: Path, label: str) -> Work:
    """FedAvg, SCAFFOLD and FedADC here and in another checkout of undrift."""
    rules = ("fedavg", "scaffold", "fedadc")
    systems = []
    for rule in rules:
        systems.append(system(f"ours-{rule}", "ours", f"undrift, {rule}", algorithm=rule))
        systems.append(replace(systems[-1], name=f"theirs-{rule}", label=f"{label}, {rule}", checkout=checkout))
    bars = tuple(
        Bar(f"{rule}: at most 2 % slower than {label}", (f"ours-{rule}",), (f"theirs-{rule}",), 1 / 1.02)
        for rule in rules
    )
    return Work("against", f"the work of (a) here and at {label}", CNN, tuple(systems), 45, 15, bars)
