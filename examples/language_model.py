"""A small language model: every client has texts in its own style; the next character is predicted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import undrift as ud

TEXTS = (
    "the server sends a model and the clients train it on data that stay at home. ",
    "every client drifts towards its own data, and the mean of what they learn is poor. ",
    "control variates tell each client where all the others are going, so they drift less. ",
)
LETTERS = sorted(set("".join(TEXTS)))
LENGTH = 16


class NextLetter(nn.Module):
    """Embedding, a recurrent layer, scores of the next letter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.letters, self.memory = nn.Embedding(len(LETTERS), 16), nn.GRU(16, 48, batch_first=True)
        self.head = nn.Linear(48, len(LETTERS))

    def forward(self, text: Tensor) -> Tensor:
        out: Tensor = self.head(self.memory(self.letters(text))[0])
        return out


def samples(text: str) -> tuple[Tensor, Tensor]:
    """Windows of a text, and the same one letter later."""
    numbers = torch.tensor([LETTERS.index(letter) for letter in text * 3])
    windows = numbers.unfold(0, LENGTH + 1, 3)
    return windows[:, :-1], windows[:, 1:]


def run(**settings: Any) -> ud.Result:
    """Three clients, tested on all three styles."""
    clients = [samples(text) for text in TEXTS]
    inputs, targets = samples("".join(TEXTS))
    given = {"rounds": 10, "lr": 1.0, "batch_size": 16, "local_epochs": 2, **settings}
    return ud.simulate(
        NextLetter(),
        clients,
        "scaffold",
        test_data=(inputs, targets),
        task="language-model",
        monitor="perplexity",
        **given,
    )


if __name__ == "__main__":
    print(run())
