"""The events of a config: files opened, checked and divided into chunks; normalisation measured on a few of them."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from holdfast.errors import UsageError
from holdfast.train.sensors.array import (
    Channel,
    SensorArray,
    Target,
    branches_of,
    describe_targets,
    described,
    read_array,
    read_targets,
)
from holdfast.train.sensors.chunks import Block, Floats, read_events
from holdfast.train.sensors.files import EventFile, RootFile, open_files
from holdfast.train.settings import SensorsSettings, platform_defaults

_PartT = TypeVar("_PartT", Channel, Target)
_HELD_OUT = 0.1  # of each training file, at its end, where no validation files are named
_FAR = 4  # chunks: a basket or row group that is larger is read in parts, and unpacked for each
_MEASURED_BLOCKS, _MEASURED_EVENTS = 8, 2048  # in each of them, at most
_DIFFERENT_MEAN, _DIFFERENT_SPREAD = 0.5, 2.0  # of validation data: in spreads of the training data, and as a ratio


@dataclass(frozen=True, slots=True)
class Opened:
    """What a config describes: files, chunks to train and to validate on, the array and the targets."""

    files: list[EventFile]
    train: list[Block]
    val: list[Block]
    array: SensorArray
    targets: tuple[Target, ...]
    notes: tuple[str, ...]  # what a person should know

    def settings(self, before: SensorsSettings) -> SensorsSettings:
        """The settings with the measured normalisation."""
        targets = {**before.targets, **describe_targets(self.targets, before.targets)}
        return before.with_changes(array=described(self.array, before.array), targets=targets)


def describe(settings: SensorsSettings) -> tuple[SensorArray, tuple[Target, ...]]:
    """The array and the targets of a config, without looking at the data."""
    array = read_array(settings.array)
    targets = read_targets(settings.targets, settings.loss_fn, settings.loss_beta)
    if settings.objective != "regress":
        return array, ()
    if not targets:
        raise UsageError("there are no targets to regress.", fix="targets: {energy: {branch: energy}} in the --config file")
    return array, targets


def open_events(settings: SensorsSettings, channels: Sequence[Channel] | None = None) -> Opened:
    """Open what a config describes. `channels` have the normalisation of a model that was trained before."""
    array, targets = describe(settings)
    array = array.with_channels(channels) if channels is not None else array
    names = branches_of(array, targets)
    files = open_files(settings.data, settings.tree, settings.num_threads)
    others = open_files(settings.val, settings.tree, settings.num_threads) if settings.val else []
    for file in (*files, *others):
        file.check_names(names)
        if isinstance(file, RootFile):
            file.align(names)
    if not files:
        raise UsageError(f"{settings.data} holds no events.", fix="--data with files that do")
    targets = tuple(replace(target, size=_size(files[0], target)) for target in targets)
    at_once = settings.chunksize or _events_at_once(array, targets)
    notes, train, val = [], [], []
    for place, file in enumerate(files):
        held_out = 0 if others else max(1, round(_HELD_OUT * file.rows))
        train += blocks(file, place, 0, file.rows - held_out, at_once)
        val += blocks(file, place, file.rows - held_out, file.rows, at_once)
    for place, file in enumerate(others, len(files)):
        val += blocks(file, place, 0, file.rows, at_once)
    if not others:
        notes.append(f"no --val: the last {100 * _HELD_OUT:.0f} % of each file are held out for validation")
    if not train or not val:
        raise UsageError(f"{settings.data} has too few events to train and to validate on.", fix="more events, or --val FILES")
    return _measured(Opened([*files, *others], train, val, array, targets, tuple(notes)))


def blocks(file: EventFile, place: int, start: int, stop: int, at_once: int) -> list[Block]:
    """Rows of a file in chunks of about this many events, which end where reading stops cheaply."""
    made, ends = [], [end for end in file.ends if start < end < stop]
    while start < stop:
        next_end, last = bisect.bisect_right(ends, start), bisect.bisect_right(ends, start + at_once)
        if next_end < last:
            end = ends[last - 1]
        else:  # up to the next end, unless that is far away
            beyond = ends[next_end] if next_end < len(ends) else stop
            end = start + at_once if beyond - start > (_FAR if ends else 1) * at_once else beyond
        made.append(Block(place, start, end))
        start = end
    return made


def _size(file: EventFile, target: Target) -> int:
    """How many values a target has."""
    read = file.read(target.branches, 0, 1)
    return sum(int(math.prod(values.shape[1:])) for values in read.values())


def _events_at_once(array: SensorArray, targets: Sequence[Target]) -> int:
    width = 4 * (array.sensors * len(array.channels) + sum(target.size for target in targets))
    return max(1, min(65_536, platform_defaults()["chunk_bytes"] // width))


def _measured(opened: Opened) -> Opened:
    """Offset and scale of channels and targets that have none; validation data that differs is a warning."""
    values, targets = _sample(opened, opened.train)
    others, _ = _sample(opened, opened.val)
    channels, notes = [], list(opened.notes)
    for place, channel in enumerate(opened.array.channels):
        train, val = (_valid(channel, some[:, place]) for some in (values, others))
        if not len(train):
            names = ", ".join(channel.branches[:3])
            problem = f"{opened.files[0].path}: no value of channel {channel.name} ({names}) is valid in the events looked at."
            raise UsageError(problem, fix=f"look at `invalid: {channel.invalid}` in the config, and at the files")
        mean, spread = float(train.mean()), _spread(train)
        if len(val) and (
            abs(float(val.mean()) - mean) > _DIFFERENT_MEAN * spread or _ratio(_spread(val), spread) > _DIFFERENT_SPREAD
        ):
            notes.append(
                f"warning: {channel.name} differs in the validation data: mean {val.mean():.4g}, spread {_spread(val):.4g}; "
                f"in the training data {mean:.4g} and {spread:.4g}. Is it preprocessed in the same way?"
            )
        channels.append(_normalised(channel, mean, spread))
    made, first = [], 0
    for target in opened.targets:
        some = targets[:, first : first + target.size]
        some, first = some[np.isfinite(some)], first + target.size
        made.append(_normalised(target, float(some.mean()) if len(some) else 0.0, _spread(some) if len(some) else 1.0))
    return replace(opened, array=opened.array.with_channels(channels), targets=tuple(made), notes=tuple(notes))


def _normalised(part: _PartT, offset: float, scale: float) -> _PartT:
    """A channel or target; what is given stays."""
    offset, scale = (float(f"{value:.6g}") for value in (offset, scale))
    return replace(
        part, offset=part.offset if part.offset is not None else offset, scale=part.scale if part.scale is not None else scale
    )


def _sample(opened: Opened, some: Sequence[Block]) -> tuple[Floats, Floats]:
    """The first events of some chunks that are spread over the data."""
    chosen = np.unique(np.linspace(0, len(some) - 1, _MEASURED_BLOCKS).round().astype(int))
    read = []
    for place in chosen:
        block = some[place]
        first = Block(block.file, block.start, min(block.stop, block.start + _MEASURED_EVENTS))
        read.append(read_events(opened.files[block.file], first, opened.array, opened.targets))
    return np.concatenate([part.values for part in read]), np.concatenate([part.targets for part in read])


def _valid(channel: Channel, values: Floats) -> Floats:
    """The valid values of a channel, transformed."""
    invalid = np.float32(channel.invalid if channel.invalid is not None else np.nan)
    kept: Floats = values[np.isfinite(values) & (values != invalid)]
    if channel.transform == "asinh":
        return np.arcsinh(kept)
    if channel.transform == "none":
        return kept
    positive: Floats = np.maximum(kept, np.float32(0))
    return np.log1p(positive) if channel.transform == "log1p" else np.sqrt(positive)


def _spread(values: Floats) -> float:
    return float(values.std(dtype=np.float64)) or 1.0


def _ratio(first: float, second: float) -> float:
    return max(first / second, second / first)
