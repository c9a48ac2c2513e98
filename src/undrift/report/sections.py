"""The parts of a report that are text and tables, in the order in which a reader wants them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from undrift.experiment.run_folder import dotted
from undrift.report.charts import CLIENTS
from undrift.report.html import Html, escaped, joined, table, tag
from undrift.report.looks import Look
from undrift.report.lost import reasons, turns
from undrift.report.numbers import (
    Spread,
    final,
    final_rolling,
    finished,
    from_summary,
    monitor_of,
    number,
    over_seeds,
    ranking,
    rounds_done,
    rounds_planned,
    sent_total,
    target_rounds,
)
from undrift.report.runs import Group
from undrift.report.series import layers_of, numbers_in, plain_name
from undrift.report.story import Story

MORE_METRICS = 4
"""Further metrics in the table of final numbers at most."""


def section(name: str, title: str, *children: object, hint: object = "") -> Html:
    """A part of the page with a heading to link to."""
    head = tag("h2", title)
    return tag("section", head, tag("p", hint, class_="hint") if hint else "", *children, id=name)


def chart(kind: str, index: int | None = None) -> Html:
    """A place that the script draws in."""
    return tag("div", class_="chart", data_chart=kind, data_index=index)


def swatch(look: Look) -> Html:
    """A short piece of colour in front of a name."""
    return tag("i", class_="swatch", style=f"--own:{look.colour};--own-dark:{look.on_dark}")


def final_numbers(groups: Sequence[Group]) -> Html:
    """The table of final numbers, the best first."""
    monitor, metric = monitor_of(groups), f"test_{monitor_of(groups).metric}"
    order = {id(group): place for place, (group, _) in enumerate(ranking(groups).ranked)}
    keys = [key for key in numbers_in(run for g in groups for run in g.runs) if key.startswith("test_")]
    others = [key for key in keys if key != metric][:MORE_METRICS]
    head = ["algorithm", "seeds", plain_name(metric), "rolling (20 rounds)", *map(plain_name, others)]
    head += ["T90"] + (["rounds to .5"] if monitor.metric == "accuracy" else []) + ["MB sent", "seconds", "state"]
    ordered = sorted(groups, key=lambda group: order.get(id(group), len(order)))
    rows = [_final_row(group, metric, others, monitor.metric == "accuracy") for group in ordered]
    words = (
        "Final values, mean ± standard deviation over seeds. T90: the first round at which the rolling value comes "
        "within 90 % of its last. MB sent: both ways, all clients."
    )
    return joined([table(head, rows, class_="numbers"), tag("p", words, class_="hint")])


def _final_row(group: Group, metric: str, others: Sequence[str], accuracy: bool) -> list[object]:
    score = over_seeds(group, final(metric))
    cells: list[object] = [
        tag("th", swatch(group.look), group.label, scope="row"),
        str(len(group.runs)),
        _scored(score, group.look, accuracy),
        _shown(over_seeds(group, final_rolling(metric))),
        *(_shown(over_seeds(group, final(key))) for key in others),
        _rounded(over_seeds(group, from_summary("rise_time"))),
    ]
    if accuracy:
        cells.append(target_rounds(group, "0.5"))
    megabytes, time = over_seeds(group, sent_total), over_seeds(group, from_summary("seconds"))
    return [*cells, _plain(megabytes), _plain(time), _state(group)]


def _scored(score: Spread | None, look: Look, accuracy: bool) -> object:
    """The value that counts, with a bar under it where it is a share."""
    if score is None or not accuracy:
        return tag("td", tag("b", _shown(score)))
    style = f"--share:{min(max(score.mean, 0.0), 1.0):.1%};--own:{look.colour};--own-dark:{look.on_dark}"
    return tag("td", tag("b", score), tag("span", class_="bar", style=style))


def _shown(score: Spread | None) -> str:
    return "–" if score is None else str(score)


def _rounded(score: Spread | None) -> str:
    return "–" if score is None else f"{score.mean:.0f}"


def _plain(score: Spread | None) -> str:
    return "–" if score is None else f"{score.mean:,.2f}" if score.mean < 100 else f"{score.mean:,.0f}"


def _state(group: Group) -> str:
    done = max(rounds_done(run) for run in group.runs)
    if finished(group):
        return f"{done} rounds"
    planned = rounds_planned(group.runs[0])
    return f"not finished: {done}" + (f" of {planned}" if planned else "")


def progress_section(groups: Sequence[Group]) -> Html:
    """Any number over rounds, bytes or seconds."""
    axes = (("round", "rounds"), ("sent", "bytes sent"), ("seconds", "seconds"))
    choices = [
        tag("label", tag("input", type="radio", name="axis", value=value, checked=value == "round"), words)
        for value, words in axes
    ]
    controls = tag(
        "div",
        tag("label", "show ", tag("select", id="metric")),
        tag("fieldset", tag("legend", "over"), *choices, class_="axis"),
        tag("label", tag("input", type="checkbox", id="log"), "logarithmic"),
        class_="controls",
    )
    return section("progress", "Over the rounds", controls, chart("progress"), hint=_band(groups))


def _band(groups: Sequence[Group]) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    return "Lines are means over seeds, bands one standard deviation." if several else ""


def federation_section(story: Story) -> Html:
    """Who has what."""
    parts: list[object] = []
    for number_, held in enumerate(story.held):
        clients = len(held.sizes)
        shown = f", the first {CLIENTS} shown" if clients > CLIENTS else ""
        least, most = int(held.sizes.min()), int(held.sizes.max())
        sizes = f"{clients} clients{shown} with {_range(least, most)}"
        parts += [tag("p", tag("b", held.title), f": {sizes}; {held.skew}."), chart("federation", number_)]
    return section("federation", "The federation", *parts)


def _range(least: int, most: int) -> str:
    return f"{most:,} samples each" if least == most else f"{least:,} to {most:,} samples"


def drift_section(groups: Sequence[Group]) -> Html | None:
    """Drift by layer over rounds."""
    measured = [number_ for number_, group in enumerate(groups) if layers_of(group)]
    if not measured:
        return None
    hint = (
        "How far clients' updates point apart in each layer: 1/S (S clients in a round) where all are equal, 1 where "
        "they are orthogonal, more where they cancel each other. Brighter is more drift."
    )
    maps = tag("div", *(chart("drift", number_) for number_ in measured), class_="grid")
    return section("drift", "Drift by layer", tag("div", class_="scale", id="drift-scale"), maps, hint=hint)


def clients_section(story: Story) -> Html | None:
    """Who is served well, and who is not."""
    pairs = zip(story.groups, story.served, strict=True)
    found = [(group, served) for group, served in pairs if served is not None]
    if not found:
        return None
    names = story.held[0].names if story.held else []
    rows = []
    for group, served in found:
        mean, low, high, worst = served.over_rounds[max(served.over_rounds)]
        who = [f"{_name(client, names)}: {number(value)}" for client, value in served.worst]
        first = f" (seed {group.runs[0].seed})" if len(group.runs) > 1 else ""
        rows.append(
            [
                tag("th", swatch(group.look), group.label, scope="row"),
                number(mean),
                f"{number(low)} to {number(high)}",
                tag("b", number(worst)),
                tag("td", "; ".join(who) + first, class_="wide"),
            ]
        )
    metric = found[0][1].metric
    head = ("algorithm", f"mean {metric} over clients", "10 % to 90 % of clients", "worst client", "served worst")
    hint = (
        f"The {metric} of each client by itself. Line: mean over clients; dots: the worst client; band, "
        "where three lines or fewer are shown: 10 % to 90 % of the clients."
    )
    parts = [chart("clients"), table(head, rows, class_="numbers")]
    if any(served.last for _, served in found):
        parts.insert(1, chart("each-client"))
    return section("clients", "Single clients", *parts, hint=hint)


def _name(client: int, names: Sequence[str]) -> str:
    named = names[client] if client < len(names) else str(client)
    return named if named != str(client) else f"client {client}"


def lost_section(groups: Sequence[Group]) -> Html:
    """Clients that were lost, and why."""
    rows = [
        [tag("th", swatch(group.look), group.label, scope="row"), str(times), tag("td", why, class_="wide"), who]
        for group in groups
        for why, times, who in reasons(group)
    ]
    drawn = sum(turns(group) for group in groups)
    if not rows:
        return section(
            "lost", "Lost clients", tag("p", f"None: every one of {drawn:,} turns of a client was accepted.")
        )
    head = ("algorithm", "times", "reason", "clients")
    lost = sum(int(str(row[1])) for row in rows)
    text = f"{lost:,} of {drawn:,} turns of a client were lost."
    return section("lost", "Lost clients", tag("p", text), chart("lost"), table(head, rows, class_="numbers"))


def configuration_section(groups: Sequence[Group]) -> Html:
    """What differs between the runs, then everything."""
    flats = [dotted(group.runs[0].settings) for group in groups]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    apart = [key for key in keys if len({str(flat.get(key)) for flat in flats}) > 1]
    parts: list[object] = []
    if apart:
        head = ["key", *(joined([swatch(group.look), group.label]) for group in groups)]
        rows = [_differing(key, flats) for key in apart]
        parts += [tag("p", "What differs between the runs:"), table(head, rows, class_="settings")]
    shared = [(key, flats[0][key]) for key in keys if key not in apart]
    rows = [[tag("th", tag("code", key), scope="row"), tag("code", _value(value))] for key, value in shared]
    seeds = sorted({run.seed for group in groups for run in group.runs if run.seed is not None})
    summary = tag("summary", f"{'What all runs have in common' if apart else 'All settings'} ({len(shared)} keys)")
    parts.append(tag("details", summary, table(("key", "value"), rows, class_="settings")))
    hint = f"Seeds: {', '.join(map(str, seeds))}; shown is each line's first run." if len(seeds) > 1 else ""
    return section("configuration", "Configuration", *parts, hint=hint)


def _differing(key: str, flats: Sequence[dict[str, Any]]) -> list[object]:
    shown = [_value(flat[key]) if key in flat else None for flat in flats]
    usual = max(set(shown), key=shown.count)
    common = shown.count(usual) > 1
    cells = [
        tag("td", "–" if text is None else tag("code", text), class_="apart" if text != usual or not common else None)
        for text in shown
    ]
    return [tag("th", tag("code", key), scope="row"), *cells]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def reproduce_section(story: Story) -> Html:
    """The commands that give this again, and what it was made with."""
    commands = [f"undrift run {run.path / 'config.toml'}" for group in story.groups for run in group.runs]
    commands += [str(found["command"]) for found in story.evidence if found.get("command")]
    commands.append(f"undrift report {' '.join(map(str, story.folders))}")
    versions = dict.fromkeys(text for text in _versions(story))
    parts: list[object] = [tag("pre", "\n".join(commands))]
    parts += [tag("p", "Made with ", text, ".") for text in versions]
    hint = "Every run's folder holds its complete configuration; on the same kind of processor it gives the same bits."
    return section("reproduce", "Do it again", *parts, hint=hint)


def _versions(story: Story) -> Iterator[str]:
    for group in story.groups:
        for run in group.runs:
            if run.summary and run.summary.get("versions"):
                yield ", ".join(f"{name} {version}" for name, version in run.summary["versions"].items())
    for found in story.evidence:
        if found.get("versions"):
            yield ", ".join(f"{name} {version}" for name, version in found["versions"].items())


def remarks_section(remarks: Sequence[str]) -> Html | None:
    """What could not be shown."""
    if not remarks:
        return None
    return section("remarks", "Not shown", tag("ul", *(tag("li", escaped(remark)) for remark in remarks)))
