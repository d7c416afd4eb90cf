"""The settings that a Holdfast run was made with, as far as they can be seen from outside its script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.probe.follow import Follower
from holdfast.signals.lineage import script_place
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.view import Column, measured

Settings = dict[str, float | str]
_COLUMNS = ("step", "lr", "samples", "backwards", "clip_norm", "scale")
_ROWS = 1 << 16


def steps_of(run: RunFolder) -> int:
    """How many steps the first training of a run has, as far as they are looked at."""
    recordings = run.recordings()
    return len(_rows(recordings[0])["step"]) if recordings else 0


def settings_of(run: RunFolder, *, steps: int) -> Settings:
    """What the first `steps` steps were made with, and what the command and the machine say."""
    recordings, info = run.recordings(), run.info()
    settings: Settings = dict(_arguments(info.get("command") or ()))
    if recordings:
        settings |= _of_steps({name: values[:steps] for name, values in _rows(recordings[0]).items()})
        settings |= _of_tables(recordings[0])
    packages = info.get("packages") or {}
    versions = {"ranks": info.get("world_size"), "torch": packages.get("torch"), "code": (info.get("git") or {}).get("commit")}
    return settings | {name: value if isinstance(value, int) else str(value)[:12] for name, value in versions.items() if value}


def _arguments(command: Sequence[str]) -> Settings:
    """The words behind the script: `--name value`, `--name=value`, `name=value`, a lone `--switch`, and others by their place."""
    place = script_place(command)
    words = list(command[place + 1 :]) if place is not None else []
    settings: Settings = {}
    unnamed = 0
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word.startswith("-") and not equals and words and not words[0].startswith("--"):
            value = words.pop(0)
        elif not word.startswith("-") and not equals:
            unnamed += 1
            name, value = f"argument {unnamed}", word
        settings[name] = value or "on"
    return settings


def _rows(recording: Recording) -> dict[str, Column]:
    return Follower(recording.path, "steps", _COLUMNS).new_rows(_ROWS)


def _of_steps(rows: dict[str, Column]) -> Settings:
    settings: Settings = {}
    rate = _measured(rows["lr"])
    if len(rate):
        settings["learning rate"] = float(rate.max())
    for name, column in (("batch size", "samples"), ("backward calls a step", "backwards")):
        if len(values := _measured(rows[column])):
            settings[name] = float(np.median(values))
    limits = _measured(rows["clip_norm"])
    settings["clip norm"] = float(np.median(limits)) if len(limits) else "none"
    settings["gradient scaler"] = "on" if len(_measured(rows["scale"])) else "off"
    return settings


def _of_tables(recording: Recording) -> Settings:
    settings: Settings = {}
    decay = _measured(Follower(recording.path, "groups", ("step", "weight_decay")).new_rows(1)["weight_decay"])
    if len(decay):
        settings["weight decay"] = float(decay[0])
    workers = _measured(Follower(recording.path, "loader", ("worker",)).new_rows()["worker"])
    if len(workers):
        settings["loader workers"] = float(workers.max()) + 1
    return settings


def _measured(values: Column) -> Any:
    return values[measured(values)]
