"""Data larger than memory are read when they are visited: memory does not grow with the data set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource, sys
import numpy as np, torch
from torch import nn
from torch.utils.data import Dataset
import undrift as ud


class Mapped(Dataset):
    def __init__(self, path, rows, start, stop):
        self.path, self.rows, self.start, self.stop = path, rows, start, stop

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, place):
        table = np.memmap(self.path, np.float32, "r", shape=(self.rows, 4096))
        row = self.start + place
        return torch.from_numpy(np.array(table[row, :64])) + row % 2, row % 2


path, rows = sys.argv[1], int(sys.argv[2])
each = rows // 4
clients = [Mapped(path, rows, n * each, (n + 1) * each) for n in range(4)]
result = ud.simulate(
    nn.Linear(64, 2), clients, test_data=Mapped(path, rows, 0, 100), lazy=True, rounds=2, local_steps=20,
    batch_size=16, lr=0.1, workers=2,
)
peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(len(clients) * each * 4096 * 4 / 2**30, peak / 2**20, result.summary["final_accuracy"])
"""


def test_four_gigabytes_train_in_less_than_one_and_a_half(tmp_path: Path) -> None:
    rows = 262_144
    path = tmp_path / "table.bin"
    with open(path, "wb") as file:
        file.truncate(rows * 4096 * 4)  # sparse: takes no room on the disk
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(rows)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    size, peak, accuracy = map(float, done.stdout.split())
    assert size >= 4
    assert peak < 1.5
    assert accuracy > 0.9
