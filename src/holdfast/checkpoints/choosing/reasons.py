"""Why one checkpoint and not another, in words."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from holdfast.checkpoints.choosing.candidates import Placed
from holdfast.checkpoints.choosing.setback import Setback, short
from holdfast.checkpoints.history import Change, History

WEIGHTS_ONLY = "it holds weights only: optimizer, schedule and counters begin anew, so warm up and set the {unit} by hand"
_OVERFITTING = "the training loss went on falling meanwhile: it looks like overfitting, which a lower learning rate does not cure"
_NOTHING_KNOWN = "no log lies beside it, so whether the run was well before it ended is not known"
_STOPPERS = {
    "gpu-out-of-memory": "it ran out of GPU memory",
    "host-out-of-memory": "it ran out of host memory",
    "disk-full": "the disk was full",
    "hang": "it hung",
    "loader-stall": "the loader gave no more batches",
    "collective-stall": "ranks waited for each other",
}


def clean_words(taken: Placed, history: History, *, is_best: bool) -> str:
    """What was verified, and how good it is."""
    verdict, metric = taken.candidate.verdict, history.metric()
    words = f"clean: {verdict.tensors:,} tensors, all finite{', checksums match' if verdict.checked else ''}"
    if metric is None or taken.value is None:
        return words
    return f"{words}; {metric.name} {short(taken.value)}{' (the best of the clean ones)' if is_best else ''}"


def end_words(taken: Placed, passed: Sequence[Setback], history: History) -> list[str]:
    """How the run came to an end, what it had overcome before, how much is lost, and what may end it again."""
    known = history.metrics or history.losses or history.findings or history.judged
    well = "the training was well when it ended" if passed else "nothing was found wrong with the training"
    words = [well if known else _NOTHING_KNOWN, *(one.words for one in passed)]
    if history.end:
        words[0] += f"; it {history.end}"
    if taken.position is not None and history.last is not None and history.last > taken.position:
        lost = history.last - taken.position
        words.append(f"{lost:,} {history.unit}{'s' if lost != 1 else ''} after it {'are' if lost != 1 else 'is'} lost")
    stopped = next((noted for noted in reversed(history.findings) if noted.code in _STOPPERS), None)
    if stopped is not None:
        words.append(f"{_STOPPERS[stopped.code]} at {history.unit} {stopped.step:,}: that may come again")
    return words


def change_words(change: Change, history: History) -> list[str]:
    """What was changed shortly before the trouble."""
    why = f"; {change.why}" if change.why else ""
    return [
        f"at {history.unit} {change.step:,} this was changed: {change.what}{why}",
        "without that change the learning rate may stay as it was",
    ]


def overfitting_words(troubles: Sequence[Setback], history: History) -> list[str]:
    """A metric that slowly got worse while the training loss went on falling."""
    declined = next((one for one in troubles if one.code == "metric-decline"), None)
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
    """Why there is nothing to go on from."""
    if within:
        since = min((one.begin for one in troubles), default=0)
        return f"every clean one is from after {history.unit} {since:,}, where the trouble began"
    states = Counter(one.candidate.verdict.state for one in not_clean)
    return f"no clean one is there: {', '.join(f'{count} {state}' for state, count in states.items())}"


def unclean_words(one: Placed) -> str:
    """What is wrong with a checkpoint, in a line."""
    verdict = one.candidate.verdict
    if verdict.bad:
        first, more = verdict.bad[0], len(verdict.bad) - 1
        return f"NaN or Inf in {first.name}" + (f" and {more:,} more" if more else "")
    if verdict.state == "clean":
        return "it holds no weights of a model"
    return verdict.troubles[0].words if verdict.troubles else verdict.state
