"""Which checkpoint to go on from, and how: decided from what was verified and from what is known of the run. Pure.

    N   the newest clean one, nothing changed: the run was well and was ended from outside
    A   the best clean one, with a lower learning rate
    B   an earlier clean one, from before a setting was changed or the trouble began
    C   fresh, with safe settings: no clean one is there, or all are from within the trouble

Whatever is recommended is clean and from before the trouble, and goes on in a folder of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.checkpoints.choosing.candidates import Candidate, complete, place
from holdfast.checkpoints.choosing.field import Field
from holdfast.checkpoints.choosing.logs_beside import CHECKPOINT_FOLDERS
from holdfast.checkpoints.choosing.options import Choice, Option
from holdfast.checkpoints.history import Better, History

_RESUMED = re.compile(r"-resumed(?:-\d+)?$")


def choose(
    candidates: Sequence[Candidate],
    history: History | None = None,
    *,
    folder: Path | None = None,
    better: Better = lambda _name: None,
) -> Choice:
    """Weigh the ways to go on. `folder` is where the run goes on; `better` says which way a metric is better, by its name."""
    known = complete(history, candidates, better)
    placed = place(candidates, known)
    field = Field.of(placed, known)
    options = [replace(one, folder=folder) for one in field.options()]
    taken = _recommended(field, options)
    others = [replace(one, why_not=_why_not(one, taken, field)) for one in options if one is not taken]
    return Choice(
        recommended=taken.letter,
        options=(taken, *others),
        passed_over=tuple(field.passed_over(taken)),
        setbacks=tuple(field.setbacks),
        history=known,
        clean=sum(one.candidate.clean for one in placed),
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


def _recommended(field: Field, options: Sequence[Option]) -> Option:
    by_letter = {one.letter: one for one in options}
    order = "NBAC" if field.change is not None else "NABC"
    return next(by_letter[letter] for letter in order if letter in by_letter)


def _why_not(option: Option, taken: Option, field: Field) -> str:
    """Why an option is not the recommended one."""
    if option.letter == "C":
        return "a clean one from before the trouble is there" if field.trouble else "a clean one is there"
    if option.candidate is taken.candidate:
        return "it is the same checkpoint"
    if not field.trouble:
        return "nothing is wrong with the newer one"
    if option.letter == "B":
        return "for when the best one goes wrong again"
    change = field.change
    after = change is not None and option.position is not None and option.position > change.step
    return "it was saved after the change" if after else "it is older, and the other is from before the change too"
