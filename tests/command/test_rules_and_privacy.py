"""``undrift rules`` and ``undrift privacy``."""

from __future__ import annotations

from pathlib import Path

import pytest

from shell import Undrift
from undrift.rules import RULES
from undrift.rules.accounting import epsilon

CONFIG = """
[data]
name = "digits"
[partition]
scheme = "iid"
clients = 40
[algorithm]
name = "scaffold+dp"
[algorithm.dp]
noise = 1.2
delta = 0.001
[train]
rounds = 30
cohort = 8
"""


def test_rules_are_listed_with_what_they_send_and_cannot_go_with(undrift: Undrift) -> None:
    answer = undrift("rules")
    assert answer.code == 0
    blocks = {block.split("\n")[0]: block for block in answer.out.split("\n\n")}
    assert set(RULES) <= set(blocks)
    assert "parameters  option = 2" in blocks["scaffold"]
    assert "owns        the correction of client gradients" in blocks["scaffold"]
    assert "sends       2.00 down, 2.00 up; a client keeps 1.00" in blocks["scaffold"]
    assert "not with    fedpvr, feddyn: both own the correction of client gradients" in blocks["scaffold"]
    assert "1.00 down, 0.20 up" in blocks["topk"]
    assert "stands      before dp, quantise" in blocks["topk"]
    assert "median, trimmed, krum: both own how updates are aggregated" in blocks["dp"]
    assert "sends       nothing" in blocks["centralised"]
    assert "sends       activations" in blocks["sfl-v2"]


def test_some_rules_only(undrift: Undrift) -> None:
    answer = undrift("rules", "krum", "fsl")
    assert [block.split("\n")[0] for block in answer.out.split("\n\n")[:2]] == ["krum", "fsl"]
    wrong = undrift("rules", "krumm")
    assert wrong.code == 2
    assert wrong.err == "undrift: no rule 'krumm': did you mean 'krum'?\n"


def test_what_a_configuration_will_have_spent(undrift: Undrift, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    (tmp_path / "c.toml").write_text(CONFIG)
    answer = undrift("privacy", tmp_path / "c.toml", "--epsilon", "3", "--set", "algorithm.dp.budget=2.5")
    assert answer.code == 0, answer.err
    assert "40 clients, each in a round with probability 0.2; clip 1, noise 1.2, delta 0.001" in answer.out
    assert f"epsilon after 30 rounds: {epsilon(0.2, 1.2, 1e-3, 30):.3f}" in answer.out
    fit = int(answer.out.split("budget 2.5: ")[1].split()[0])
    assert epsilon(0.2, 1.2, 1e-3, fit) <= 2.5 < epsilon(0.2, 1.2, 1e-3, fit + 1)
    noise = float(answer.out.split("epsilon 3 after 30 rounds: noise ")[1])
    assert epsilon(0.2, noise + 1e-3, 1e-3, 30) <= 3 < epsilon(0.2, 0.995 * noise, 1e-3, 30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--set", "algorithm.name=scaffold"], "has no 'dp' in it"),
        (["--epsilon", "0"], "--epsilon 0.0: must be above 0"),
        (["--set", "train.cohort=41"], "train.cohort = 41: there are only 40 clients"),
    ],
)
def test_what_has_no_epsilon(undrift: Undrift, tmp_path: Path, change: list[str], message: str) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    answer = undrift("privacy", tmp_path / "c.toml", *change)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_server_data_of_the_clients_are_refused_where_clients_are_promised_privacy(
    undrift: Undrift, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    with_learning = ["--set", "algorithm.name=fsl+dp", "--set", "train.weighting=uniform", "--set", "train.rounds=1"]
    data = ["--set", "server_data.source=balanced", "--set", "server_data.size=20"]
    answer = undrift("run", tmp_path / "c.toml", "--out", tmp_path / "run", "--quiet", *with_learning, *data)
    assert answer.code == 2
    assert "server_data.source = 'balanced': with 'dp' no samples of the clients'" in answer.err
    own = [*data, "--set", "server_data.exclusive=true"]
    assert undrift("run", tmp_path / "c.toml", "--out", tmp_path / "run", "--quiet", *with_learning, *own).code == 0


def test_an_attack_is_recorded_with_its_members(undrift: Undrift, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG.replace("scaffold+dp", "median") + "weighting = 'uniform'\nlr = 0.1\n")
    for kind in ("sign-flip", "noise", "label-flip"):
        out = tmp_path / kind
        answer = undrift(
            "run",
            tmp_path / "c.toml",
            "--out",
            out,
            "--quiet",
            "--set",
            f"attack.kind={kind}",
            "--set",
            "train.rounds=2",
            "--set",
            "attack.share=0.1",
        )
        assert answer.code == 0, answer.err
        assert f'kind = "{kind}"' in (out / "config.toml").read_text()
        assert '"attackers"' in (out / "summary.json").read_text()
    wrong = undrift("run", tmp_path / "c.toml", "--set", "attack.kind=flip")
    assert wrong.code == 2
    assert "attack.kind" in wrong.err
