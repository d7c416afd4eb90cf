"""Run a training three times: alone, watched, and under `holdfast run` with everything sampled; then compare.

The three run side by side and only once for all tests. Inside, an error of Holdfast's own is raised into the script
(`HOLDFAST_DEBUG=raise`), so that it fails the test instead of being journaled.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.probe.rows import last_rows, measured
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

ROOT = Path(__file__).parents[2]
SITE = ROOT / "src/holdfast/inside/site"
TRAININGS = ROOT / "tests/trainings"
HOLDFAST = (sys.executable, "/tmp/hf_runner.py")
_TIMEOUT = 120


class Process:
    """A started process whose output is kept; `wait` fails loudly if it did."""

    def __init__(self, command: list[str], folder: Path, **env: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTHONPATH", "CUDA_VISIBLE"))}
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
        single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._output = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**kept, **quiet, **single, "XDG_RUNTIME_DIR": str(folder), **env},
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def wait(self, code: int = 0) -> str:
        """Wait for the end and give what was printed."""
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        self._output.seek(0)
        text = self._output.read()
        assert self._process.returncode == code, text
        return text


class Rows:
    """A table of one recording; a column is a list, with None where nothing was measured."""

    def __init__(self, folder: Path, table: str) -> None:
        self._table = TABLES[table]
        self._columns = last_rows(folder, table, self._table.column_names, 1 << 40)

    def __len__(self) -> int:
        return len(self._columns["step"])

    def __getitem__(self, name: str) -> list[Any]:
        values = self._columns[name]
        if values.dtype == object:
            return values.tolist()
        return [value if known else None for value, known in zip(values.tolist(), measured(values), strict=True)]

    def where(self, **wanted: Any) -> list[dict[str, Any]]:
        """The rows in which these columns have these values."""
        names = self._table.column_names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(self[name] for name in names), strict=True)]
        return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@dataclass
class Recorded:
    """A run folder, and its recordings' tables by name."""

    run: RunFolder

    @cached_property
    def names(self) -> list[str]:
        return [recording.name for recording in self.run.recordings()]

    def table(self, table: str, recording: str = "rank-0") -> Rows:
        return Rows(self.run.path / recording, table)

    @property
    def steps(self) -> Rows:
        return self.table("steps")

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [entry for entry in self.run.journal if entry["kind"] == "finding"]


@dataclass
class Outcome:
    """What the script saved and printed, and what was recorded of it (nothing of the run alone)."""

    story: dict[str, Any]
    printed: str
    recorded: Recorded | None = None


class Training:
    """One script and its arguments, run the three ways."""

    def __init__(self, folder: Path, script: str, arguments: tuple[str, ...], launcher: tuple[str, ...]) -> None:
        self.folder = folder
        self._words = [*launcher, str(TRAININGS / f"{script}.py")]
        self._arguments = list(arguments)
        self._run = RunFolder.create(folder, "watched")
        watched = {"HOLDFAST_RUN": str(self._run.path), "PYTHONPATH": str(SITE), "HOLDFAST_DEBUG": "raise"}
        command = {"HOLDFAST_SAMPLING": "full", "HOLDFAST_DEBUG": "raise"}
        self._alone = self._start("alone")
        self._watched = self._start("watched", **watched)
        self._command = self._start("command", *HOLDFAST, "run", "--folder", str(folder), "--name", "full", "--", **command)

    def _start(self, how: str, *before: str, **env: str) -> Process:
        place = self.folder / f"from-{how}"
        place.mkdir()
        return Process([*before, *self._words, str(place / "story.pt"), *self._arguments], place, **env)

    @cached_property
    def alone(self) -> dict[str, Any]:
        """What the script says without Holdfast."""
        return self._outcome("alone", self._alone).story

    @cached_property
    def watched(self) -> Outcome:
        """The same, watched as by default."""
        return self._outcome("watched", self._watched, Recorded(self._run))

    @cached_property
    def full(self) -> Outcome:
        """The same under `holdfast run`, with every module and parameter sampled at every step."""
        outcome = self._outcome("command", self._command)
        outcome.recorded = Recorded(RunFolder.open(self.folder / "full"))
        return outcome

    @property
    def recorded(self) -> Recorded:
        """What was recorded as by default."""
        assert self.watched.recorded is not None
        return self.watched.recorded

    @property
    def recorded_in_full(self) -> Recorded:
        """What was recorded with everything sampled."""
        assert self.full.recorded is not None
        return self.full.recorded

    def _outcome(self, how: str, process: Process, recorded: Recorded | None = None) -> Outcome:
        printed = process.wait()
        story = torch.load(self.folder / f"from-{how}" / "story.pt", weights_only=False)
        return Outcome(story, printed, recorded)


class Trainings:
    """All trainings of a test session, each run once."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder = make_folder
        self._known: dict[tuple[Any, ...], Training] = {}

    def __call__(self, script: str, *arguments: str, launcher: tuple[str, ...] = (sys.executable,)) -> Training:
        key = (script, arguments, launcher)
        if key not in self._known:
            self._known[key] = Training(self._make_folder(script), script, arguments, launcher)
        return self._known[key]


def assert_bit_equal(training: Training) -> None:
    """Nothing that the script computed differs between the three runs, in any bit, and Holdfast found no fault with itself."""
    differing = difference(training.alone, training.watched.story)
    assert differing is None, f"watched: {differing}"
    differing = difference(training.alone, training.full.story)
    assert differing is None, f"under holdfast run, all sampled: {differing}"
    assert training.recorded.findings == []
    assert training.recorded_in_full.findings == []


def difference(one: Any, other: Any, path: str = "story") -> str | None:
    """Where two stories differ in any bit; None if nowhere."""
    if type(one) is not type(other):
        return f"{path}: {type(one)} and {type(other)}"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{path}: keys {sorted(one)} and {sorted(other)}"
        return _first(difference(one[key], other[key], f"{path}.{key}") for key in one)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{path}: {len(one)} and {len(other)} values"
        return _first(difference(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(zip(one, other, strict=True)))
    if isinstance(one, torch.Tensor):
        one, other = one.contiguous().view(-1).view(torch.uint8).numpy(), other.contiguous().view(-1).view(torch.uint8).numpy()
    same = one.tobytes() == other.tobytes() if isinstance(one, np.ndarray) else _bits(one) == _bits(other)
    return None if same else f"{path}: {one} and {other}"


def _first(found: Any) -> str | None:
    return next((text for text in found if text is not None), None)


def _bits(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value
