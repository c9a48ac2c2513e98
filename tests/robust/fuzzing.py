# ruff: noqa: E402 - imports that need a path
"""The campaign: mutated configurations, command lines, run folders, data files and messages; seeded and bounded.

``python tests/robust/fuzzing.py --seed 0 --seconds 600`` runs every part for a while (``make fuzz``) and prints what
was tried and what was found. A finding is a traceback, more than one line, a hang, a folder that blocks the next run,
or exit code 0 with other numbers. Every kind of finding there ever was has a test of its own beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "robust"), str(TESTS), str(TESTS / "flower")]

import mutations
import numpy as np
import torch

from forked import killed_after
from shell import CONFIG, arrays, same_run
from undrift.cli import main
from undrift.data import load
from undrift.errors import UndriftError

SAY = 1000
"""Attempts after which a sign of life is given."""
LIMIT, PATIENCE = 20, 120
"""Seconds that one attempt may compute, and that it may wait for something else than a processor."""
RUN = [
    "--set",
    "train.batch_size=0",
    "--set",
    "algorithm.name=scaffold",
    "--set",
    "engine.checkpoint_seconds=0.0",
    "--quiet",
]


def busy() -> float:
    """Seconds for which this process has computed, or waited for its turn."""
    try:
        return sum(map(int, Path("/proc/self/schedstat").read_text().split()[:2])) / 1e9
    except (OSError, ValueError):
        return time.process_time()


class Campaign:
    """What was tried, and what was found."""

    def __init__(self, seed: int, place: Path) -> None:
        self.draw, self.place = random.Random(seed), place
        self.tried, self.findings = Counter[str](), list[str]()
        self.scene: Any = None
        self.own = set(place.iterdir())
        self._slow, self._idle, self._busy = False, 0.0, busy()
        for sign in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(sign, self._alarm)

    def _alarm(self, number: int, frame: object) -> None:
        before, self._busy = self._busy, busy()
        self._idle += max(0.0, 1.0 - (self._busy - before))  # no tick, no second: this process may be stopped itself
        if number == signal.SIGPROF or self._idle > PATIENCE:
            self._slow = True
            raise TimeoutError

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """An attempt that takes too long is ended, and found."""
        self._slow, self._idle, self._busy = False, 0.0, busy()
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        signal.setitimer(signal.ITIMER_REAL, 1, 1)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def count(self, part: str) -> None:
        """One more attempt."""
        self.tried[part] += 1
        if self.tried[part] % SAY == 0:
            print(f"{part}: {self.tried[part]} tried, {len(self.findings)} findings so far", flush=True)

    def found(self, what: str) -> None:
        """Note a finding."""
        self.findings.append(what)
        print(f"FOUND {what}", flush=True)

    def command(self, *words: str) -> tuple[int, str]:
        """The command in this process: exit code and what it said."""
        out, err = io.StringIO(), io.StringIO()
        before, sys.argv = sys.argv, ["undrift", *words]
        code: Any = None
        try:
            with self.limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            self.found(f"{type(error).__name__}: {error!s:.200} of {shown(words)}")
        finally:
            sys.argv = before
        said = err.getvalue()
        lines = [line for line in said.splitlines() if "warning:" not in line]
        if self._slow:
            self.found(f"more than {LIMIT} s: {shown(words)}")
        elif code not in (0, 1, 2):
            self.found(f"exit code {code!r}: {shown(words)}: {said[-300:]}")
        elif "Traceback" in said or (code and len(lines) != 1):
            self.found(f"{len(lines)} lines: {shown(words)}: {said[-300:]}")
        elif "--debug shows where" in said and not allowed(said):
            self.found(f"only the last resort: {shown(words)}: {said.strip()[-300:]}")
        return code if isinstance(code, int) else -1, said


def allowed(said: str) -> bool:
    """What the system refuses is told by the last resort, and may be."""
    return any(
        word in said for word in ("name too long", "denied", "No such", "directory", "out of memory", "null byte")
    )


def shown(words: tuple[str, ...]) -> str:
    """A command line, short."""
    return " ".join(ascii(word)[:80] for word in words)


def configurations(campaign: Campaign) -> None:
    """A mutated configuration, one round."""
    draw, out = campaign.draw, campaign.place / "out"
    content = mutations.settings_of(draw, CONFIG) if draw.random() < 0.7 else mutations.bytes_of(draw, CONFIG.encode())
    Path("mutated.toml").write_bytes(content)
    few = ["--set", "train.rounds=1", "--quiet"]
    before = len(campaign.findings)
    code, said = campaign.command("run", "mutated.toml", "--out", "out", *few)
    if len(campaign.findings) > before:
        print(content.decode(errors="replace"), flush=True)
    if code == 2 and out.exists() and any(out.iterdir()):
        campaign.found(f"a refused run left its folder: {said.strip()[-200:]}")
    shutil.rmtree(out, ignore_errors=True)


WORDS = [
    "run",
    "compare",
    "diagnose",
    "recipes",
    "reproduce",
    "plot",
    "data",
    "list",
    "check",
    "get",
    "conformal",
    "cuts",
    "federation",
    "init",
    "serve",
    "join",
    "results",
    "c.toml",
    "data.npz",
    "nowhere",
    ".",
    "/dev/null",
    "--out",
    "out",
    "--set",
    "train.lr=0.1",
    "train.rounds=1",
    "seed=-1",
    "x=y",
    "=",
    "",
    "--resume",
    "--quiet",
    "--workers",
    "0",
    "-1",
    "1e9",
    "nan",
    "--algorithms",
    "fedavg",
    "fedavg,scaffold",
    ",,,",
    "--seeds",
    "1",
    "--sweep",
    "train.lr=1,2",
    "--sites",
    "a,b",
    "--root",
    "[/x]",
    "--help",
    "--version",
    "--scale",
    "--rates",
    "--level",
    "2",
    "--json",
    "--results",
    "x" * 5000,
    "a\0b",
    "\x1b[31m",
    "é",
    "--dry-run",
    "--size",
    "mini",
    "fsl-table-1",
    "--budget",
    "--accept-changed-data",
    "--method",
    "aps",
    "--profile",
    "--unknown",
    "-",
    "--",
    "--epsilon",
    "--data",
    "csv",
    "rules",
    "privacy",
    "report",
    "topk",
]
STARTS = [
    ["run", "c.toml", "--quiet", "--out", "out", "--set", "train.rounds=1"],
    ["conformal", "done"],
    ["cuts", "c.toml"],
    ["data", "list"],
    ["results"],
    ["reproduce", "fsl-table-1", "--dry-run"],
    ["federation", "init", "out"],
    ["rules"],
    ["init", "new.toml"],
    ["privacy", "c.toml"],
    ["diagnose", "c.toml", "--rates", "nan"],
    ["compare", "c.toml", "--algorithms", "fedavg", "--sweep", "train.lr=x"],
    ["privacy", "c.toml", "--set", "algorithm.name=dp"],
]
SLOW_STARTS = [
    ["plot", "done"],
    ["compare", "c.toml", "--algorithms", "fedavg", "--out", "out", "--workers", "1"],
    ["report", "done", "--out", "out"],
    ["recipes"],
]
"""Commands that take seconds where nothing is wrong with them: seldom."""


def command_lines(campaign: Campaign) -> None:
    """A known command with words put in, left out and exchanged."""
    draw = campaign.draw
    words = list(draw.choice(SLOW_STARTS if draw.random() < 0.01 else STARTS))
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(words) + 1)
        kind = draw.choice(("insert", "insert", "replace", "drop"))
        if kind == "insert":
            words[at:at] = [draw.choice(WORDS)]
        elif at < len(words):
            words[at : at + 1] = [draw.choice(WORDS)] if kind == "replace" else []
    if _would_wait(words):
        return
    campaign.command(*words)
    for path in set(campaign.place.iterdir()) - campaign.own:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _would_wait(words: list[str]) -> bool:
    """Commands that work for minutes, wait for others or use the network are none for a campaign."""
    alone = {"serve", "join", "get", "demo"}
    long = ("reproduce" in words and "--dry-run" not in words) or ("compare" in words and "1e9" in words)
    return bool(alone & set(words)) or long or "check" in words or ("diagnose" in words and "nan" not in words)


def run_folders(campaign: Campaign) -> None:
    """A damaged folder of an unfinished run, resumed: the same bits, or one line."""
    shutil.rmtree("cut", ignore_errors=True)
    shutil.copytree("halted", "cut")
    what = mutations.folder(campaign.draw, Path("cut"))
    _resumed(campaign, what)


def bit_flips(campaign: Campaign) -> None:
    """One bit of one file of a run's folder."""
    shutil.rmtree("cut", ignore_errors=True)
    shutil.copytree("halted", "cut")
    files = sorted(path for path in Path("cut").rglob("*") if path.is_file())
    path = campaign.draw.choice(files)
    raw = bytearray(path.read_bytes())
    at = campaign.draw.randrange(len(raw))
    raw[at] ^= 1 << campaign.draw.randrange(8)
    path.write_bytes(raw)
    _resumed(campaign, f"{path}: bit flipped in byte {at}")


def truncations(campaign: Campaign, path: str, size: int) -> None:
    """A file of a run's folder cut to so many bytes."""
    shutil.rmtree("cut", ignore_errors=True)
    shutil.copytree("halted", "cut")
    os.truncate(Path("cut") / path, size)
    _resumed(campaign, f"{path}: cut to {size} bytes")


def _resumed(campaign: Campaign, what: str) -> None:
    code, said = campaign.command("run", "c.toml", "--out", "cut", *RUN, "--set", "train.rounds=6", "--resume")
    if code == 0 and not same_run(Path("cut"), Path("done")):
        campaign.found(f"exit code 0 with other numbers: {what}")
    if code not in (0, 1, 2):
        campaign.found(f"{what}: {said[-200:]}")


def data_files(campaign: Campaign) -> None:
    """A damaged data file: read, or refused as such."""
    content = Path("data.npz").read_bytes()
    Path("mutated.npz").write_bytes(mutations.bytes_of(campaign.draw, content))
    try:
        with campaign.limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load("npz", path="mutated.npz")
    except UndriftError as error:
        if "\n" in str(error):
            campaign.found(f"more than one line: {error}")
    except Exception as error:
        shutil.copy("mutated.npz", f"finding-{len(campaign.findings)}.npz")
        campaign.found(f"data file: {type(error).__name__}: {error}")


def messages(campaign: Campaign) -> None:
    """A message that somebody has been at: an answer, or a refusal in words."""
    import rogue

    if campaign.scene is None:
        campaign.scene = rogue.scene(campaign.place / "scene")
    kind = campaign.draw.choices(list(rogue.KINDS), rogue.SHARES)[0]
    state = campaign.draw.getstate()
    try:
        with campaign.limited():
            rogue.KINDS[kind](campaign.draw, campaign.scene, lambda what: campaign.found(f"{kind}: {what}"))
    except Exception as error:
        campaign.found(f"{kind}: {type(error).__name__}: {error!s:.200} (state {hash(state)})")


def prepare(place: Path) -> None:
    """A configuration, its data, a finished run and one that was killed; no data sets, whatever is installed here."""
    os.chdir(place)
    (place / "none").mkdir()
    os.environ["UNDRIFT_DATA"] = str(place / "none")
    np.savez("data.npz", **arrays())
    Path("c.toml").write_text(CONFIG)
    for out, last in (("done", 100), ("halted", 5)):
        with contextlib.redirect_stdout(io.StringIO()):
            killed_after(last, "run", "c.toml", *RUN, "--set", "train.rounds=6", "--out", out)


def small_files() -> list[tuple[str, int]]:
    """Every length to which a small file of a run's folder can be cut."""
    sizes = {p.relative_to("halted"): p.stat().st_size for p in Path("halted").rglob("*") if p.is_file()}
    return [(str(path), length) for path, size in sorted(sizes.items()) if size < 4096 for length in range(size)]


PARTS: dict[str, Callable[[Campaign], None]] = {
    "configurations": configurations,
    "command lines": command_lines,
    "run folders": run_folders,
    "bit flips": bit_flips,
    "data files": data_files,
    "messages": messages,
}


def carry_out(campaign: Campaign, part: str, count: int, seconds: float) -> None:
    """So many attempts of one part, or as many as there is time for."""
    end = time.monotonic() + seconds
    while campaign.tried[part] < count and time.monotonic() < end:
        PARTS[part](campaign)
        campaign.count(part)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0, help="for each part")
    parser.add_argument("--count", type=int, default=1_000_000, help="attempts of each part")
    parser.add_argument("--part", choices=[*PARTS, "truncations"], action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("sklearn.datasets", "matplotlib.figure", "mapie.classification", "dp_accounting.pld"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)  # what an attempt is first to load does not count as its time
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="undrift-fuzz-", dir=memory) as place:
        prepare(Path(place))
        campaign = Campaign(options.seed, Path(place))
        for part in options.part or [*PARTS, "truncations"]:
            if part == "truncations":
                for path, length in small_files()[: options.count]:
                    truncations(campaign, path, length)
                    campaign.count(part)
            else:
                carry_out(campaign, part, options.count, options.seconds)
            print(f"{part}: {campaign.tried[part]} tried, {len(campaign.findings)} findings so far", flush=True)
        os.chdir("/")
    return min(len(campaign.findings), 1)


if __name__ == "__main__":
    sys.exit(_main())
