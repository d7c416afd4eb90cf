from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


class Training:
    """A training that writes the real tables, and answers letters as the part inside does."""

    def __init__(self, run: RunFolder, rank: int = 0) -> None:
        self.run, self.rank = run, rank
        self.recorder = Recorder.start(run, rank)
        self.step = 0

    def steps(self, losses: Any, **columns: Any) -> None:
        for index, loss in enumerate(losses):
            given = {name: values[index] if np.ndim(values) else values for name, values in columns.items()}
            given = {"step": self.step, "time": time.time(), "loss": float(loss), "skipped": 0, "step_seconds": 0.01} | given
            row = [given.get(column.name, column.kind.missing) for column in TABLES["steps"].columns]
            self.recorder.table("steps").append(row)
            self.step += 1

    def evaluate(self, name: str, value: float, split: str = "val") -> None:
        code = self.recorder.strings.code
        given = {"step": self.step - 1, "split": code(split), "name": code(name), "value": value}
        row = [given.get(column.name, column.kind.missing) for column in TABLES["evaluations"].columns]
        self.recorder.table("evaluations").append(row)

    def holds_snapshots(self, *steps: int) -> None:
        (self.recorder.recording.path / "snapshots.json").write_text(json.dumps({"steps": steps, "every": 50}))

    def answers(self, letter: dict[str, Any], state: str = "done") -> None:
        row = {name: value for name, value in letter.items() if name != "at"}
        self.run.journal.write("action", **row, state=state, at=self.step, rank=self.rank, detail="")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a", policy="heal")


@pytest.fixture
def train(run: RunFolder) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def start(rank: int = 0) -> Training:
        made.append(Training(run, rank))
        return made[-1]

    yield start
    for one in made:
        one.recorder.close()


@pytest.fixture
def letters_of() -> Callable[[RunFolder], list[dict[str, Any]]]:
    """What lies in the action queue of a run."""

    def read(run: RunFolder) -> list[dict[str, Any]]:
        path = run.path / "action_queue.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def letters(run: RunFolder, letters_of: Any) -> Callable[[], list[dict[str, Any]]]:
    """What lies in the action queue."""
    return lambda: letters_of(run)


@pytest.fixture
def falling() -> Callable[..., Any]:
    """A loss that is learned, with noise."""

    def make(count: int, *, seed: int = 0, start: float = 2.3, end: float = 0.2) -> Any:
        curve = end + (start - end) * np.exp(-np.arange(count) / 60)
        return curve * np.exp(0.15 * np.random.default_rng(seed).standard_normal(count))

    return make


@pytest.fixture
def train_in() -> Iterator[Callable[..., Training]]:
    """Trainings in runs of the test's own."""
    made: list[Training] = []

    def start(run: RunFolder, rank: int = 0) -> Training:
        made.append(Training(run, rank))
        return made[-1]

    yield start
    for training in made:
        training.recorder.close()
