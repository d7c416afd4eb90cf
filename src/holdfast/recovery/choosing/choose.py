"""Which checkpoint to resume from, and how: decided from what was verified and from what is known of the run. Pure.

    newest         nothing is wrong with the training: it was ended from outside
    best           it went wrong, and nothing is known to have been changed
    before-change  it went wrong shortly after a setting was changed
    earlier        older than the best: for when that goes wrong again
    fresh          no checkpoint is clean, or all are from within the trouble

Whatever is recommended is clean and from before the trouble, and is resumed in a folder of its own.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.recovery.choosing.candidates import Candidate, Placed, best, complete, newest, place, without_copies
from holdfast.recovery.choosing.history import Better, Change, History
from holdfast.recovery.choosing.logs_beside import CHECKPOINT_FOLDERS
from holdfast.recovery.choosing.options import Choice, Kind, Option, Rejected, Settings, fresh, gentler, multiply, warm_up
from holdfast.recovery.choosing.setbacks import Setback, setbacks, short, suspect
from holdfast.units import count

WEIGHTS_ONLY = "it holds weights only: optimizer, schedule and counters start fresh: warm up, and set the {unit} by hand"
_OVERFITTING = "the training loss kept falling meanwhile: this looks like overfitting, which a lower learning rate does not fix"
_NO_LOG = "no log was found, so it is unknown whether the run was healthy before it ended"
_STOPPERS = {
    "gpu-out-of-memory": "it ran out of GPU memory",
    "host-out-of-memory": "it ran out of host memory",
    "disk-full": "the disk was full",
    "hang": "it hung",
    "loader-stall": "the loader delivered no more batches",
    "collective-stall": "ranks waited for each other",
}


def clean_words(taken: Placed, history: History, *, is_best: bool) -> str:
    """What was verified, and how good it is."""
    verdict, metric = taken.candidate.verdict, history.metric()
    sentence = f"clean: {count(verdict.tensors, 'tensor')}, all finite{', checksums match' if verdict.checked else ''}"
    if metric is None or taken.value is None:
        return sentence
    return f"{sentence}; {metric.name} {short(taken.value)}{' (the best of the clean checkpoints)' if is_best else ''}"


def end_words(taken: Placed, passed: Sequence[Setback], history: History) -> list[str]:
    """How the run ended, what it recovered from, how much is lost, and what may end it again."""
    has_log = history.metrics or history.losses or history.findings or history.judged
    healthy = "the training was healthy when it ended" if passed else "no findings"
    sentences = [healthy if has_log else _NO_LOG, *(setback.text for setback in passed)]
    if history.end:
        sentences[0] += f"; it {history.end}"
    if taken.position is not None and history.last is not None and history.last > taken.position:
        lost = history.last - taken.position
        sentences.append(f"{lost:,} later {history.unit}{'s are' if lost != 1 else ' is'} lost")
    stopped = next((noted for noted in reversed(history.findings) if noted.code in _STOPPERS), None)
    if stopped is not None:
        sentences.append(f"{_STOPPERS[stopped.code]} at {history.unit} {stopped.step:,}: that may happen again")
    return sentences


def change_words(change: Change, history: History) -> list[str]:
    """What was changed shortly before the trouble."""
    why = f"; {change.why}" if change.why else ""
    return [
        f"at {history.unit} {change.step:,} a setting was changed: {change.setting}{why}",
        "without that change the learning rate may stay unchanged",
    ]


def overfitting_words(troubles: Sequence[Setback], history: History) -> list[str]:
    """A metric that slowly got worse while the training loss kept falling."""
    declined = next((trouble for trouble in troubles if trouble.code == "metric-decline"), None)
    if declined is None or not _is_slow(declined, history):
        return []
    then = [value for at, value in history.losses if at <= declined.begin][-5:]
    now = [value for _, value in history.losses][-5:]
    falling = len(then) >= 2 and sum(now) / len(now) < sum(then) / len(then)
    return [_OVERFITTING] if falling else []


def _is_slow(declined: Setback, history: History) -> bool:
    """Whether a metric got worse bit by bit, and not at once."""
    series = history.metric()
    values = [value for at, value in series.points if at >= declined.begin] if series is not None else []
    moves = [abs(b - a) for a, b in itertools.pairwise(values)]
    return len(moves) >= 3 and max(moves) < 0.6 * abs(values[-1] - values[0])


def none_words(within: Sequence[Placed], not_clean: Sequence[Placed], troubles: Sequence[Setback], history: History) -> str:
    """Why there is nothing to resume from."""
    if within:
        since = min((trouble.begin for trouble in troubles), default=0)
        return f"all clean checkpoints are from after {history.unit} {since:,}, where the problem began"
    states = Counter(checkpoint.candidate.verdict.state for checkpoint in not_clean)
    return f"no checkpoint is clean: {', '.join(f'{count} {state}' for state, count in states.items())}"


def unclean_words(placed: Placed) -> str:
    """What is wrong with a checkpoint, in a line."""
    verdict = placed.candidate.verdict
    if verdict.bad:
        first, more = verdict.bad[0], len(verdict.bad) - 1
        return f"NaN or Inf in {first.name}" + (f" and {more:,} more" if more else "")
    if verdict.state == "clean":
        return "it holds no weights of a model"
    return verdict.troubles[0].text if verdict.troubles else verdict.state


@dataclass(frozen=True, slots=True)
class Field:
    """What there is to choose from; made with `of`."""

    history: History
    setbacks: list[Setback]
    change: Change | None  # the one that may have led to the trouble
    usable: list[Placed]  # clean, and from before the trouble
    within: list[Placed]  # clean, and from within it or from nobody knows when
    copies: list[tuple[Placed, Placed]]  # one that another one stands for
    left: list[tuple[Placed, Placed]]  # one of a course that was given up, and an earlier one that was written later
    not_clean: list[Placed]

    @classmethod
    def of(cls, placed: Sequence[Placed], history: History) -> Field:
        """Sort them."""
        dirty = [checkpoint for checkpoint in placed if not checkpoint.candidate.clean]
        clean, copies = without_copies([checkpoint for checkpoint in placed if checkpoint.candidate.clean])
        left = _left_behind(clean)
        clean = [checkpoint for checkpoint in clean if all(checkpoint is not other for other, _ in left)]
        setbacks_found = sorted([*setbacks(history), *_of_weights(clean, dirty, history)], key=lambda setback: setback.begin)
        lasting = [setback for setback in setbacks_found if setback.lasts]
        change = next((suspected for trouble in lasting if (suspected := suspect(history, trouble)) is not None), None)
        within = [
            checkpoint
            for checkpoint in clean
            if _trouble_of(checkpoint, setbacks_found) or (lasting and checkpoint.position is None)
        ]
        usable = [checkpoint for checkpoint in clean if all(checkpoint is not other for other in within)]
        return cls(history, setbacks_found, change, usable, within, copies, left, dirty)

    @property
    def trouble(self) -> list[Setback]:
        """What the run never came back from, the earliest first."""
        return [setback for setback in self.setbacks if setback.lasts]

    # The ways

    def options(self) -> list[Option]:
        """Every way that is open."""
        ways = [self._best(), self._before_the_change() if self.change is not None else self._earlier()]
        if not self.trouble:
            ways = [self._newest(), self._best()]
        return [*(way for way in ways if way is not None), self._fresh()]

    def _newest(self) -> Option | None:
        taken = newest(self.usable)
        return self._option("newest", taken, {}, end_words(taken, self.setbacks, self.history)) if taken is not None else None

    def _best(self) -> Option | None:
        """The best by its metric; of a run that was well only if it is not the newest."""
        last = newest(self.usable)
        taken = best(self.usable, self.history) or last
        if taken is None or (taken is last and not self.trouble):
            return None
        more = overfitting_words(self.trouble, self.history) if self.change is None else []
        return self._option("best", taken, gentler(self.history, self.trouble, taken.candidate, taken.position), more)

    def _before_the_change(self) -> Option | None:
        change = self.change
        taken = newest(
            [
                checkpoint
                for checkpoint in self.usable
                if change and checkpoint.position is not None and checkpoint.position <= change.step
            ]
        )
        if taken is None or change is None:
            return None
        settings = gentler(self.history, self.trouble, taken.candidate, taken.position)
        if change.factor is not None and change.factor < settings["lr"]["value"]:
            settings["lr"] = multiply(change.factor, settings["lr"].get("was"))
        return self._option("before-change", taken, settings, change_words(change, self.history))

    def _earlier(self) -> Option | None:
        """One that is older than the best, for when that goes wrong again."""
        first = best(self.usable, self.history) or newest(self.usable)
        taken = newest([checkpoint for checkpoint in self.usable if first is not None and checkpoint.age < first.age])
        if taken is None:
            return None
        return self._option("earlier", taken, gentler(self.history, self.trouble, taken.candidate, taken.position), [])

    def _fresh(self) -> Option:
        everyone = [checkpoint.candidate for checkpoint in (*self.usable, *self.within, *self.not_clean)]
        why = [] if self.usable else [none_words(self.within, self.not_clean, self.trouble, self.history)]
        because = (*why, *(setback.text for setback in self.trouble))
        settings = fresh(self.history, self.trouble, everyone)
        return Option(kind="fresh", candidate=None, position=None, settings=settings, because=because)

    def _option(self, kind: Kind, taken: Placed, settings: Settings, more: Sequence[str]) -> Option:
        """An option; weights alone start with a fresh optimizer, which needs a warm-up."""
        limits = [setback.begin for setback in self.trouble]
        if kind == "before-change" and self.change is not None:
            limits.append(self.change.step)
        is_best = len(self.usable) > 1 and best(self.usable, self.history) is taken
        because = [*(setback.text for setback in self.trouble), *more, clean_words(taken, self.history, is_best=is_best)]
        if not taken.whole:
            settings = {**settings, **warm_up(self.history)}
            because.append(WEIGHTS_ONLY.format(unit=self.history.unit))
        return Option(
            kind=kind,
            candidate=taken.candidate,
            position=taken.position,
            settings=settings,
            because=tuple(because),
            before=min(limits, default=None),
        )

    # What was not taken

    def rejected(self, taken: Option) -> list[Rejected]:
        """Everything but the one that was taken, the newest first."""
        unit = self.history.unit
        reasons = [(checkpoint, unclean_words(checkpoint)) for checkpoint in self.not_clean]
        reasons += [(checkpoint, f"the same {unit} as {other.candidate.path.name}") for checkpoint, other in self.copies]
        reasons += [
            (checkpoint, f"the run went back to {unit} {other.position or 0:,} after it") for checkpoint, other in self.left
        ]
        reasons += [(checkpoint, self._within_words(checkpoint)) for checkpoint in self.within]
        reasons += [
            (checkpoint, self._not_taken(checkpoint, taken))
            for checkpoint in self.usable
            if checkpoint.candidate is not taken.candidate
        ]
        ordered = sorted(reasons, key=lambda pair: pair[0].age, reverse=True)
        return [Rejected(checkpoint.candidate, checkpoint.position, reason) for checkpoint, reason in ordered]

    def _within_words(self, placed: Placed) -> str:
        trouble = _trouble_of(placed, self.setbacks)
        if trouble is None:
            return f"it does not say its {self.history.unit}: it may be from after the problem began"
        return f"saved after {self.history.unit} {trouble.begin:,}, after the problem began"

    def _not_taken(self, placed: Placed, taken: Option) -> str:
        if placed.position is None and taken.position is not None:
            return f"it does not say its {self.history.unit}" + ("" if placed.whole else ", and holds weights only")
        if taken.candidate is None or taken.position is None or placed.position is None or placed.position <= taken.position:
            return "older" if taken.candidate is not None else "not needed"
        if not placed.whole:
            return "newer, but weights only"
        if taken.kind == "before-change":
            return "saved after the change"
        return "newer, but not the best"


def _of_weights(clean: Sequence[Placed], dirty: Sequence[Placed], history: History) -> list[Setback]:
    """Weights that are not finite and have no clean ones after them: the training is dead since then."""
    bad = [
        checkpoint
        for checkpoint in dirty
        if checkpoint.candidate.verdict.state == "non-finite" and checkpoint.position is not None
    ]
    before = max((checkpoint.position for checkpoint in clean if checkpoint.position is not None), default=-1)
    dead = [checkpoint.position for checkpoint in bad if checkpoint.position is not None and checkpoint.position > before]
    if not dead:
        return []
    text = f"the weights saved at {history.unit} {min(dead):,} are not finite"
    begin = before if before >= 0 else min(dead) - 1
    return [Setback(code="non-finite-weights", begin=begin, seen=min(dead), text=text)]


def _trouble_of(placed: Placed, candidates: Sequence[Setback]) -> Setback | None:
    return next((trouble for trouble in candidates if placed.position is not None and trouble.holds(placed.position)), None)


def _left_behind(clean: Sequence[Placed]) -> list[tuple[Placed, Placed]]:
    """Checkpoints of a course that was given up, each with an earlier step that was written after it."""
    numbered = [checkpoint for checkpoint in clean if checkpoint.candidate.number is not None and checkpoint.position is not None]
    left = []
    for checkpoint in numbered:
        later = next((other for other in numbered if _gave_up(checkpoint, other)), None)
        if later is not None:
            left.append((checkpoint, later))
    return left


def _gave_up(placed: Placed, later: Placed) -> bool:
    a, b = placed.candidate, later.candidate
    is_later = a.path.parent == b.path.parent and (b.number or 0) > (a.number or 0)
    return is_later and (later.position or 0) < (placed.position or 0)


_RESUMED = re.compile(r"-resumed(?:-\d+)?$")


def choose(
    candidates: Sequence[Candidate],
    history: History | None = None,
    *,
    folder: Path | None = None,
    better: Better = lambda _name: None,
) -> Choice:
    """Weigh the ways to resume. `folder` is where the new run writes; `better` says which way a metric is better, by its name."""
    history = complete(history, candidates, better)
    placed = place(candidates, history)
    field = Field.of(placed, history)
    options = [replace(option, folder=folder) for option in field.options()]
    taken = _recommended(options)
    others = [replace(option, why_not=_why_not(option, taken, field)) for option in options if option is not taken]
    return Choice(
        recommended=taken.kind,
        options=(taken, *others),
        rejected=tuple(field.rejected(taken)),
        setbacks=tuple(field.setbacks),
        history=history,
        clean=sum(checkpoint.candidate.clean for checkpoint in placed),
    )


def new_folder(folder: Path) -> Path:
    """A folder beside the run's that does not exist yet: a recovery never writes where the run before it has written."""
    own = Path(os.path.abspath(folder)) if folder.name in ("", "..") else folder  # noqa: PTH100 - links stay as they are
    if own.name.lower() in CHECKPOINT_FOLDERS and own.parent.name:
        own = own.parent
    stem, number = _RESUMED.sub("", own.name), 1
    while True:
        path = own.with_name(f"{stem}-resumed" if number == 1 else f"{stem}-resumed-{number}")
        if not os.path.lexists(path):
            return path
        number += 1


def _recommended(options: Sequence[Option]) -> Option:
    order: tuple[Kind, ...] = ("newest", "before-change", "best", "earlier", "fresh")
    return min(options, key=lambda option: order.index(option.kind))


def _why_not(option: Option, taken: Option, field: Field) -> str:
    """Why an option is not the recommended one."""
    if option.kind == "fresh":
        return "a clean checkpoint from before the problem exists" if field.trouble else "a clean checkpoint exists"
    if option.candidate is taken.candidate:
        return "it is the same checkpoint"
    if not field.trouble:
        return "nothing is wrong with the newer one"
    if option.kind == "earlier":
        return "in case the best one fails again"
    change = field.change
    after = change is not None and option.position is not None and option.position > change.step
    return "it was saved after the change" if after else "it is older, and the other is from before the change too"
