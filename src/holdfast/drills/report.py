"""The results of a drill suite as text: a line as each run ends, a table of at most 100 columns, and the totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.drills.score import NO_HARM, RESTARTED, ControlScore, Score
from holdfast.drills.suite import Result, SkippedFault, SuiteResult

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_GOOD, _BAD, _NONE = "✓", "✗", "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The suite in a few numbers; each count has the number of cases in which it was possible."""

    controls: int
    false_alarms: int
    injected: int
    to_see: int
    seen: int
    to_explain: int
    cause_right: int
    to_survive: int
    survived: int
    lost_steps: int
    lost_seconds: float
    good: bool

    def as_row(self) -> dict[str, Any]:
        """As `--json` gives it."""
        return asdict(self)

    def in_words(self) -> list[str]:
        """Two or three lines."""
        lines = [f"seen {self.seen} of {self.to_see}, first cause right {self.cause_right} of {self.to_explain}"]
        if self.to_survive:
            lines[0] += f", survived {self.survived} of {self.to_survive}"
        lines.append(f"lost {self.lost_steps:,} steps and {seconds_in_words(self.lost_seconds)} in total")
        alarms = f"{self.false_alarms} with a false alarm" if self.false_alarms else "no false alarm"
        return [*lines, f"{self.controls} run{'s' if self.controls != 1 else ''} without a fault: {alarms}"]


def totals(result: SuiteResult) -> Totals:
    """Count."""
    there = [score for score in result.scores if score.injected]
    seen = [score for score in there if score.to_see and score.seen is not None]
    to_survive = [score for score in there if score.to_survive]
    alarmed = sum(bool(control.false_alarms) for control in result.controls)
    return Totals(
        controls=len(result.controls),
        false_alarms=alarmed,
        injected=len(there),
        to_see=sum(score.to_see for score in there),
        seen=len(seen),
        to_explain=sum(score.to_explain for score in seen),
        cause_right=sum(score.cause_right for score in seen if score.to_explain),
        to_survive=len(to_survive),
        survived=sum(bool(score.survived) for score in to_survive),
        lost_steps=sum(score.lost_steps or 0 for score in to_survive if score.first_of_run),
        lost_seconds=round(sum(score.lost_seconds or 0.0 for score in to_survive if score.first_of_run), 1),
        good=all(score.good for score in result.scores) and not alarmed,
    )


def line(result: Result) -> str:
    """One line as a run ends."""
    if isinstance(result, ControlScore):
        return _control_line(result)
    if isinstance(result, SkippedFault):
        return f"{result.fault}: skipped, {result.why}"
    return _score_line(result)


def _control_line(control: ControlScore) -> str:
    metric = f", {control.metric_name} {_number(control.metric)}" if control.metric is not None else ""
    who = f"no fault, {control.policy or 'no Holdfast'}, seed {control.seed}"
    made = f"{who}: {control.steps:,} steps in {seconds_in_words(control.seconds)}{metric}"
    if not control.false_alarms:
        return f"{made}; no findings"
    return f"{made}; FALSE ALARM: {', '.join(control.false_alarms)}"


def _score_line(score: Score) -> str:
    if not score.injected:
        return f"{score.fault}: could not be injected: {score.why_not}"
    parts = [_seen_words(score)]
    if score.actions:
        parts.append(", ".join(score.actions))
    if score.policy == "heal" or score.survived:
        parts.append(_ending(score))
    return f"{score.fault} at step {score.at:,}, {score.policy or 'no Holdfast'}: {'; '.join(parts)}"


def _ending(score: Score) -> str:
    """Survived, and how much of the work was lost on the way; or why not."""
    if score.restarted:
        return f"not survived, {score.why_not_survived}"
    if not score.survived:
        return f"not survived ({score.why_not_survived})"
    return f"survived, {score.lost_steps:,} steps lost" if score.lost_steps and score.lost_steps > 1 else "survived"


def _seen_words(score: Score) -> str:
    if score.seen is None:
        if score.unseen:
            return _unseen(score)
        if score.to_see:
            return "NOT SEEN" + (f" (but {', '.join(score.unexpected)})" if score.unexpected else "")
        return f"FALSE ALARM: {', '.join(score.unexpected)}" if score.alarmed else "no findings, as expected"
    cause = f", cause {score.cause}" if score.cause else ", no cause named" if score.to_explain else ""
    return f"{score.seen} {when(score)}{cause}{' (WRONG)' if score.to_explain and not score.cause_right else ''}"


def _unseen(score: Score) -> str:
    return "no harm done" if score.unseen == NO_HARM else "cannot be seen"


def in_sentences(score: Score) -> str:
    """A score that is not good, for a test that fails."""
    lines = [f"{_score_line(score)} (seed {score.seed})"]
    if score.injected and score.control_metric is not None:
        lines.append(f"{score.metric_name} {_number(score.metric)} with the fault, {_number(score.control_metric)} without")
    return "\n".join([*lines, *([f"the run: holdfast diagnose {score.run}"] if score.run else [])])


def when(score: Score) -> str:
    """After how many steps, or how long, a fault was seen."""
    if score.after_seconds is None:
        return "in the check-up"
    steps = score.after_steps or 0
    if steps == 0:
        return "at once" if score.after_seconds < 5 else f"after {seconds_in_words(score.after_seconds)}"
    return f"after {steps:,} step{'s' if steps > 1 else ''}"


def table(scores: Sequence[Score]) -> Table:
    """Two lines per fault; failures are highlighted."""
    from rich.table import Table

    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name, width in (("fault", 22), ("at", 6), ("seen, and first cause", 34), ("done", 13), ("survived", 9)):
        shown.add_column(name, max_width=width, overflow="fold", justify="right" if name == "at" else "left")
    for name in ("metric", "lost"):
        shown.add_column(name, no_wrap=True, justify="right")
    for score in scores:
        shown.add_row(*_cells(score, scores))
    return shown


def _cells(score: Score, scores: Sequence[Score]) -> list[Text]:
    from rich.text import Text

    name = Text(score.fault, "bold" if score.good else "bold red").append(_which(score, scores), "dim")
    if not score.injected:
        return [name, Text(_NONE), Text(f"not injected: {score.why_not}", "yellow")]
    return [
        name,
        Text(f"{score.at:,}"),
        _seen(score).append_text(_cause(score)),
        Text("\n".join(score.actions) or _NONE),
        _survived(score),
        Text(f"{_number(score.metric)}\n{_number(score.control_metric)}"),
        Text(f"{score.lost_steps:,}\n{seconds_in_words(score.lost_seconds or 0.0)}"),
    ]


def _which(score: Score, scores: Sequence[Score]) -> str:
    """What tells this row from others of the same fault."""
    parts = [
        str(getattr(score, name))
        for name in ("training", "policy", "seed")
        if len({getattr(other, name) for other in scores}) > 1
    ]
    return f"\n{' '.join(parts)}" if parts else ""


def _seen(score: Score) -> Text:
    from rich.text import Text

    if score.seen is not None:
        return Text(score.seen).append(f" {when(score)}", "dim")
    if score.missed or score.alarmed:
        return Text("NOT SEEN" if score.missed else "FALSE ALARM", "bold red").append("".join(f"\n{x}" for x in score.unexpected))
    return Text(_unseen(score) if score.unseen else "none, as expected" if score.policy else _NONE, "dim")


def _cause(score: Score) -> Text:
    from rich.text import Text

    if not score.to_explain:
        return Text("")
    mark = (_GOOD, "green") if score.cause_right else (_BAD, "bold red")
    return Text.assemble("\n", mark, f" {score.cause or 'no cause named'}")


def _survived(score: Score) -> Text:
    from rich.text import Text

    if score.survived:
        return Text("yes", "green")
    return Text("no", "bold red" if score.to_survive else "dim").append(f"\n{_in_a_word(score.why_not_survived)}", "dim")


def _in_a_word(why: str) -> str:
    """Why it was not survived, for a narrow column."""
    if why.startswith("exit"):
        return why
    if why.startswith(RESTARTED):
        return RESTARTED
    return (
        "early" if why.endswith("steps") else why.removeprefix("it ").removeprefix("took ") if why.startswith("it ") else "worse"
    )


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.4g}"


def seconds_in_words(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
