"""`holdfast ps`: runs and ranks on this machine, with step, rate and health."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson, NamedTargets, RunNames, all_of

if TYPE_CHECKING:
    from holdfast.probe.state import RankState, RunState

_COLUMNS = ("run", "rank", "pid", "step", "loss", "evaluation", "rate", "last step", "data", "cost", "health")
_PIPE = 400  # columns of a page that goes nowhere near a terminal
# Where a terminal is narrow, columns are dropped in this order.
_DROPPED = (
    "cost",
    "data",
    "policy",
    "last step",
    "pid",
    "rank",
    "rate",
    "evaluation",
    "loss",
)
_NAME, _HEALTH, _GAP = 32, 24, 2  # columns that a long name and a long health may have before others are dropped for them
_MANY, _SHOWN = 32, 8  # ranks that get a line each; of more, those whose health differs from the first one's
_LEFT = ("host", "run", "evaluation", "policy", "health")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ps")(ps)


def ps(
    runs: RunNames = None,
    target: NamedTargets = None,
    everything: Annotated[bool, typer.Option("--all", help="Also finished runs in ./runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the live runs of this machine: step, loss, newest evaluation, speed and health of each rank.

    `data` is the part of a step spent waiting for data, `cost` the part spent in Holdfast. Health sums up the findings and
    actions of the last 1000 steps or ten minutes; `holdfast journal` lists them all. Narrow terminals show fewer columns. Exit
    code 1: a named run or machine did not answer. Of more than 32 ranks it shows the first and those that differ.
    """
    if named := all_of(runs, target):
        _ps_of(named, as_json=as_json)
        return
    states = find_states(everything=everything)
    if as_json:
        from holdfast.cli.show import for_json

        print(json.dumps([for_json(state.as_dict()) for state in states], ensure_ascii=False))
    elif states:
        show_states(states)
    else:
        print("no run is alive on this machine. Start one: holdfast run -- python train.py", file=sys.stderr)
        if not everything:
            print("finished runs: holdfast ps --all", file=sys.stderr)


def _ps_of(targets: list[str], *, as_json: bool) -> None:
    from holdfast.cli.cluster_words import end
    from holdfast.cli.show import for_json
    from holdfast.probe.cluster import find, states_of

    cluster = find(targets)
    states = states_of(cluster)
    if as_json:
        print(json.dumps([for_json({"host": host, **state.as_dict()}) for host, state in states], ensure_ascii=False))
    else:
        show_states([state for _, state in states], [host for host, _ in states] if cluster.there else None)
    end(cluster)


def find_states(*, everything: bool) -> list[RunState]:
    """The live runs, newest first; then, if asked, the others here."""
    from holdfast.probe.state import read_state
    from holdfast.probe.target import registered_runs, runs_here

    runs = {run.path.resolve(): run for run in (*registered_runs(), *runs_here())}
    states = [read_state(run) for run in runs.values()]
    return sorted((state for state in states if everything or state.alive), key=lambda s: (not s.alive, -(s.started or 0.0)))


def show_states(states: list[RunState], hosts: list[str] | None = None) -> None:
    """Print one line for each rank of each run, with its machine if there are several."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.output import output

    console = output(width=_PIPE)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    with_policy = any(state.policy != "observe" for state in states)
    rows: list[dict[str, Any]] = []
    for number, state in enumerate(states):
        policy = {"policy": _policy(state)} if with_policy else {}
        several = len({rank.host for rank in state.ranks}) > 1
        for rank, line in _lines(state):
            where = rank.host if several and rank is not None else hosts[number] if hosts is not None else None
            beside = {"host": Text(where)} if where else {}
            rows.append({**beside, **dict(zip(_COLUMNS[:-1], line, strict=False)), **policy, "health": line[-1]})
    if any("host" in row for row in rows):
        rows = [{"host": Text("–"), **row} for row in rows]
    if all(row["evaluation"].plain == "–" for row in rows):
        rows = [{name: cell for name, cell in row.items() if name != "evaluation"} for row in rows]
    names = _that_fit(rows, console.width)
    for name in names:
        widest = max(_NAME, console.width // 3) if name == "run" else None  # a long name must not push the health out
        justify: Any = "left" if name in _LEFT else "right"
        table.add_column(name, justify=justify, no_wrap=name != "health", max_width=widest)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    console.print(table)


def _that_fit(rows: list[dict[str, Any]], width: int) -> list[str]:
    """The columns that a terminal has room for; name, step and health always."""
    room = {"run": _NAME, "health": _HEALTH}
    names = list(rows[0]) if rows else list(_COLUMNS)
    for dropped in (*_DROPPED, ""):
        sizes = [min(room.get(name, width), max(len(name), *(row[name].cell_len for row in rows))) + _GAP for name in names]
        if sum(sizes) <= width:
            break
        names = [name for name in names if name != dropped]
    return names


def _lines(state: RunState) -> list[tuple[RankState | None, list[Any]]]:
    from rich.text import Text

    from holdfast.cli.screen import health_style

    if not state.ranks:
        word = Text(_with_reason(state.health, state.reason), style=health_style(state.health))
        return [(None, [Text(state.name), *[Text("–")] * (len(_COLUMNS) - 2), word])]
    first, *others = state.ranks
    many = len(state.ranks) > _MANY
    shown = [rank for rank in others if rank.health != first.health][:_SHOWN] if many else others
    lines: list[tuple[RankState | None, list[Any]]]
    lines = [(rank, _line(state, rank, first=rank is first)) for rank in (first, *shown)]
    return [*lines, (None, _summary([rank for rank in others if rank not in shown]))] if many else lines


def _line(state: RunState, rank: RankState, *, first: bool) -> list[Any]:
    from rich.text import Text

    from holdfast.cli.screen import health_style
    from holdfast.cli.show import duration, number, rate, share

    return [
        Text(state.name if first else "", style="bold" if state.alive else ""),
        Text(f"{rank.rank}" if rank.part == 0 else f"{rank.rank}.{rank.part}"),
        Text(str(rank.pid or "–")),
        Text(number(rank.step)),
        Text(number(rank.loss)),
        Text(_metric(rank)),
        Text(rate(rank.rate)),
        Text(f"{duration(rank.age)} ago" if rank.age is not None else "–"),
        Text(share(rank.data_share)),
        Text(share(rank.budget)),
        Text(rank.health, style=health_style(rank.health)),
    ]


def _summary(ranks: list[RankState]) -> list[Any]:
    """One line for the ranks that are not shown: between which steps they are, and how many are in which health."""
    from rich.text import Text

    from holdfast.cli.screen import health_style

    steps = [rank.step for rank in ranks if rank.step is not None]
    span = "–" if not steps else f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,}–{max(steps):,}"
    counts = Counter(rank.health for rank in ranks)
    health = ", ".join(word if len(counts) == 1 else f"{number:,} {word}" for word, number in counts.most_common(3))
    middle = [Text("–")] * (len(_COLUMNS) - 5)
    style = health_style(counts.most_common(1)[0][0])
    return [Text(""), Text(f"+{len(ranks):,}"), Text("–"), Text(span), *middle, Text(health, style=style)]


def _metric(rank: RankState) -> str:
    from holdfast.cli.show import number
    from holdfast.signals.metric_direction import metric_name

    if (metric := rank.evaluation) is None:
        return "–"
    return f"{metric_name(str(metric['split']), str(metric['name']))} {number(metric['value'])}"


def _policy(state: RunState) -> Any:
    from rich.text import Text

    from holdfast.cli.screen import policy_word

    return Text(policy_word(state.policy) + ("*" if state.rules else ""))  # the star: some rules have a policy of their own


def _with_reason(word: str, reason: str) -> str:
    return f"{word}: {reason}" if reason else word
