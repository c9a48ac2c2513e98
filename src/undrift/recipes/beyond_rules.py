"""Drift controls under privacy, with few bytes, among bad clients, with layers of one's own: Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.recipes.claims import Ahead, Claim, Reaches
from undrift.recipes.recipe import Arm, Recipe, Settings, Tuning

PAPER = "beyond the papers"
BASE: dict[str, Any] = {
    "data": {"name": "fashion-mnist"},
    "partition": {"scheme": "classes", "clients": 100, "classes": 2},
    "model": {"name": "mlp", "hidden": [64]},
    "train": {
        "rounds": 100,
        "cohort": 20,
        "batch_size": 50,
        "lr": 0.1,
        "weighting": "uniform",
        "eval_every": 5,
    },
}
RATES = (0.05, 0.1, 0.2)
ACCURACY = "rolling_accuracy"


def _arm(
    label: str,
    algorithm: str,
    settings: Settings | None = None,
    sweep: Mapping[str, tuple[Any, ...]] | None = None,
    group: str = "",
) -> Arm:
    start = {key: values[0] for key, values in (sweep or {}).items()}
    return Arm(
        label,
        algorithm,
        {"train.lr": 0.1, **start, **(settings or {})},
        {"train.lr": RATES, **(sweep or {})},
        {},
        group,
    )


# Privacy: the same epsilon for all arms of a group.

DELTA, PRIVATE_ROUNDS = 1e-3, 50
NOISE = {2: 2.251, 4: 1.403, 8: 0.935}
"""What each epsilon needs (``undrift privacy``): 50 rounds, a fifth of the clients in each on average."""
_CLIPS = {"algorithm.dp.clip": (0.3, 0.1)}


def _private(epsilon: int) -> tuple[Arm, ...]:
    group, spent = f"epsilon {epsilon}", {"algorithm.dp.noise": NOISE[epsilon], "algorithm.dp.delta": DELTA}
    started = {**spent, "train.pretrain_epochs": 20, "train.pretrain_lr": 0.1}
    alone = {**spent, "algorithm.dp.clip": 1e-6}
    return (
        _arm("dp", "dp", spent, _CLIPS, group),
        _arm("dp, pre-trained", "dp", started, _CLIPS, group),
        _arm("fsl+dp", "fsl+dp", spent, _CLIPS, group),
        _arm("fedadc+fsl+dp", "fedadc+fsl+dp", {**spent, "algorithm.fedadc.beta": 0.7}, _CLIPS, group),
        _arm("server data alone", "fsl+dp", alone, {}, group),
    )


PRIVACY = Recipe(
    "beyond-privacy",
    PAPER,
    "privacy",
    "Fashion-MNIST, 100 clients with 2 classes each, client-level privacy: drift controls at equal epsilon",
    {
        **BASE,
        "server_data": {"source": "balanced", "size": 500, "exclusive": True},
        "train": {**BASE["train"], "rounds": PRIVATE_ROUNDS},
    },
    tuple(arm for epsilon in NOISE for arm in _private(epsilon)),
    (ACCURACY, f"gain:dp:{ACCURACY}", "last:epsilon"),
    tuning=Tuning(),
    claims=(
        Claim(
            "At epsilon 4 server learning under privacy leads privacy alone by more than 5 points.",
            tuple(
                Ahead(f"epsilon 4: {name}", ("epsilon 4: dp",), ACCURACY, 0.05) for name in ("fsl+dp", "fedadc+fsl+dp")
            ),
        ),
        Claim(
            "What clients send under privacy is worth more than the server's data alone.",
            (Ahead("fsl+dp", ("server data alone",), ACCURACY),),
        ),
    ),
    notes=(
        "Every arm of a group has the same noise, rounds and share of clients, so the same epsilon (delta = 0.001): "
        "what the server does with noised sums costs nothing.",
        "The server's 500 samples are nobody else's. 'server data alone' clips clients' updates to nothing: what the "
        "server would reach without them.",
    ),
)


# Bytes.

_SPARSE = {"algorithm.topk.fraction": (0.05, 0.02)}
BYTES = Recipe(
    "beyond-bytes",
    PAPER,
    "bytes",
    "Fashion-MNIST, 100 clients with 2 classes each: FedAvg's accuracy with a tenth of its uplink",
    BASE,
    (
        _arm("FedAvg", "fedavg"),
        _arm("topk+quantise", "topk+quantise", {}, _SPARSE),
        _arm("fedpvr+topk+quantise", "fedpvr+topk+quantise", {}, _SPARSE),
        _arm("fedadc+topk+quantise", "fedadc+topk+quantise", {"algorithm.fedadc.beta": 0.7}, _SPARSE),
        _arm("scaffold+topk", "scaffold+topk", {}, _SPARSE),
        _arm("scaffold+topk+quantise", "scaffold+topk+quantise", {}, _SPARSE),
    ),
    (ACCURACY, f"gain:FedAvg:{ACCURACY}", "megabytes_up", "ratio:FedAvg:megabytes_up"),
    tuning=Tuning(rounds=50),
    claims=(
        Claim(
            "FedAvg's final accuracy with at most a tenth of its uplink.",
            (
                Reaches(("fedpvr+topk+quantise",), f"gain:FedAvg:{ACCURACY}", 0.0),
                Reaches(("fedpvr+topk+quantise",), "ratio:FedAvg:megabytes_up", 0.1),
            ),
        ),
    ),
    notes=(
        "quantise: 8 bits. topk sends other rules' messages whole, so SCAFFOLD's control variates are not made sparse.",
    ),
)


# Attack.

_ATTACK = {"attack.kind": "sign-flip", "attack.share": 0.2, "attack.scale": 5.0}
_ROBUST: tuple[tuple[str, Settings], ...] = (
    ("fedavg", {}),
    ("fedpvr+median", {}),
    ("fedpvr+trimmed", {"algorithm.trimmed.share": 0.3}),
    ("scaffold+trimmed", {"algorithm.trimmed.share": 0.3}),
    ("fedadc+krum", {"algorithm.fedadc.beta": 0.7, "algorithm.krum.byzantine": 6, "algorithm.krum.keep": 8}),
)


def _attacked(algorithm: str, settings: Settings) -> tuple[Arm, Arm]:
    clean = _arm("no attack", algorithm, settings, {}, algorithm)
    bad = Arm("attacked", algorithm, {**clean.settings, **_ATTACK}, clean.sweep, {}, algorithm, tuned_with="no attack")
    return clean, bad


ATTACK = Recipe(
    "beyond-attack",
    PAPER,
    "attack",
    "Fashion-MNIST, 100 clients (Dirichlet 0.5), a fifth of them sends its updates turned round and five times as long",
    {**BASE, "partition": {"scheme": "dirichlet", "clients": 100, "alpha": 0.5}},
    tuple(arm for algorithm, settings in _ROBUST for arm in _attacked(algorithm, settings)),
    (ACCURACY, f"gain:no attack:{ACCURACY}"),
    tuning=Tuning(rounds=50),
    claims=(
        Claim("FedAvg collapses.", (Ahead("fedavg: no attack", ("fedavg: attacked",), ACCURACY, 0.2),)),
        *(
            Claim(
                f"{name} stays within 3 points of what it reaches without attack.",
                (Reaches((f"{name}: attacked",), f"gain:no attack:{ACCURACY}", -0.03),),
            )
            for name, _ in _ROBUST[1:]
        ),
    ),
    notes=("Rates are chosen without attack and used under it too.",),
)


# Personal layers.

PERSONAL = Recipe(
    "beyond-personal",
    PAPER,
    "personal layers",
    "Fashion-MNIST, 100 clients with 2 classes each, tested on their own data: one model, or heads of their own",
    {**BASE, "partition": {**BASE["partition"], "test": 0.2}},
    (
        _arm("FedAvg", "fedavg"),
        *(
            Arm(name, name, {"train.lr": 0.1, **more}, {"train.lr": RATES}, tuned_with="FedAvg")
            for name, more in (
                ("personal", {}),
                ("personal+scaffold", {}),
                ("personal+fedadc", {"algorithm.fedadc.beta": 0.7}),
            )
        ),
    ),
    (
        "last:clients_accuracy",
        "last:clients_accuracy_p10",
        "last:clients_server_accuracy",
        "gain:FedAvg:last:clients_accuracy",
    ),
    tuning=Tuning(rounds=50),
    claims=(
        Claim(
            "On their own data clients are served better by layers of their own than by one model for all.",
            (Ahead("personal", ("FedAvg",), "last:clients_accuracy"),),
        ),
    ),
    notes=("clients_server_accuracy: the server model, whose last layer stays as it started, on the same data.",),
)

RECIPES = (PRIVACY, BYTES, ATTACK, PERSONAL)
