"""The tasks of `holdfast train`: their settings, and their parts, which are imported when they are used."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.train.settings import DetectSettings, SegmentSettings, TrainSettings

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

    def task(self, settings: TrainSettings, place: Place) -> Task:
        """The task, with its data opened."""
        made: Task = self._part("task").TASK(settings, place)
        return made

    def exportable(self, run: Path, settings: TrainSettings) -> Exportable:
        """The trained model of a run as a function of images."""
        made: Exportable = self._part("exported").exportable(run, settings)
        return made

    def _part(self, name: str) -> Any:
        return importlib.import_module(f"holdfast.train.{self.name}.{name}")


TASKS = {kind.TASK: TaskKind(kind) for kind in (DetectSettings, SegmentSettings)}


def task_of(settings: dict[str, Any]) -> TaskKind:
    """The task whose settings these are, as a run or checkpoint keeps them."""
    return TASKS.get(str(settings.get("task")), TASKS["detect"])
