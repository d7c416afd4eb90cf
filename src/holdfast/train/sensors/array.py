"""The description of a sensor array: channels, faces with their index maps, and targets. torch is not imported here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.errors import UsageError

Index = npt.NDArray[np.int64]
TRANSFORMS = ("none", "log1p", "sqrt", "asinh")
KINDS = ("grid", "hex", "set")
LOSSES = ("smooth_l1", "l1", "mse")
_INLINE = 10_000  # cells of an index map that is written out: settings travel as an argument, which has a limit
_EXAMPLE = "array: {channels: {charge: {branch: charge}}, faces: {front: {shape: [8, 8]}}}"


@dataclass(frozen=True, slots=True)
class Channel:
    """What each sensor measures, such as a charge or a time. Without offset and scale they are measured on the data."""

    name: str
    branches: tuple[str, ...]
    transform: str = "none"
    offset: float | None = None
    scale: float | None = None
    invalid: float | None = None  # the value of a sensor that measured nothing; NaN and infinity always mean that

    @property
    def normalisation(self) -> tuple[object, ...]:
        """What decides how its values reach the model."""
        return self.transform, self.offset, self.scale, self.invalid


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """A part of the array: a grid or hexagonal grid (H×W) or a plain set (N) of sensor numbers; -1 is an empty cell."""

    name: str
    kind: str
    index: Index

    @property
    def sensors(self) -> Index:
        """The numbers of its sensors, row by row."""
        return self.index[self.index >= 0]

    @property
    def description(self) -> str:
        """Its kind and shape."""
        return f"{self.kind} {'×'.join(map(str, self.index.shape))}"


@dataclass(frozen=True, slots=True)
class Target:
    """What is regressed: its branches, its loss, and its normalisation, measured on the data where it is not given."""

    name: str
    branches: tuple[str, ...]
    loss_fn: str
    loss_beta: float | None  # in the target's own units
    weight: float = 1.0
    offset: float | None = None
    scale: float | None = None
    size: int = 0  # values of an event, once a file was opened

    @property
    def beta(self) -> float:
        """The loss's beta in the target's units: a tenth of its spread where none is set."""
        return self.loss_beta if self.loss_beta is not None else 0.1 * (self.scale or 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class SensorArray:
    """The whole array."""

    channels: tuple[Channel, ...]
    faces: tuple[Face, ...]
    sensors: int

    def with_channels(self, channels: Sequence[Channel]) -> SensorArray:
        """The same array with other normalisations."""
        return replace(self, channels=tuple(channels))


def read_array(described: Mapping[str, Any]) -> SensorArray:
    """The array of a config; UsageError where a part is missing, unknown or impossible."""
    parts = _known(described, ("channels", "faces", "invalid"), "array")
    if not parts.get("channels") or not parts.get("faces"):
        missing = "channels" if not parts.get("channels") else "faces"
        raise UsageError(f"the array has no {missing}.", fix=f"write them into the --config file: {_EXAMPLE}")
    invalid = parts.get("invalid")
    channels = [_channel(name, channel, invalid) for name, channel in _named(parts["channels"], "array.channels").items()]
    faces = [_face(name, face) for name, face in _named(parts["faces"], "array.faces").items()]
    indices = np.concatenate([face.sensors for face in faces])
    sensors = int(indices.max()) + 1 if len(indices) else 0
    twice = np.flatnonzero(np.bincount(indices, minlength=sensors) > 1)
    nowhere = np.flatnonzero(np.bincount(indices, minlength=sensors) == 0)
    for wrong, what in ((twice, "in more than one place"), (nowhere, "on no face")):
        if len(wrong):
            some = ", ".join(map(str, wrong[:5].tolist())) + (" …" if len(wrong) > 5 else "")
            problem = f"{len(wrong)} of the {sensors} sensors are {what}: {some}."
            raise UsageError(problem, fix="each sensor number from 0 on belongs into one cell of one face: see start and index")
    return SensorArray(tuple(channels), tuple(faces), sensors)


def read_targets(described: Mapping[str, Any], loss_fn: str, loss_beta: float | None) -> tuple[Target, ...]:
    """The targets of a config; `loss_fn` and `loss_beta` are those of targets that have none of their own."""
    targets = []
    for name, value in _named(described, "targets").items():
        where = f"targets.{name}"
        parts = _known(value, ("branch", "loss_fn", "loss_beta", "weight", "offset", "scale"), where)
        if not name.isidentifier():
            raise UsageError(f"the target {name!r} is not a name.", fix="use letters, digits and _")
        chosen = _one_of(parts.get("loss_fn", loss_fn), LOSSES, f"{where}.loss_fn")
        offset, scale = (_number(parts.get(key), f"{where}.{key}") for key in ("offset", "scale"))
        beta, weight = _number(parts.get("loss_beta", loss_beta), f"{where}.loss_beta"), _number(parts.get("weight", 1), where)
        for value, key in ((beta, "loss_beta"), (scale, "scale"), (weight, "weight")):
            if value is not None and value <= 0:
                raise UsageError(f"{where}.{key} = {value:g} is not above 0.", fix="give a positive number, or leave it out")
        targets.append(Target(name, _branches(parts, name), chosen, beta, weight or 1.0, offset, scale))
    return tuple(targets)


def branches_of(array: SensorArray, targets: Sequence[Target]) -> list[str]:
    """The names of all branches that are read, each once."""
    names = [name for channel in array.channels for name in channel.branches]
    return list(dict.fromkeys([*names, *(name for target in targets for name in target.branches)]))


def described(array: SensorArray, before: Mapping[str, Any]) -> dict[str, Any]:
    """A config's array with the measured normalisation filled in."""
    kept = {**before, "channels": dict(before["channels"])}
    for channel in array.channels:
        values = {"offset": channel.offset, "scale": channel.scale}
        kept["channels"][channel.name] = {"branch": channel.name, **(before["channels"][channel.name] or {}), **values}
    return kept


def describe_targets(targets: Sequence[Target], before: Mapping[str, Any]) -> dict[str, Any]:
    """A config's targets with the measured normalisation filled in."""
    return {target.name: {**(before[target.name] or {}), "offset": target.offset, "scale": target.scale} for target in targets}


def _channel(name: str, value: Any, invalid: Any) -> Channel:
    where = f"array.channels.{name}"
    parts = _known(value, ("branch", "transform", "offset", "scale", "invalid"), where)
    transform = _one_of(parts.get("transform", "none"), TRANSFORMS, f"{where}.transform")
    offset, scale = (_number(parts.get(key), f"{where}.{key}") for key in ("offset", "scale"))
    if scale is not None and scale <= 0:
        raise UsageError(f"{where}.scale = {scale:g} is not above 0.", fix="give a positive number, or leave it out")
    return Channel(name, _branches(parts, name), transform, offset, scale, _number(parts.get("invalid", invalid), where))


def _face(name: str, value: Any) -> Face:
    where = f"array.faces.{name}"
    parts = _known(value, ("kind", "shape", "start", "count", "index"), where)
    kind = _one_of(parts.get("kind", "grid" if "shape" in parts else "set"), KINDS, f"{where}.kind")
    shape = parts.get("shape") or ([parts["count"]] if "count" in parts else None)
    if "index" in parts:
        index = _index(parts["index"], where)
    elif shape is not None:
        index = np.arange(int(np.prod(shape)), dtype=np.int64) + int(parts.get("start", 0))
    else:
        raise UsageError(f"{where} has neither shape nor index.", fix=f"{name}: {{shape: [8, 8], start: 0}}")
    if shape is not None:
        if index.size != int(np.prod(shape)):
            raise UsageError(f"{where}.index has {index.size} cells, its shape {shape} {int(np.prod(shape))}.", fix="correct one")
        index = index.reshape(shape)
    if kind != "set" and index.ndim != 2:
        raise UsageError(f"{where} is a {kind} of {index.ndim} dimensions.", fix=f"{name}: {{kind: {kind}, shape: [8, 8]}}")
    return Face(name, kind, index.reshape(-1) if kind == "set" else index)


def _index(value: Any, where: str) -> Index:
    """An index map: nested lists, or a file with one row of cells a line (.npy, .csv, .txt)."""
    try:
        if isinstance(value, str):
            path = Path(value)
            values = (
                np.load(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None)
            )
        else:
            values = np.array(value)
            if values.size > _INLINE:
                raise ValueError(f"{values.size:,} cells are too many for a config; write them to a file")
        index = np.asarray(values, dtype=np.int64)
        if index.size == 0 or not np.array_equal(index, values) or index.min() < -1:
            raise ValueError("sensor numbers are 0 or more, and -1 for an empty cell")
    except (OSError, ValueError, TypeError) as error:
        problem = f"{where}.index cannot be read: {getattr(error, 'strerror', None) or error}."
        raise UsageError(problem, fix="a list of rows with sensor numbers, or the name of a .npy, .csv or .txt file") from None
    return index


def _branches(parts: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = parts.get("branch", name)
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _named(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} has no names.", fix=f"write `name: {{…}}` below {where.rpartition('.')[2]}:")
    return {str(name): item for name, item in value.items()}


def _known(value: Any, names: Sequence[str], where: str) -> dict[str, Any]:
    """The parts of a section; a key that does not exist names the nearest one."""
    parts = _named(value or {}, where)
    for name in parts:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            fix = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(names)}"
            raise UsageError(f"there is no setting {name!r} in {where}.", fix=fix)
    return parts


def _one_of(value: Any, choices: Sequence[str], where: str) -> str:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        raise UsageError(f"{where} = {value!r} does not exist.", fix=near[0] if near else f"use one of: {', '.join(choices)}")
    return str(value)


def _number(value: Any, where: str) -> float | None:
    if value is None or value == "auto":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{where} = {value!r} is not a number.", fix="a number, or leave it out") from None
