"""The demonstration shows drift, and drift being repaired."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from undrift import cli


def test_the_demo_shows_fedavg_behind_the_drift_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    monkeypatch.setattr("sys.argv", ["undrift", "demo", "--out", str(out), "--quiet"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    rows = {row["algorithm"]: row for row in json.loads((out / "comparison.json").read_text())}
    fedavg = rows["fedavg"]["final"]
    assert rows["fedavg"]["seeds"] == 3
    for name in ("scaffold", "fedpvr", "feddyn", "fedadc", "fsl", "fedpvr+fsl"):
        mean, deviation = rows[name]["final"]
        assert mean - deviation > fedavg[0] + fedavg[1] + 0.05, name
    printed = capsys.readouterr().out
    assert "fedpvr+fsl" in printed
    assert printed.strip().endswith(f"report: {out / 'report.html'}")
    assert "drift by layer" in (out / "report.html").read_text().lower()
    assert f"{fedavg[0]:.4f} ± {fedavg[1]:.4f}" in printed
