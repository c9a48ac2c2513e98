"""A small transformer on a tokeniser's dictionaries: ``input_ids`` and ``attention_mask`` reach it by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import undrift as ud

WORDS, LENGTH = 40, 12


class Classifier(nn.Module):
    """Token and position embeddings, one encoder layer, the mean over tokens that are there."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(LENGTH, width))
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        there = attention_mask.bool()
        encoded = self.encoder(self.words(input_ids) + self.places, src_key_padding_mask=~there)
        mean = (encoded * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        return {"logits": self.head(mean)}


def reviews(n: int, seed: int, praise: float) -> list[dict[str, Tensor]]:
    """Sentences of word numbers; words below 10 are kind ones, from 30 on unkind ones, and the label tells which."""
    draw = torch.Generator().manual_seed(seed)
    items = []
    for _ in range(n):
        label = int(torch.rand((), generator=draw) < praise)
        length = int(torch.randint(4, LENGTH + 1, (), generator=draw))
        ids = torch.randint(10, 30, (LENGTH,), generator=draw)
        ids[: length // 2] = torch.randint(0, 10, (length // 2,), generator=draw) + (0 if label else 30)
        mask = (torch.arange(LENGTH) < length).long()
        items.append({"input_ids": ids * mask, "attention_mask": mask, "labels": torch.tensor(label)})
    return items


def run(**settings: Any) -> ud.Result:
    """Four sites, from those that mostly praise to those that mostly complain."""
    clients = [reviews(80, seed, praise) for seed, praise in enumerate((0.95, 0.8, 0.2, 0.05))]
    given = {"rounds": 8, "lr": 0.1, "batch_size": 16, **settings}
    return ud.simulate(Classifier(), clients, "fedadc", test_data=reviews(200, 9, 0.5), **given)


if __name__ == "__main__":
    print(run())
