"""A chunk of events, as arrays: read from a file and checked. torch is not imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.errors import UsageError
from holdfast.train.sensors.array import SensorArray, Target, branches_of
from holdfast.train.sensors.files import EventFile, UnevenLists

Floats = npt.NDArray[np.float32]


class Block(NamedTuple):
    """Rows of a file that are read at once."""

    file: int
    start: int
    stop: int


class Events(NamedTuple):
    """Some events: channels × sensors of each, as they lie in the file, and the values of its targets."""

    values: Floats
    targets: Floats


def read_events(file: EventFile, block: Block, array: SensorArray, targets: Sequence[Target]) -> Events:
    """Some rows of a file. A wrong shape is an error that names the file, the branch, and what was expected."""
    try:
        read = file.read(branches_of(array, targets), block.start, block.stop)
    except UnevenLists as error:
        sizes = [
            array.sensors
            for channel in array.channels
            if repr(channel.branches[0]) in error.problem and len(channel.branches) == 1
        ]
        raise UsageError(error.problem + (f"; expected {sizes[0]}." if sizes else "."), fix=error.fix) from None
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - readers raise anything on damaged files
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        problem = f"{file.path}: rows {block.start:,} to {block.stop:,} cannot be read: {reason}."
        raise UsageError(problem, fix="replace or remove the file, then resume") from None
    rows = block.stop - block.start
    values = np.empty((rows, len(array.channels), array.sensors), np.float32)
    for place, channel in enumerate(array.channels):
        _fill(values[:, place], [(name, read[name]) for name in channel.branches], file)
    wanted = np.empty((rows, sum(target.size for target in targets)), np.float32)
    first = 0
    for target in targets:
        _fill(wanted[:, first : first + target.size], [(name, read[name]) for name in target.branches], file)
        first += target.size
    return Events(values, wanted)


def _fill(into: Floats, parts: Sequence[tuple[str, Any]], file: EventFile) -> None:
    """Put the values of some branches beside each other."""
    flat = [(name, values.reshape(len(values), -1), values.shape[1:]) for name, values in parts]
    width = sum(values.shape[1] for _, values, _ in flat)
    if width != into.shape[1] or any(values.dtype.kind not in "biuf" for _, values, _ in flat):
        if len(flat) == 1:
            name, values, shape = flat[0]
            what = f"{file.kind} {name!r} has shape (events, {', '.join(map(str, shape))})".replace(", )", ")")
            what += f" of {values.dtype}" if values.dtype.kind not in "biuf" else ""
        else:
            kinds = f"{file.kind}es" if file.kind == "branch" else f"{file.kind}s"
            what = f"the {len(flat)} {kinds} from {flat[0][0]!r} to {flat[-1][0]!r} have shape (events, {width})"
        expected = f"expected (events, {into.shape[1]})"
        fix = "the faces of the array must hold as many sensors as the file has; `branch:` names another one"
        raise UsageError(f"{file.path}: {what}; {expected}.", fix=fix)
    first = 0
    for _, values, _ in flat:
        into[:, first : first + values.shape[1]] = values
        first += values.shape[1]
