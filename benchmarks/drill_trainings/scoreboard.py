"""The rows of a course become docs/scoreboard.md: bars, faults, trainings, healthy runs, and every miss with its reason. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")  # of the machine that it was run on
STRANGERS, END_OF_STRANGERS = "<!-- strangers -->", "<!-- end of strangers -->"  # `make strangers` writes between them
AT_A_TIME = re.compile(r" \(\d+ runs at a time\)")
SEEN, CAUSE_RIGHT, CONTROLS, SURVIVED = 0.98, 0.90, 100, 0.95


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that was promised, and what was measured; without a word on what was promised it is only told."""

    what: str
    measured: str
    ok: bool


class Course:
    """The newest row of every run, sorted by what it was."""

    def __init__(self, rows: Iterable[Row]) -> None:
        newest = {key_of(row): row for row in rows if row["kind"] != "machine"}
        of_kind: dict[str, list[Row]] = {}
        for row in newest.values():
            of_kind.setdefault(row["kind"], []).append(row)
        self.controls = of_kind.get("control", [])
        self.skipped = of_kind.get("skipped", [])
        self.faults = [row for row in of_kind.get("fault", []) if row["injected"]]
        self.not_injected = [row for row in of_kind.get("fault", []) if not row["injected"]]
        self.failed = [row for row in of_kind.get("failed", []) if not _made_up_for(row, newest)]

    @property
    def to_see(self) -> list[Row]:
        """Faults that `observe` can see, injected under it."""
        return [row for row in self.faults if row["policy"] == "observe" and row["to_see"]]

    @property
    def to_explain(self) -> list[Row]:
        """Those of them that have a cause to name."""
        return [row for row in self.to_see if row["to_explain"] or row["seen"] is None]

    @property
    def to_survive(self) -> list[Row]:
        """Faults that `heal` can survive, injected under it."""
        return [row for row in self.faults if row["to_survive"]]

    @property
    def alarms(self) -> list[Row]:
        """Healthy runs in which something above a remark was raised."""
        return [row for row in self.controls if row["false_alarms"]]

    def bars(self) -> list[Bar]:
        """What the course is held to."""
        healthy = f"{len(self.alarms)} of {len(self.controls)} healthy runs"
        return [
            _bar("seen under `observe`", self.to_see, "seen", SEEN),
            _bar("first cause right", self.to_explain, "cause_right", CAUSE_RIGHT),
            Bar(
                f"healthy runs with a finding above `info`: none of at least {CONTROLS}",
                healthy,
                not self.alarms and len(self.controls) >= CONTROLS,
            ),
            _bar("survived under `heal`, within 2 % of the control", self.to_survive, "survived", SURVIVED),
            Bar("runs that could not be made: none", str(len(self.failed)), not self.failed),
        ]


def _bar(what: str, rows: list[Row], name: str, share: float) -> Bar:
    count = _count(rows, name)
    measured = f"{count} of {len(rows)} ({100 * count / len(rows):.1f} %)" if rows else "no runs"
    return Bar(f"{what}: at least {100 * share:.0f} %", measured, bool(rows) and count >= share * len(rows))


def key_of(row: Row) -> tuple[Any, ...]:
    """What a newer row replaces."""
    what = {"fault": "fault", "skipped": "fault", "failed": "codes"}.get(row["kind"], "seed")
    return (row["kind"], row["training"], row.get("policy"), row.get("seed"), str(row.get(what)))


def _made_up_for(row: Row, newest: dict[tuple[Any, ...], Row]) -> bool:
    """Whether a later try has brought what this one could not."""
    same = {"training": row["training"], "policy": row["policy"], "seed": row["seed"]}
    wanted = [{"kind": "fault", "fault": code, **same} for code in row["codes"]] or [{"kind": "control", **same}]
    skipped = [{"kind": "skipped", "fault": code, "training": row["training"]} for code in row["codes"]] or wanted
    return all(key_of(one) in newest or key_of(other) in newest for one, other in zip(wanted, skipped, strict=True))


def _count(rows: list[Row], name: str) -> int:
    return sum(bool(row[name]) for row in rows)


# The page


def page(rows: list[Row], missing_runs: int = 0) -> str:
    """The whole page."""
    course = Course(rows)
    machines = sorted({AT_A_TIME.sub("", row["machine"]) for row in rows if row["kind"] == "machine"})
    dates = sorted({row["date"] for row in rows if row["kind"] == "machine"})
    parts = [
        "# Scoreboard\n",
        "What Holdfast detects, explains and survives when faults are injected into small real trainings; "
        "[other tools](#the-same-faults-under-other-tools) under\nthe same faults; [repairs](#repairs-run-by-run), run by run; "
        "and [what Holdfast costs](#what-holdfast-costs).",
        f"Written by `make drills` on {' and '.join(dates)}. Measured on: {'; '.join(machines)}.",
        "The trainings, and how to read this: [below](#how-it-is-measured).\n",
        table(("bar", "measured", ""), ((bar.what, bar.measured, "ok" if bar.ok else "MISSED") for bar in course.bars())),
        f"Time lost by survivors: {_lost_time(course.to_survive)}.\n",
        f"{missing_runs} runs of the course were left out for lack of time.\n" if missing_runs else "",
        "## Faults\n",
        table(
            ("fault", "seen", "after steps", "after seconds", "first cause right", "survived", "metric lost", "seconds lost"),
            _of_faults(course),
        ),
        "Medians over all trainings and seeds; in brackets the worst. `end`: seen in the check-up after the end only.\n",
        "## Trainings\n",
        table(
            ("training", "faults injected", "seen", "first cause right", "survived", "metric of the control"),
            _of_trainings(course),
        ),
        "## Healthy runs\n",
        *_healthy(course),
        "## Misses\n",
        *_misses(course),
        "## What could not be injected\n",
        *_skipped(course),
        _METHOD,
    ]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


_METHOD = """## How it is measured

Each run is a process of its own, started as a user starts it: `holdfast run --policy observe` (or `heal`) with a script of
`benchmarks/drill_trainings`, none of which knows of Holdfast or of drills: a fully connected network, a small CNN with a layer
in half precision, a character transformer, a recurrent network, a vision transformer under the Hugging Face Trainer, a Lightning
module, and two ranks of DDP. `+workers` is the same with two loader workers, `+gpu` on a GPU. A step takes at least 10 ms. A
fault comes at a step that the seed draws between 30 % and 60 % of the run, the mistakes of a script (no shuffling, wrong labels)
from its first step.

- **seen**: one of the findings that fit the fault was raised under `observe`, while it ran or in the check-up after its end.
- **first cause right**: the first cause that is named for it is one that fits. What was not seen counts as wrong.
- **survived**: under `heal`, exit code 0, as many steps as the same seed without a fault, and the metric within 2 % (of a loss;
  two points of an accuracy).
- **metric lost**: how much worse than the control of the same seed, in points of accuracy or percent of the loss.
- **healthy runs**: the same trainings without a fault, more seeds, and `benchmarks/healthy_trainings`.

The runs take seconds and stand for runs of days: restarts wait a fifth as long, snapshots go to disk every 0.3 s, and a hang is
told after 4 s without progress. A run that was made again, after a repair of Holdfast's, counts as it came out last.
`make drills ARGS="--only-fault nan-batch --seeds 1"` runs a part.
"""


def _of_faults(course: Course) -> Iterator[Sequence[str]]:
    for code in sorted({row["fault"] for row in course.faults}):
        watched = [row for row in course.to_see if row["fault"] == code]
        healed = [row for row in course.to_survive if row["fault"] == code]
        explained = [row for row in course.to_explain if row["fault"] == code]
        yield (
            f"`{code}`",
            _of(_count(watched, "seen"), watched),
            _after(watched, "after_steps"),
            _after(watched, "after_seconds"),
            _of(_count(explained, "cause_right"), explained),
            _of(_count(healed, "survived"), healed),
            _metric_lost(healed),
            _median([row["lost_seconds"] for row in healed if row["survived"]]),
        )


def _of_trainings(course: Course) -> Iterator[Sequence[str]]:
    for name in dict.fromkeys(row["training"] for row in course.faults):
        watched = [row for row in course.to_see if row["training"] == name]
        explained = [row for row in course.to_explain if row["training"] == name]
        healed = [row for row in course.to_survive if row["training"] == name]
        controls = [row for row in course.controls if row["training"] == name and row["metric"] is not None]
        yield (
            name,
            str(sum(row["training"] == name for row in course.faults)),
            _of(_count(watched, "seen"), watched),
            _of(_count(explained, "cause_right"), explained),
            _of(_count(healed, "survived"), healed),
            _spread(controls),
        )


def _healthy(course: Course) -> list[str]:
    names = {row["training"].split("+")[0].rsplit(" ", 1)[0] for row in course.controls}
    acted = [row for row in course.controls if row["actions"]]
    told = f"{len(course.alarms)} raised something above `info`, {len(acted)} were acted on"
    lines = [f"{len(course.controls)} runs of {len(names)} trainings; {told}.\n"]
    bad = [row for row in course.controls if row["false_alarms"] or row["actions"]]
    if bad:
        said = (
            (row["training"], row["policy"], str(row["seed"]), _words(row["false_alarms"]), _words(row["actions"])) for row in bad
        )
        lines.append(table(("training", "policy", "seed", "raised", "actions"), said))
    return lines


def _misses(course: Course) -> list[str]:
    wrong = [row for row in course.to_explain if row["seen"] and not row["cause_right"]]
    rows = [
        *((row, "not seen", _instead(row)) for row in course.to_see if row["seen"] is None),
        *((row, "another cause", f"{row['seen']}: {row['cause'] or 'none'}") for row in wrong),
        *((row, "not survived", _lost(row, course)) for row in course.to_survive if not row["survived"]),
        *((row, "harmless, but something was raised", _words(row["unexpected"])) for row in course.faults if _alarmed(row)),
    ]
    failed = (
        (row["training"], row["policy"], str(row["seed"]), _words(row["codes"]), "no run", _PATH.sub("…/", row["why"]))
        for row in course.failed
    )
    told = ((row["training"], row["policy"], str(row["seed"]), f"`{row['fault']}`", what, why) for row, what, why in rows)
    lines = [*told, *failed]
    if not lines:
        return ["None.\n"]
    return [table(("training", "policy", "seed", "fault", "miss", "reason"), sorted(lines, key=lambda line: (line[3], *line)))]


def _lost(row: Row, course: Course) -> str:
    """What became of it, what was done, and how much of the run that cost."""
    steps = max((one["steps"] for one in course.controls if one["training"] == row["training"] and one.get("steps")), default=0)
    undone = f"; {row['lost_steps']} of {steps} steps were undone" if row.get("lost_steps") and steps else ""
    return f"{row['why_not_survived']} (done: {_words(row.get('actions', ()))}{undone})"


def _alarmed(row: Row) -> bool:
    return not row["to_see"] and not row["unseen"] and bool(row["unexpected"])


def _instead(row: Row) -> str:
    return f"raised instead: {_words(row['unexpected'])}" if row["unexpected"] else "nothing was raised"


def _skipped(course: Course) -> list[str]:
    """Faults and what no training could give them; faults that nobody can see."""
    reasons: dict[str, set[str]] = {}
    for row in course.skipped:
        reasons.setdefault(row["fault"], set()).add(row["why"])
    for row in course.not_injected:
        reasons.setdefault(row["fault"], set()).add(row["why_not"])
    happened = {row["fault"] for row in course.faults}
    never = [(f"`{code}`", "; ".join(sorted(why))) for code, why in sorted(reasons.items()) if code not in happened]
    unseen = sorted({(f"`{row['fault']}`", row["unseen"]) for row in course.faults if row["unseen"]})
    lines = [table(("never injected", "because"), never)] if never else ["Every fault was injected into at least one training.\n"]
    tried = [(f"{row['training']}, seed {row['seed']}", f"`{row['fault']}`", row["why_not"]) for row in course.not_injected]
    if tried:
        lines += ["Planned, but not injected:\n", table(("training", "fault", "because"), sorted(set(tried)))]
    if unseen:
        lines += ["Count for nobody, as `observe` cannot see them:\n", table(("fault", "because"), unseen)]
    return lines


# Cells


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def _of(count: int, rows: list[Row]) -> str:
    return f"{count} / {len(rows)}" if rows else "–"


def _words(codes: Iterable[str]) -> str:
    return ", ".join(codes) or "nothing"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def _median(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{_number(statistics.median(values))} ({_number(max(values))})"


def _after(rows: list[Row], name: str) -> str:
    seen = [row for row in rows if row["seen"]]
    known = [row[name] for row in seen if row[name] is not None]
    return _median(known) if known else ("end" if seen else "–")


def worse_by(row: Row) -> float | None:
    """How much worse than its control, in points of a share or percent of anything else; None where it is not known."""
    one, other = row["metric"], row["control_metric"]
    if not isinstance(one, int | float) or not isinstance(other, int | float) or one != one:
        return None
    if "acc" in row["metric_name"]:
        return 100 * (other - one)
    return 100 * (one - other) / abs(other) if other else None


def _metric_lost(rows: list[Row]) -> str:
    known = [worse for row in rows if row["survived"] and (worse := worse_by(row)) is not None]
    return f"{statistics.median(known):+.1f} ({max(known):+.1f})" if known else "–"


def _spread(controls: list[Row]) -> str:
    values = [float(row["metric"]) for row in controls]
    if not values:
        return "–"
    return f"{controls[0]['metric_name']} {statistics.mean(values):.3f} ± {statistics.pstdev(values):.3f}"


def _lost_time(rows: list[Row]) -> str:
    lost = [row["lost_seconds"] for row in rows if row["survived"]]
    steps = [row["lost_steps"] or 0 for row in rows if row["survived"]]
    if not lost:
        return "nothing to tell"
    return (
        f"{statistics.median(lost):.1f} s in the median, {max(lost):.0f} s at most, {sum(lost):,.0f} s in all {len(lost)}; "
        f"{statistics.median(steps):.0f} steps in the median"
    )
