"""What all compared systems share: the data, the textbook networks, and how a result is reported.

Only numpy and torch are needed here, so that the file can be imported in every environment.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from memory import cpu_seconds

FINAL_SAMPLES = 2000


def spec() -> dict[str, Any]:
    """The work to do, handed over in the environment so that worker processes find it too."""
    work: dict[str, Any] = json.loads(os.environ["BENCH_SPEC"])
    return work


def generate(folder: Path, shape: tuple[int, ...], classes: int, samples: int, test: int, seed: int = 7) -> None:
    """Write learnable random data: a smooth prototype for each class, plus noise."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    if len(shape) == 3:
        coarse = rng.standard_normal((classes, shape[0], shape[1] // 4, shape[2] // 4), dtype=np.float32)
        prototypes = coarse.repeat(4, axis=2).repeat(4, axis=3)
    else:
        prototypes = 0.3 * rng.standard_normal((classes, *shape), dtype=np.float32)
    for name, count in (("train", samples), ("test", test)):
        y = rng.integers(0, classes, count)
        x = rng.standard_normal((count, *shape), dtype=np.float32)
        for start in range(0, count, 5000):
            x[start : start + 5000] += 0.5 * prototypes[y[start : start + 5000]]
        np.save(folder / f"x_{name}.npy", x)
        np.save(folder / f"y_{name}.npy", y)
    (folder / "done").touch()


def data(work: dict[str, Any], name: str, *, mapped: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of a set; ``mapped`` shares the file's pages between processes."""
    folder = Path(work["data"])
    x, y = (np.load(folder / f"{letter}_{name}.npy", mmap_mode="c" if mapped else None) for letter in "xy")
    return torch.from_numpy(x), torch.from_numpy(y)


def rows(work: dict[str, Any], user: int) -> slice:
    """The samples of one user."""
    return slice(user * work["per_user"], (user + 1) * work["per_user"])


class Block(nn.Module):
    """A basic residual block with group norm."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        groups = max(2, outside // 16)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(groups, outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


def textbook(work: dict[str, Any]) -> nn.Sequential:
    """The network as its users would write it."""
    torch.manual_seed(work["seed"])
    classes = work["classes"]
    if work["model"] == "cnn-cifar":
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(4096, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )
    if work["model"] == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, classes))
    if work["model"] == "resnet8":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.GroupNorm(2, 16),
            nn.ReLU(),
            Block(16, 16, 1),
            Block(16, 32, 2),
            Block(32, 64, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, classes),
        )
    raise ValueError(f"no textbook form of {work['model']}")


def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int = 200) -> tuple[float, float]:
    """Mean loss and accuracy, the way everybody writes it."""
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(y), batch):
            out, target = model(x[start : start + batch]), y[start : start + batch]
            loss += float(F.cross_entropy(out, target, reduction="sum"))
            correct += int((out.argmax(1) == target).sum())
    return loss / len(y), correct / len(y)


class Clock:
    """Times every round, the evaluation after it included, and stops the process where its turn ends.

    The first turn is there to get warm. Of the processes of a system only the first keeps a clock that takes turns.
    """

    def __init__(self, rounds: int, *, turns: bool = True) -> None:
        self.rounds, self.size = rounds, spec()["turn"] if turns else rounds + 1
        self.seconds: list[float] = []
        self.first = self.since = 0.0
        self.cpu = 0.0
        """Processor seconds of all processes together."""

    def tick(self) -> None:
        """Call at the end of a round."""
        now = time.time()
        self.seconds.append(now - self.since)
        done = len(self.seconds)
        if done == 1:
            self.first = now
        if done == self.rounds:
            self.cpu = cpu_seconds(os.getpid()) - self.cpu
        elif done % self.size == 0:
            if done == self.size:
                self.cpu = cpu_seconds(os.getpid())
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self.since = time.time()

    def at(self, round: int) -> None:
        """The same for a system that may tell of a round more than once, or of more rounds than are counted."""
        if len(self.seconds) < round <= self.rounds:
            self.tick()

    @property
    def cpu_a_round(self) -> float:
        """Processor seconds of all processes together, a round after the first turn."""
        return self.cpu / max(1, self.rounds - self.size)


def report(work: dict[str, Any], clock: Clock, model: nn.Module, versions: dict[str, str], **more: object) -> None:
    """Print the result as one line of JSON; the loss is taken in evaluation mode on fixed training samples."""
    x, y = data(work, "train", mapped=True)
    loss, _ = evaluate(model, x[:FINAL_SAMPLES], y[:FINAL_SAMPLES])
    started = float(os.environ["BENCH_STARTED"])
    result = {
        "first_round_end": clock.first - started,
        "seconds": clock.seconds[1:],
        "cpu_a_round": clock.cpu_a_round,
        "loss": loss,
        "untrained_loss": math.log(work["classes"]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0], **versions},
        **more,
    }
    sys.stdout.flush()
    print("\n" + json.dumps(result), flush=True)
