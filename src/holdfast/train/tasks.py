"""The tasks of `holdfast train`: their settings, and their parts, which are imported when they are used."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.train.settings import DetectSettings, SegmentSettings, SensorsSettings, TrainSettings, read_yaml

if TYPE_CHECKING:
    from holdfast.train.devices import Place
    from holdfast.train.export import Exportable
    from holdfast.train.task import Task


class TaskKind(NamedTuple):
    """One task. Its package has its name, with the modules `check`, `task` and `exported`."""

    settings: type[TrainSettings]

    @property
    def name(self) -> str:
        """The word after `holdfast train`."""
        return self.settings.TASK

    def check(self, settings: TrainSettings) -> None:
        """Raise UsageError where a training with these settings cannot start."""
        self._part("check").check(settings)

    def begun(self, settings: TrainSettings, resume: Path) -> tuple[TrainSettings, Path | None]:
        """Settings that fit a run or checkpoint, and what is resumed; nothing, where it only gives the first weights."""
        if not settings.STAGED:
            return settings, resume
        begun: tuple[TrainSettings, Path | None] = self._part("pretrained").begun(settings, resume)
        return begun

    def task(self, settings: TrainSettings, place: Place) -> Task:
        """The task, with its data opened."""
        made: Task = self._part("task").TASK(settings, place)
        return made

    def exportable(self, run: Path, settings: TrainSettings) -> Exportable:
        """The trained model of a run as a function of its inputs."""
        made: Exportable = self._part("exported").exportable(run, settings)
        return made

    def _part(self, name: str) -> Any:
        return importlib.import_module(f"holdfast.train.{self.name}.{name}")


TASKS = {kind.TASK: TaskKind(kind) for kind in (DetectSettings, SegmentSettings, SensorsSettings)}
SETTINGS = "settings.yaml"  # in a run's folder


def task_of(settings: dict[str, Any]) -> TaskKind:
    """The task whose settings these are, as a run or checkpoint keeps them."""
    return TASKS.get(str(settings.get("task")), TASKS["detect"])


def settings_of(source: Path) -> tuple[TaskKind, dict[str, Any]]:
    """The task of a run or checkpoint, and its settings."""
    if (source / SETTINGS).exists():
        kept = read_yaml(source / SETTINGS)
    else:
        try:
            kept = json.loads((source / "manifest.json").read_text(encoding="utf-8")).get("settings") or {}
        except OSError as error:
            raise UsageError(f"{source} cannot be read: {error.strerror}.", fix="name a run or checkpoint") from None
        if not kept.get("data"):
            problem = f"{source} was not saved by `holdfast train`."
            raise UsageError(problem, fix=f"train from its weights: holdfast train detect --weights {source} --data data.yaml")
    return task_of(kept), kept
