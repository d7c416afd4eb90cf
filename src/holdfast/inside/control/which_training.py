"""Which training of its script this is, so that after a restart each one is brought to where it was itself.

A script may begin several: the folds of a cross-validation one after the other, the members of an ensemble in turns, a
pre-training and a fine-tuning. Each has checkpoints of its own. After a restart it is known by its place among the others and by
its first step: the same loss with the same settings of the optimizer. The place alone would not do, for a script may leave out
what it had finished. Where there was only one, it is that one, with or without a seed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.signals.run_folder import Recording, RunFolder

_FOLDER = "checkpoints"
_SAME = 1e-4  # of the first loss: on a GPU sums are not always taken in the same order
_PLAIN = (int, float, str, tuple)


@dataclass(frozen=True, slots=True)
class WhichTraining:
    """A training's folder of checkpoints, and what `process.json` tells the next attempt of it."""

    folder: str  # in the run's
    place: int = 0  # how many trainings its attempt began before
    is_known: bool = False  # an earlier attempt has trained it
    others: tuple[str, ...] = ()  # the folders of all that earlier attempts have trained
    is_from_pickle: bool = False  # its weights were unpickled, which those of the first attempt were not: the script resumes
    facts: dict[str, Any] = field(default_factory=dict)


def which_training(
    run: RunFolder, rank: int, loss: float | None, settings: dict[str, Any], *, unpickled: bool = False
) -> WhichTraining:
    """Tell by the loss of its first step and the settings of its optimizer, those of a parameter group.

    `unpickled`: its weights came from a pickle. A script that fine-tunes may always begin so.
    """
    attempt, restarts = int(os.environ.get("HOLDFAST_ATTEMPT") or 1), int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    now, before = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for recording in run.recordings():
        info = _info_of(recording) if recording.rank == rank else {}
        if (info.get("attempt"), info.get("restarts")) == (attempt, restarts):
            now.append(info)
        elif isinstance(info.get(_FOLDER), str):
            before[info[_FOLDER]] = info  # the newest of each
    place, used = len(now), {info.get(_FOLDER) for info in now}
    shown = {name: repr(value) for name, value in settings.items() if isinstance(value, _PLAIN)}
    facts = {"restarts": restarts, "place": place, "first": [loss, shown]}
    free = [info for name, info in before.items() if name not in used]
    alike = [info for info in free if _is_same(info.get("first"), [loss, shown])]
    if len(before) == 1 and place == 0:
        alike = free
    known = next((info for info in alike if info.get("place") == place), alike[0] if len(alike) == 1 else None)
    folder = str(known[_FOLDER]) if known is not None else _free_folder(place, {*before, *used})
    first = unpickled if known is None else bool(known.get("unpickled"))
    facts |= {_FOLDER: folder, "unpickled": first}
    return WhichTraining(folder, place, known is not None, tuple(before), unpickled and not first, facts)


def _info_of(recording: Recording) -> dict[str, Any]:
    """What its `process.json` says; read once, as a sweep begins hundreds of trainings."""
    info = _infos.get(recording.path) or recording.info()
    _infos[recording.path] = info
    return info


_infos: dict[Path, dict[str, Any]] = {}


def _is_same(one: Any, other: Any) -> bool:
    if not (isinstance(one, list) and len(one) == 2 and one[1] == other[1]):
        return False
    values = one[0], other[0]
    return all(isinstance(value, float) for value in values) and math.isclose(*values, rel_tol=_SAME)


def _free_folder(place: int, taken: set[str | None]) -> str:
    names = [_FOLDER] if place == 0 else []
    names += [f"{_FOLDER}/training-{number}" for number in range(place + 1, place + 2 + len(taken))]
    return next(name for name in names if name not in taken)
