"""The compared systems' own environments, made on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVS = Path(__file__).parent / ".envs"
TORCH = "torch==2.13.0"
PACKAGES = {
    "flower": ("flwr[simulation]==1.41.*",),
    "pfl": ("pfl[pytorch]==0.6.*",),
    "fluke": ("--no-deps", "fluke-fl==0.8.*"),
}
NEEDED = {"fluke": ("pandas", "scikit-learn", "torchmetrics", "rich", "typer", "psutil", "requests", "pyyaml")}
"""What a system imports for the work, where it asks for more: fluke for torchvision, wandb, opacus and others."""


def python_of(name: str | None) -> Path:
    """The interpreter of an environment; None is the project's own."""
    return Path(sys.executable) if name is None else ENVS / name / "bin" / "python"


def prepare(name: str) -> None:
    """Make an environment: torch first, so that the same build is used everywhere and none is pulled in later."""
    ready = ENVS / name / "ready"
    if ready.exists():
        return
    print(f"installing {PACKAGES[name][-1]} …", flush=True)
    if not python_of(name).exists():
        _run(sys.executable, "-m", "venv", str(ENVS / name))
    for packages in ((TORCH,), (TORCH, *NEEDED.get(name, ())), (TORCH, *PACKAGES[name])):
        _run(str(python_of(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    ready.touch()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout}{done.stderr}")
