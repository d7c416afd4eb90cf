from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

STARTED = 1_700_000_000.0


class Recorded:
    """A run that is recorded by hand, a tenth of a second a step."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder.create(folder / "runs", "first", started=STARTED, command=["python", "train.py"])
        self._recorder = Recorder.start(self.run, 0)

    def step(self, step: int, **values: Any) -> None:
        self._append("steps", {"step": step, "time": STARTED + 0.1 * step, "lr": 0.01, "loss": 1 / (step + 1), **values})

    def log(self, step: int, name: str, value: float, split: str = "val") -> None:
        code = self._recorder.strings.code
        texts = {"split": code(split), "name": code(name)}
        self._append("evaluations", {"step": step, "time": STARTED + 0.1 * step, "value": value, "printed": 0, **texts})

    def find(self, code: str, severity: str = "critical", step: int = 5, **evidence: Any) -> None:
        self.run.journal.write("finding", code=code, severity=severity, step=step, evidence=evidence)

    def end(self, code: int = 0) -> None:
        self._recorder.close()
        self.run.update_info(ended=time.time(), exit_code=code)

    def _append(self, table: str, values: dict[str, Any]) -> None:
        self._recorder.table(table).append([values.get(one.name, one.kind.missing) for one in TABLES[table].columns])

    def close(self) -> None:
        self._recorder.close()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path)
    yield made
    made.close()


Wait = Callable[[Callable[[], bool]], None]
