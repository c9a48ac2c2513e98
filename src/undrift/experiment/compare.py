"""The same federation under several algorithms, seeds and settings.

A sweep's best setting is chosen on validation data, never on the test set: the mean over seeds of the final
rolling validation value of what is monitored (accuracy, if nothing else is asked for) decides, and the table shows
the chosen setting's test value.
"""

from __future__ import annotations

import csv
import io
import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.core.files import read_lines, write_atomic, write_json
from undrift.errors import ConfigError
from undrift.experiment.config import Config, toml_value
from undrift.experiment.run_folder import read_summary
from undrift.experiment.run_many import Planned
from undrift.rounds.progress import Monitor, reached

Setting = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Row:
    """One algorithm's line of the table."""

    algorithm: str
    setting: str
    seeds: int
    metric: str
    final: tuple[float, float]
    rolling: tuple[float, float]
    rise_time: tuple[float, float]
    rounds_to: str
    megabytes: float
    seconds: float


def parse_sweep(sweeps: Sequence[str]) -> list[Setting]:
    """All combinations of ``KEY=V1,V2,…``."""
    axes = []
    for sweep in sweeps:
        key, sign, values = sweep.partition("=")
        if not sign or not values:
            raise ConfigError(f"--sweep {sweep}: KEY=VALUE,VALUE is expected, as in train.lr=0.01,0.05")
        axes.append([(key, toml_value(value)) for value in values.split(",")])
    return [tuple(combination) for combination in itertools.product(*axes)]


def label(setting: Setting) -> str:
    """A setting as a folder name."""
    return ",".join(f"{key}={value}" for key, value in setting)


def plan_runs(
    config: Config, algorithms: Sequence[str], seeds: int, sweep: Sequence[Setting], out: Path
) -> list[Planned]:
    """Every run of a comparison. All are checked before the first starts."""
    if len(sweep) > 1 and config.data.validation == 0:
        config = config.with_(("data.validation", 0.05))
    runs = []
    for algorithm, setting, number in itertools.product(algorithms, sweep, range(seeds)):
        seed = config.seed + number
        one = config.with_(("algorithm.name", algorithm), ("seed", seed), *setting)
        one.rule()
        name = "/".join(part for part in (algorithm, label(setting), f"seed{seed}") if part)
        runs.append(Planned(name, one, out / name))
    for name, times in Counter(planned.name for planned in runs).items():
        if times > 1:
            raise ConfigError(f"{name} is given {times} times; name every algorithm and every value once")
    return runs


def summarise(config: Config, algorithms: Sequence[str], seeds: int, sweep: Sequence[Setting], out: Path) -> list[Row]:
    """The table's rows: for each algorithm its best setting's numbers."""
    rows = []
    for algorithm in algorithms:
        folders = {
            setting: [
                out / "/".join(p for p in (algorithm, label(setting), f"seed{config.seed + n}") if p)
                for n in range(seeds)
            ]
            for setting in sweep
        }
        finished = {s: [f for f in fs if (f / "summary.json").exists()] for s, fs in folders.items()}
        finished = {s: fs for s, fs in finished.items() if fs}
        if finished:
            best = _best(finished) if len(sweep) > 1 else next(iter(finished))
            rows.append(_row(algorithm, label(best), finished[best]))
    return rows


def _best(finished: dict[Setting, list[Path]]) -> Setting:
    monitor = monitor_of(next(iter(finished.values()))[0])
    scores = {setting: _score(folders, monitor) for setting, folders in finished.items()}
    return next(setting for setting, score in scores.items() if score == monitor.best(list(scores.values())))


def monitor_of(folder: Path) -> Monitor:
    """What a finished run looked at."""
    return Monitor.of(read_summary(folder).get("monitor", "accuracy"))


def _score(folders: list[Path], monitor: Monitor) -> float:
    scores = [reached(read_lines(folder / "metrics.jsonl"), monitor) for folder in folders]
    counted = [score for score in scores if score is not None]
    if not counted:
        raise ConfigError(f"--sweep: {monitor.metric!r} is not counted on validation data")
    return sum(counted) / len(counted)


def _row(algorithm: str, setting: str, folders: list[Path]) -> Row:
    summaries = [read_summary(folder) for folder in folders]
    metric = monitor_of(folders[0]).metric

    def spread(key: str) -> tuple[float, float]:
        values = [float(s[key]) for s in summaries if s.get(key) is not None]
        return _mean_std(values)

    half = [s["rounds_to"].get("0.5") for s in summaries]
    reached = "-" if None in half else f"{sum(half) / len(half):.0f}"
    return Row(
        algorithm,
        setting,
        len(summaries),
        metric,
        spread(f"final_{metric}"),
        spread(f"rolling_{metric}"),
        spread("rise_time"),
        reached,
        sum(s["bytes_down"] + s["bytes_up"] for s in summaries) / len(summaries) / 1e6,
        sum(s["seconds"] for s in summaries) / len(summaries),
    )


def _mean_std(values: list[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """The table's first line; the third number is what was monitored."""
    metric = rows[0].metric if rows else "accuracy"
    return ("algorithm", "setting", "seeds", metric, "rolling", "T90", "rounds to .5", "MB sent", "seconds per run")


def cells(row: Row) -> tuple[str, ...]:
    """A row as text: mean ± standard deviation over seeds."""
    return (
        row.algorithm,
        row.setting or "-",
        str(row.seeds),
        f"{row.final[0]:.4f} ± {row.final[1]:.4f}",
        f"{row.rolling[0]:.4f} ± {row.rolling[1]:.4f}",
        f"{row.rise_time[0]:.0f}",
        row.rounds_to,
        f"{row.megabytes:.2f}",
        f"{row.seconds:.1f}",
    )


def write_tables(rows: Sequence[Row], out: Path) -> None:
    """``table.md``, ``table.csv`` and ``comparison.json``."""
    first = header(rows)
    lines = ["| " + " | ".join(first) + " |", "|" + "---|" * len(first)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    write_atomic(out / "table.md", "\n".join(lines) + "\n")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "algorithm",
            "setting",
            "seeds",
            f"{first[3]}_mean",
            f"{first[3]}_std",
            "rolling_mean",
            "rolling_std",
            "rise_time_mean",
            "rise_time_std",
            "megabytes",
            "seconds",
        ]
    )
    for r in rows:
        writer.writerow([r.algorithm, r.setting, r.seeds, *r.final, *r.rolling, *r.rise_time, r.megabytes, r.seconds])
    write_atomic(out / "table.csv", text.getvalue())
    write_json(out / "comparison.json", [vars(row) for row in rows])
