"""Starting from the weights of another run: the same array and the same normalisation, or an error with both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.checkpoints.write import best_checkpoint
from holdfast.errors import UsageError
from holdfast.train.sensors.array import Channel, SensorArray, described, read_array
from holdfast.train.settings import SensorsSettings
from holdfast.train.tasks import settings_of


def source_of(settings: SensorsSettings) -> Path | None:
    """The run or checkpoint to start from."""
    if settings.weights in ("none", "auto", ""):
        return None
    source = Path(settings.weights)
    if not source.exists():
        raise UsageError(f"there is no run or checkpoint {source}.", fix="--weights runs/NAME, or --weights none")
    return source


def begun(settings: SensorsSettings, source: Path) -> tuple[SensorsSettings, Path | None]:
    """A run with another objective gives its weights, one with the same is resumed; both must have the same preprocessing."""
    kept = settings_of(source)[1]
    channels = same_preprocessing(settings.with_changes(weights=str(source)))
    assert channels is not None
    settings = settings.with_changes(array=described(read_array(settings.array).with_channels(channels), settings.array))
    if kept["objective"] != settings.objective:
        return settings.with_changes(weights=str(source)), None
    measured = {name: {key: (target or {}).get(key) for key in ("offset", "scale")} for name, target in kept["targets"].items()}
    return settings.with_changes(
        targets={name: {**measured.get(name, {}), **(target or {})} for name, target in settings.targets.items()}
    ), source


def same_preprocessing(settings: SensorsSettings) -> tuple[Channel, ...] | None:
    """The channels with the normalisation of the run to start from; None where there is none. What differs is an error."""
    source = source_of(settings)
    if source is None:
        return None
    kind, kept = settings_of(source)
    if kind.name != settings.TASK:
        raise UsageError(f"{source} is a run of `holdfast train {kind.name}`.", fix="name a run of holdfast train sensors")
    before, now = read_array(kept["array"]), read_array(settings.array)
    _check_geometry(source, before, now)
    for name in ("width", "depth"):
        if (there := int(kept[name])) != (here := getattr(settings, name)):
            raise UsageError(f"{source} was trained with {name} {there}, this run has {here}.", fix=f"--{name} {there}")
    channels = []
    for was, channel in zip(before.channels, now.channels, strict=True):
        adopted = replace(
            channel,
            offset=channel.offset if channel.offset is not None else was.offset,
            scale=channel.scale if channel.scale is not None else was.scale,
        )
        if was.normalisation != adopted.normalisation:
            names = ("transform", "offset", "scale", "invalid")
            pairs = zip(names, was.normalisation, adopted.normalisation, strict=True)
            differences = "; ".join(f"{name} {_shown(old)} there, {_shown(new)} here" for name, old, new in pairs if old != new)
            problem = f"channel {channel.name} is normalised differently in {source}: {differences}."
            raise UsageError(problem, fix="use its values, or leave offset and scale out: that run's values are used")
        channels.append(adopted)
    return tuple(channels)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _check_geometry(source: Path, before: SensorArray, now: SensorArray) -> None:
    def descriptions(array: SensorArray) -> list[str]:
        channels = ", ".join(channel.name for channel in array.channels)
        return [f"channels {channels}", *(f"face {face.name}: {face.description}" for face in array.faces)]

    for was, wanted in zip(descriptions(before), descriptions(now), strict=False):
        if was != wanted:
            raise _other_array(source, was, wanted)
    if len(before.faces) != len(now.faces):
        raise _other_array(source, f"{len(before.faces)} faces", f"{len(now.faces)} faces")
    for old, new in zip(before.faces, now.faces, strict=True):
        if not np.array_equal(old.index, new.index):
            place = tuple(np.argwhere(old.index != new.index)[0].tolist())
            cells = (f"face {face.name} has sensor {face.index[place]} at {list(place)}" for face in (old, new))
            raise _other_array(source, *cells)


def _other_array(source: Path, was: str, wanted: str) -> UsageError:
    problem = f"{source} was trained on another array: {was} there, {wanted} here."
    return UsageError(problem, fix="use the same array, or start from scratch: --weights none")


def load_pretrained(model: Any, source: Path) -> str:
    """Load the tensors that fit; return a line with what was loaded, what was not, and what is new."""
    from holdfast.train.detect.weights import read_weights

    path = best_checkpoint(source / "checkpoints") or source
    tensors = {name: value for name, value in read_weights(path).items() if name.startswith(("encoder.", "heads."))}
    own = model.state_dict()
    loaded = {name: value for name, value in tensors.items() if name in own and own[name].shape == value.shape}
    missing = [name for name in own if name.startswith("encoder.") and name not in loaded]
    if missing:
        problem = f"the encoder in {path} does not fit: {len(missing)} parameters differ, such as {missing[0]}."
        raise UsageError(problem, fix="the same array, --width and --depth as there, or --weights none")
    model.load_state_dict({**own, **loaded})
    parts = [f"loaded {_parts(loaded)}"]
    parts += [f"not loaded {_parts(left)}"] if (left := [name for name in tensors if name not in loaded]) else []
    parts += [f"new {_parts(new)}"] if (new := [name for name in own if name not in loaded]) else []
    return f"{path}: {'; '.join(parts)}"


def _parts(names: Any) -> str:
    """Parameters, counted by the part of the model that they belong to."""
    counts: dict[str, int] = {}
    for name in names:
        first, second = name.split(".")[:2]
        part = f"{first}.{second}" if first == "heads" else first
        counts[part] = counts.get(part, 0) + 1
    return ", ".join(f"{part} ({count} tensors)" for part, count in counts.items())
