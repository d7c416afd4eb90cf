"""Checkpoints that a run could resume from, in their order: how far each had come, how good it was, what it holds."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.contents import Contents, TensorInfo, Trouble, worst
from holdfast.checkpoints.parts import parts_of
from holdfast.checkpoints.summary import scalar_of, summarise
from holdfast.recovery.choosing.history import Better, History, Series, Unit

if TYPE_CHECKING:
    from holdfast.checkpoints.summary import Summary
    from holdfast.checkpoints.verify import Verdict

_STANDS_FOR_ANOTHER = re.compile(r"(?:^|[^a-z])(last|latest|best|final|newest)(?:$|[^a-z])", re.IGNORECASE)
_CALLED_BEST = re.compile(r"(?:^|[^a-z])best(?:$|[^a-z])", re.IGNORECASE)
_WORTH_GOING_BACK = 0.9  # how far one that holds everything must have come, of one that holds weights only, to be taken first


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One checkpoint, looked at and verified."""

    path: Path
    verdict: Verdict
    summary: Summary
    producer: str | None = None
    modified: float = 0.0  # when its newest file was written
    noted_step: int | None = None  # the step at which the journal saw it written
    rate: float | None = None  # the learning rate that it brings back
    number: int | None = None  # Holdfast numbers the checkpoints of a folder in the order in which they were written
    marked_best: bool = False  # whoever wrote it calls it the best

    @property
    def clean(self) -> bool:
        """Whether it is whole, finite and safe, and holds a model."""
        return self.verdict.state == "clean" and bool(self.summary.holds & {"weights", "ema"})

    @property
    def step(self) -> int | None:
        """The step it was saved at: as the journal saw it, else as it says itself."""
        return self.noted_step if self.noted_step is not None else self.summary.step

    @property
    def epoch(self) -> int | None:
        """The epoch it was saved in."""
        return self.summary.epoch

    @property
    def metrics(self) -> dict[str, float]:
        """What it tells of how good it is; the best value so far says nothing about this one."""
        own = self.summary.metric
        metrics = {**self.summary.metrics, **({own[0]: own[1]} if own is not None else {})}
        return {name: value for name, value in metrics.items() if not name.lower().startswith("best")}


@dataclass(frozen=True, slots=True)
class Placed:
    """A candidate and where it lies in its run; `value` is the metric at that place."""

    candidate: Candidate
    position: int | None
    value: float | None = None

    @property
    def age(self) -> tuple[int, float]:
        """What sorts them: the older one is smaller."""
        return (-1 if self.position is None else self.position), self.candidate.summary.saved_at or self.candidate.modified

    @property
    def whole(self) -> bool:
        """Whether it holds more than weights."""
        return not self.candidate.summary.weights_only


def complete(history: History | None, candidates: Sequence[Candidate], better: Better) -> History:
    """The history, with the metrics of the checkpoints themselves where it has none."""
    history = history or History(unit=_unit_of(candidates))
    monitored = Counter(
        candidate.summary.metric[0]
        for candidate in candidates
        if candidate.summary.metric and candidate.summary.metric[0] in candidate.metrics
    )
    places = [(candidate, at) for candidate in candidates if (at := position_of(candidate, history)) is not None]
    metrics = history.metrics
    if not any(series.points for series in metrics):
        names = dict.fromkeys(name for candidate in candidates for name in candidate.metrics)
        metrics = tuple(_series(name, places, better(name)) for name in names)
    favourite = history.monitored or (monitored.most_common(1)[0][0] if monitored else None)
    last = history.last if history.last is not None else max((at for _, at in places), default=None)
    return replace(history, metrics=metrics, monitored=favourite, last=last)


def _series(name: str, places: Sequence[tuple[Candidate, int]], way: str | None) -> Series:
    """A metric that the checkpoints tell."""
    points = {at: evaluation.metrics[name] for evaluation, at in places if name in evaluation.metrics}
    return Series(name, tuple(sorted(points.items())), None if way is None else way == "lower")


def place(candidates: Iterable[Candidate], history: History) -> list[Placed]:
    """All of them with their place and their metric, the oldest first."""
    series = history.metric()
    placed = []
    for candidate in candidates:
        position = position_of(candidate, history)
        value = candidate.metrics.get(series.name) if series is not None else None
        if value is None and series is not None and position is not None:
            value = series.at(position)
        placed.append(Placed(candidate, position, value))
    return sorted(placed, key=lambda checkpoint: checkpoint.age)


def position_of(candidate: Candidate, history: History) -> int | None:
    """How far the run had come when it was saved, in the history's unit."""
    if history.unit == "epoch":
        return candidate.epoch
    if candidate.step is not None:
        return candidate.step
    return dict(history.epochs).get(candidate.epoch) if candidate.epoch is not None else None


def without_copies(placed: Sequence[Placed]) -> tuple[list[Placed], list[tuple[Placed, Placed]]]:
    """One for each position, and the others with the one that stands for them.

    The one that holds everything comes before weights alone, a name of its own before `last` or `best`, the newer before the
    older.
    """
    chosen: dict[int, Placed] = {}
    for checkpoint in placed:
        if checkpoint.position is not None:
            chosen[checkpoint.position] = max(chosen.get(checkpoint.position, checkpoint), checkpoint, key=_worth)
    kept = [checkpoint for checkpoint in placed if checkpoint.position is None or chosen[checkpoint.position] is checkpoint]
    copies = [
        (checkpoint, chosen[checkpoint.position])
        for checkpoint in placed
        if checkpoint.position is not None and chosen[checkpoint.position] is not checkpoint
    ]
    return kept, copies


def newest(placed: Sequence[Placed]) -> Placed | None:
    """The newest; one that holds weights only gives way to one that holds everything and is nearly as new."""
    if not placed:
        return None
    last = max(placed, key=lambda checkpoint: checkpoint.age)
    full = max((checkpoint for checkpoint in placed if checkpoint.whole), key=lambda checkpoint: checkpoint.age, default=None)
    if last.whole or full is None or full.position is None or last.position is None:
        return full if full is not None and last.position is None and not last.whole else last
    return full if full.position >= _WORTH_GOING_BACK * last.position else last


def best(placed: Sequence[Placed], history: History) -> Placed | None:
    """The best by the metric; of equals the one that holds everything, then the newer. Without a metric the one marked so."""
    series = history.metric()
    judged = [checkpoint for checkpoint in placed if checkpoint.value is not None]
    if series is not None and series.lower_is_better is not None and judged:
        return max(judged, key=lambda checkpoint: (series.goodness(checkpoint.value or 0.0), checkpoint.whole, checkpoint.age))
    marked = [
        checkpoint
        for checkpoint in placed
        if checkpoint.candidate.marked_best or _CALLED_BEST.search(checkpoint.candidate.path.name)
    ]
    return max(marked, key=lambda checkpoint: checkpoint.age, default=None)


def _worth(placed: Placed) -> tuple[bool, bool, float]:
    name = placed.candidate.path.name
    return placed.whole, _STANDS_FOR_ANOTHER.search(name) is None, placed.age[1]


def _unit_of(candidates: Sequence[Candidate]) -> Unit:
    """What the checkpoints count: steps where most of those that can be read do."""
    readable = [candidate for candidate in candidates if candidate.clean] or candidates
    steps = sum(candidate.step is not None for candidate in readable)
    epochs = sum(candidate.epoch is not None for candidate in readable)
    return "epoch" if epochs > steps else "step"


_RANK = re.compile(r"rank-(\d+)$")


def gather(looked_at: Iterable[tuple[Contents, Verdict]], noted: Mapping[Path, int] | None = None) -> list[Candidate]:
    """Candidates from what was opened and verified. `noted` are steps at which some were seen being written, by resolved path.

    What several ranks wrote each for itself is one checkpoint.
    """
    candidates = [_candidate(contents, verdict, noted or {}) for contents, verdict in looked_at]
    best = _marked_best([candidate.path for candidate in candidates])
    return _joined([replace(candidate, marked_best=candidate.path.resolve() in best) for candidate in candidates])


def _candidate(contents: Contents, verdict: Verdict, noted: Mapping[Path, int]) -> Candidate:
    manifest = _manifest_of(contents)
    return Candidate(
        path=contents.path,
        verdict=verdict,
        summary=summarise(contents),
        producer=contents.producer,
        modified=contents.modified,
        noted_step=noted.get(contents.path.resolve()),
        rate=_rate_in(contents),
        number=number if isinstance(number := manifest.get("number"), int) else None,
    )


def _rate_in(contents: Contents) -> float | None:
    """The learning rate that the checkpoint brings back: that of the first group of its first optimizer."""
    for part in parts_of(contents.tree):
        if part.role != "optimizer":
            continue
        value = part.value[0] if isinstance(part.value, (list, tuple)) and part.value else part.value
        groups = (value.get("param_groups") or value.get("groups")) if isinstance(value, dict) else None
        group = groups[0] if isinstance(groups, list) and groups and isinstance(groups[0], dict) else {}
        own = group.get("settings")
        rate = (own if isinstance(own, dict) else group).get("lr")
        rate = scalar_of(contents, rate) if isinstance(rate, TensorInfo) and rate.count == 1 else rate
        if isinstance(rate, (int, float)) and 0 < rate < math.inf:
            return float(rate)
    return None


def _manifest_of(contents: Contents) -> dict[str, Any]:
    """What Holdfast's own store writes beside a checkpoint; empty for anybody else's."""
    manifest = contents.tree.get("manifest") if contents.producer == "holdfast" and isinstance(contents.tree, dict) else None
    return manifest if isinstance(manifest, dict) else {}


def _marked_best(paths: Sequence[Path]) -> set[Path]:
    """The ones that whoever wrote them calls the best: Holdfast in best.json, a Trainer in its trainer_state.json."""
    best = set()
    for folder in dict.fromkeys(path.parent for path in paths):
        name = _read(folder / "best.json").get("checkpoint")
        best |= {(folder / name).resolve()} if isinstance(name, str) else set()
    states = [(state, path) for path in paths if (state := _read(path / "trainer_state.json"))]
    for state, path in sorted(states, key=lambda state_file: _whole(state_file[0].get("global_step")))[-1:]:
        name = state.get("best_model_checkpoint")
        best |= {(path.parent / Path(name).name).resolve()} if isinstance(name, str) and name else set()
    return best


def _joined(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Ranks with sharded weights write each their part: `step-9` of rank 0, `rank-1/step-9` of the next. One is the whole."""
    others: dict[Path, dict[str, Candidate]] = {}
    for candidate in candidates:
        if _RANK.match(candidate.path.parent.name):
            others.setdefault(candidate.path.parent.parent / candidate.path.name, {})[candidate.path.parent.name] = candidate
    first = {candidate.path: candidate for candidate in candidates if not _RANK.match(candidate.path.parent.name)}
    ranks = {(whole.parent, rank) for whole, parts in others.items() for rank in parts}
    joined = []
    for path, candidate in first.items():
        wanted = sorted(rank for folder, rank in ranks if folder == path.parent)
        joined.append(_with_parts(candidate, wanted, others.get(path, {})))
    alone = [part for whole, parts in others.items() if whole not in first for part in parts.values()]
    return [*joined, *(_lacking(candidate, "rank 0") for candidate in alone)]


def _with_parts(candidate: Candidate, ranks: Sequence[str], parts: Mapping[str, Candidate]) -> Candidate:
    """Rank 0's part with the verdicts of the others."""
    for rank in ranks:
        part = parts.get(rank)
        if part is None:
            return _lacking(candidate, rank.replace("-", " "))
        if not part.clean:
            verdict = replace(
                candidate.verdict,
                state=worst((candidate.verdict.state, part.verdict.state)),
                troubles=[*candidate.verdict.troubles, *part.verdict.troubles],
                bad=[*candidate.verdict.bad, *part.verdict.bad],
            )
            candidate = replace(candidate, verdict=verdict)
    return candidate


def _lacking(candidate: Candidate, whose: str) -> Candidate:
    trouble = Trouble("torn", f"The part of {whose} is missing.", "use an older one")
    state = worst((candidate.verdict.state, trouble.state))
    return replace(candidate, verdict=replace(candidate.verdict, state=state, troubles=[*candidate.verdict.troubles, trouble]))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else -1
