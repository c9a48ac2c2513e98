"""One thread for the tests: many of them fork, and a fork has none of its parent's threads."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
