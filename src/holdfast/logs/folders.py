"""What a folder is: a run of Holdfast or of another tool, which is read as a whole, or just a folder with logs in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import LogUnreadable
from holdfast.logs import mlflow_store, tensorboard_files, wandb_run
from holdfast.logs.roles import split_of, words_of
from holdfast.signals.curves import Curves

STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_SAME_RUN = ("results.csv", "metrics.csv", STATE)  # beside event files: the same numbers, easier to read


def kind_of(folder: Path) -> str | None:
    """`holdfast`, `wandb`, `mlflow`, `trainer`, `tensorboard`; None for a folder that is no run."""
    if (folder / "run.json").is_file():
        return "holdfast"
    if wandb_run.is_run_folder(folder):
        return "wandb"
    if mlflow_store.is_run_folder(folder) or _is_mlruns(folder):
        return "mlflow"
    if newest_state(folder) is not None:
        return "trainer"
    if event_files(folder) and not _has_table(folder):
        return "tensorboard"
    return None


def read_folder(folder: Path, *, name: str) -> list[Curves] | Path:
    """The runs of a folder that is one as a whole, or the file in it that holds the run."""
    kind = kind_of(folder)
    if kind == "wandb":
        return wandb_run.read_wandb(folder, name=name)
    if kind == "mlflow":
        return mlflow_store.read_store(folder, name=name)
    if kind == "tensorboard":
        return tensorboard_files.read_events(event_files(folder), name=name, below=folder)
    if kind == "trainer" and (state := newest_state(folder)) is not None:
        return state
    raise LogUnreadable(f"{folder} is not a run folder that can be read.", fix="name a log file in it")


def newest_state(folder: Path) -> Path | None:
    """The Trainer's history in a folder of its output: in the folder itself, or else that of the newest checkpoint."""
    if (folder / STATE).is_file():
        return folder / STATE
    states = [(int(number[1]), path) for path, number in _checkpoints(folder) if (path / STATE).is_file()]
    return max(states)[1] / STATE if states else None


def event_files(folder: Path) -> list[Path]:
    """The event files of a run: in its folder, and in folders below that are named for a split (`train`, `validation`)."""
    return [*_events_in(folder), *(file for path in split_folders(folder) for file in _events_in(path))]


def split_folders(folder: Path) -> list[Path]:
    """The folders that hold a split of a run each. One alone is a run of that name, as is one with a table of its own."""
    named = [path for path in _subfolders(folder) if _is_split(path.name) and has_events(path)]
    apart = [path for path in named if not _has_table(path)]
    return apart if has_events(folder) or len(apart) > 1 else []


def has_events(folder: Path) -> bool:
    """Whether event files lie in a folder itself."""
    return bool(_events_in(folder))


def _checkpoints(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in _subfolders(folder):
        if (number := _CHECKPOINT.fullmatch(path.name)) is not None:
            yield path, number


def _events_in(folder: Path) -> list[Path]:
    return [path for path in _entries(folder, folders=False) if tensorboard_files.MARK in path.name]


def _subfolders(folder: Path) -> list[Path]:
    return _entries(folder, folders=True)


def _entries(folder: Path, *, folders: bool) -> list[Path]:
    """What lies in a folder, in order, without a look at each file: it may hold very many."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) == folders]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def _has_table(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _SAME_RUN)


def _is_split(name: str) -> bool:
    tokens = words_of(name)
    return len(tokens) == 1 and (split_of(tokens) != "train" or tokens[0] in ("train", "training"))


def _is_mlruns(folder: Path) -> bool:
    """The file store, or an experiment in it."""
    if not (folder / "meta.yaml").is_file() and folder.name != "mlruns":
        return False
    return any(
        mlflow_store.is_run_folder(path) for subfolder in _subfolders(folder) for path in (subfolder, *_subfolders(subfolder))
    )
