"""What a report says, in which order, and what it refuses; how it looks is tested in a browser."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import EVIL, write_comparison, write_run

from shell import Undrift
from undrift.errors import ConfigError
from undrift.report.charts import chart_data, thinned
from undrift.report.clients import fairness
from undrift.report.curves import byte_unit
from undrift.report.html import as_script, tag
from undrift.report.looks import COLOURS, DASHES, KNOWN, look, looks
from undrift.report.numbers import ranking, verdict
from undrift.report.page import content, render
from undrift.report.runs import Group, RunRecord, groups_in
from undrift.report.series import numbers_in, seconds
from undrift.report.story import Story, collect
from undrift.report.watch import serve


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("report"), rounds=12)


@pytest.fixture(scope="module")
def story(compared: Path) -> Story:
    return collect([compared])


def group(label: str, *finals: float, summary: dict[str, Any] | None = None, **more: float) -> Group:
    """A group whose runs end with these accuracies (and with other metrics, the same in all)."""
    name = label.partition(",")[0]
    runs = [
        RunRecord(
            Path(), {"algorithm": {"name": name}}, [{"round": 5, "test_accuracy": end, **more}], summary=summary or {}
        )
        for end in finals
    ]
    return Group(label, runs)


def test_what_a_reader_wants_first_stands_first(story: Story) -> None:
    page = content(story)
    order = ["verdict", "progress", "federation", "drift", "clients", "lost", "configuration", "reproduce"]
    assert re.findall(r'<section id="(\w+)"', page) == order
    assert "scaffold ends best: test accuracy" in page
    assert page.index("scaffold ends best") < page.index("<table")


def test_the_verdict_names_the_lead_over_fedavg_and_who_cannot_be_told_apart() -> None:
    groups = [group("fedavg", 0.70, 0.72), group("scaffold", 0.90, 0.94), group("feddyn", 0.91, 0.92)]
    first, second = verdict(groups)
    # Means .71, .92, .915; deviations .0141, .0283, .0071: feddyn lies within scaffold's .0283.
    assert (
        first
        == "scaffold ends best: test accuracy 0.9200 ± 0.0283 over 2 seeds, 0.2100 above fedavg (0.7100 ± 0.0141)."
    )
    assert second == "Within one standard deviation of it: feddyn."
    assert verdict([group("fedavg", 0.7), group("fsl", 0.8)])[1] == "With one seed, small differences may be chance."


def test_less_is_better_where_the_monitored_metric_says_so() -> None:
    told = {"monitor": "-mae"}
    groups = [group("fedavg", 0.0, summary=told, test_mae=3.0), group("scaffold", 0.0, summary=told, test_mae=2.0)]
    assert verdict(groups)[0] == "scaffold ends best: test mae 2.0000, 1.0000 below fedavg (3.0000)."


def test_validation_data_choose_between_settings_and_test_data_never() -> None:
    low, high = (
        group("scaffold, lr = 0.1", 0.95, validation_accuracy=0.60),
        group("scaffold, lr = 0.2", 0.90, validation_accuracy=0.70),
    )
    found = ranking([low, high, group("fedavg", 0.7, validation_accuracy=0.5)])
    assert [one.label for one, _ in found.ranked] == ["scaffold, lr = 0.2", "fedavg"]
    assert found.chosen
    blind = ranking([group("scaffold, lr = 0.1", 0.95), group("scaffold, lr = 0.2", 0.90)])
    assert blind.undecided
    assert "no validation data chose" in " ".join(verdict([one for one, _ in blind.ranked]))


def test_all_numbers_of_the_records_can_be_chosen(story: Story) -> None:
    keys = numbers_in(run for own in story.groups for run in own.runs)
    assert keys[:2] == ["test_accuracy", "test_loss"]
    assert {"train_loss", "drift.model", "clients.mean"} <= set(keys)
    assert not {"round", "seconds", "bytes_up"} & set(keys)


def test_the_seconds_axis_counts_every_round() -> None:
    rounds = [{"round": r, "seconds": 0.5 * r} for r in (1, 2, 3, 4)]
    run = RunRecord(Path(), {}, [{"round": 0}, {"round": 2}, {"round": 4}], None, rounds)
    assert seconds(run) == {0: 0.0, 2: 1.5, 4: 5.0}


def test_lines_are_thinned_evenly_and_keep_their_ends() -> None:
    kept = thinned(list(range(0, 5001, 5)), 100)
    assert (kept[0], kept[-1], len(kept)) == (0, 5000, 100)
    assert max(np.diff(kept)) <= 55
    assert thinned([1, 2, 3], 100) == [1, 2, 3]


def test_many_groups_still_fit_into_a_file() -> None:
    many = [group(f"fedavg, lr = {n}", 0.5) for n in range(400)]
    for one in many:
        one.runs[0].records[:] = [
            {"round": r, "test_accuracy": r / 7, "test_loss": 1 / (r + 7), "bytes_down": 1, "bytes_up": 1, "seconds": 1}
            for r in range(500)
        ]
    text = json.dumps(chart_data(Story([Path()], many, served=[None] * len(many))))
    assert len(text) < 4_000_000


@pytest.mark.parametrize(("name", "unit"), [(500, "bytes"), (2_000, "kB"), (3_000_000, "MB"), (5_000_000_000, "GB")])
def test_what_was_sent_has_a_unit_that_reads_well(name: int, unit: str) -> None:
    run = RunRecord(Path(), {}, [{"round": 1, "bytes_down": name, "bytes_up": 0}])
    assert byte_unit([Group("g", [run])])[1] == unit


def test_clients_with_test_data_of_their_own_are_told_too() -> None:
    record = {
        "round": 3,
        "clients_accuracy": 0.6,
        "clients_accuracy_p10": 0.3,
        "clients_accuracy_p90": 0.9,
        "clients_accuracy_worst": 0.2,
        "clients_worst": 7,
    }
    found = fairness(Group("g", [RunRecord(Path(), {}, [record])]))
    assert found is not None
    assert found.over_rounds == {3: (0.6, 0.3, 0.9, 0.2)}
    assert found.worst == [(7, 0.2)]


def test_quantiles_over_clients_come_from_each_of_them() -> None:
    record = {"round": 1, "clients": {"each": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]}}
    found = fairness(Group("g", [RunRecord(Path(), {}, [record])]))
    assert found is not None
    np.testing.assert_allclose(found.over_rounds[1], (0.5, 0.1, 0.9, 0.0))
    assert found.worst[0] == (0, 0.0)


def test_everything_from_data_is_escaped(story: Story) -> None:
    page = render(story)
    assert EVIL not in page
    assert "&lt;img src=x onerror=" in page
    assert "<img" not in page.partition('id="plotly"')[0]
    assert tag("p", EVIL, title=EVIL).count("<") == 2
    assert "</script" not in as_script({"name": "</script><b>"})


def test_the_page_may_load_nothing(story: Story) -> None:
    page = render(story)
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    shown = page.partition('id="data"')[0]
    assert not re.findall(r'(?:src|href)="(?!data:)', shown)


def test_differing_settings_are_marked_and_the_rest_is_folded(story: Story) -> None:
    page = content(story)
    block = page[page.index('id="configuration"') :]
    differing = block[: block.index("<details")]
    assert "algorithm.name" in differing
    assert "train.rounds" not in differing
    assert "train.rounds" in block
    assert 'class="apart"' in differing


def test_losses_are_told_with_their_reason(story: Story, tmp_path: Path, compared: Path) -> None:
    page = content(story)
    assert "8 of 144 turns of a client were lost" in page  # 2 runs lose in rounds 3, 6, 9, 12; 6 runs x 12 rounds x 2
    assert "no answer from" in page
    whole = content(collect([compared / "scaffold"]))
    assert "None: every one of 48 turns of a client was accepted." in whole


def test_the_command_writes_one_file_and_says_where(compared: Path, tmp_path: Path, undrift: Undrift) -> None:
    answer = undrift("report", compared, "--out", tmp_path / "page.html")
    assert (answer.code, answer.out.strip()) == (0, str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert 1_000_000 < len(text) < 6_000_000
    assert undrift("report", compared / "fedavg", compared / "scaffold", "--out", tmp_path / "two.html").code == 0
    assert "fedpvr+fsl" not in (tmp_path / "two.html").read_text().partition('id="plotly"')[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["empty"], "no run with an evaluated round, no diagnosis, no results"),
        (["compare", "--out", "empty"], "this is a folder"),
        (["empty", "--watch"], "no run with an evaluated round"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], said: str, compared: Path, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(compared.parent)
    Path("empty").mkdir(exist_ok=True)
    answer = undrift("report", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_run_whose_data_are_gone_is_told_without_its_federation(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fedavg", 0, 5, tmp_path / "gone.npz")
    found = collect([tmp_path])
    assert found.held == []
    assert "gone.npz" in content(found)


def test_a_diagnosis_is_told_by_its_verdict_and_advice(tmp_path: Path) -> None:
    found = {
        "verdict": "Strongly non-IID.",
        "recommended": [{"name": "fsl", "parameters": {"fsl": {"gamma": 1.0}}, "reason": "its data point right"}],
        "against": {"a memory at clients": "they come too rarely"},
        "drifting_layers": ["head"],
        "findings": {"clients": 9, "cohort": 3, "excess": 5.0, "layers": {"body": 1.0, "head": 3.0}},
        "bytes_a_round": {"fedavg": {"down": 100, "up": 100}},
        "race": [],
    }
    (tmp_path / "diagnosis.json").write_text(json.dumps(found))
    page = content(collect([tmp_path]))
    assert "Strongly non-IID." in page.partition("</section>")[0]
    for said in ("fsl.gamma = 1.0", "data point right", "they come too rarely", "5.00 times"):
        assert said in page


def evidence(**changes: Any) -> dict[str, Any]:
    curves = ([[0, 0.1, 2.0], [10, 0.5, 1.0]], [[0, 0.3, 2.0], [10, 0.7, 1.0]])
    good, bad = ({"mean": mean, "std": 0.01, "seeds": 2, "without": 0} for mean in (0.65, 0.5))
    arm = {
        "label": "FSL",
        "group": "",
        "algorithm": "fsl",
        "setting": {},
        "chosen": "no sweep",
        "tried": [],
        "paper": {"rolling_accuracy": 0.6},
        "ours": {"rolling_accuracy": good},
        "missing": [],
        "runs": [{"seed": seed, "curve": curve} for seed, curve in enumerate(curves)],
    }
    worse = arm | {"label": "FedDyn", "algorithm": "feddyn", "ours": {"rolling_accuracy": bad}, "runs": []}
    return {
        "recipe": "fsl-table-1",
        "paper": "FSL",
        "where": "table I",
        "title": "CIFAR-10",
        "command": "x",
        "scaled": False,
        "stand_in": False,
        "scaling": [],
        "metrics": ["rolling_accuracy"],
        "arms": [arm, worse],
        "missing": ["FedDyn/seed1"],
        "notes": [],
        "versions": {},
    } | changes


def test_a_reproduction_stands_beside_the_paper_and_says_what_falls_short(tmp_path: Path) -> None:
    (tmp_path / "fsl.json").write_text(json.dumps(evidence()))
    found = collect([tmp_path])
    page = content(found)
    assert "1 of 2 numbers reach the paper&#x27;s, 1 fall short" in page
    assert "1 runs have not been made" in page
    assert chart_data(found)["curves"][0][0]["value"] == [0.2, 0.6]


@pytest.mark.parametrize(("change", "mark"), [({"scaled": True}, "scaled"), ({"stand_in": True}, "made-up data")])
def test_what_is_not_the_papers_experiment_says_so_first(tmp_path: Path, change: dict[str, Any], mark: str) -> None:
    (tmp_path / "fsl.json").write_text(json.dumps(evidence(**change)))
    page = content(collect([tmp_path]))
    assert f"{mark}: " in page.partition("</section>")[0]
    assert f'<span class="badge">{mark}</span>' in page


def test_an_algorithm_keeps_its_colour_whatever_stands_beside_it() -> None:
    names = ["scaffold", "fedavg", "fsl", "scaffold", "moon+fsl", "fedadc+ds"]
    drawn = dict(zip(names, looks(names), strict=True))
    for name in names:
        assert drawn[name].colour == looks([name])[0].colour == look(name).colour
    assert len(set(looks(names))) == len(names)  # two settings of scaffold differ in dashes and marker
    assert len({own.colour for own in KNOWN.values()}) == len(KNOWN) == len(COLOURS)
    many = [f"rule{n}+fsl" for n in range(60)]
    assert len(set(looks(many))) == len(many)
    assert len(set(DASHES)) == 5


def test_a_live_page_answers_this_machine_only_and_knows_two_pages(compared: Path) -> None:
    with serve([compared]) as server:
        port = int(server.address.rsplit(":", 1)[1].strip("/"))

        def ask(path: str, host: str = "localhost") -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", path, headers={"Host": f"{host}:{port}"})
            answer = connection.getresponse()
            found = answer.status, answer.read()
            connection.close()
            return found

        assert ask("/")[0] == 200
        version = json.loads(ask("/state")[1])["version"]
        assert json.loads(ask(f"/state?seen={version}")[1]) == {"version": version}
        assert ask("/", host="evil.example")[0] == 403
        assert ask("/../etc/passwd")[0] == 404


def test_the_same_run_found_twice_counts_once(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "fedavg", tmp_path / "one")
    shutil.copytree(compared / "fedavg" / "seed0", tmp_path / "again")
    (group,) = groups_in([tmp_path])
    assert [run.seed for run in group.runs] == [0, 1]


def test_runs_without_any_evaluated_round_are_no_groups(tmp_path: Path) -> None:
    assert groups_in([tmp_path]) == []
    with pytest.raises(ConfigError, match="no such folder"):
        groups_in([tmp_path / "nowhere"])
