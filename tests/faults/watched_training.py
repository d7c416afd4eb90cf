"""Run a training three times: alone, watched as by default, and watched with everything sampled; then compare.

Some scripts are run by the real command, `holdfast run`; the others in a Python that is warm, where importing torch costs
nothing and Holdfast is armed by the same environment. Every training runs only once for all tests. An error of Holdfast's
own is raised into the script (`HOLDFAST_DEBUG=raise`), so that it fails the test instead of being journaled.
"""

from __future__ import annotations

import json
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
import pytest
import torch

from holdfast.probe.rows import last_rows
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.view import measured

ROOT = Path(__file__).parents[2]
SITE = ROOT / "src/holdfast/inside/site"
TRAININGS = ROOT / "tests/trainings"
HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")
IN_ITS_OWN_PROCESS = ("spawn", "accelerate_loop")  # scripts and arguments: children that are spawned import the script again
BY_COMMAND = ("plain_loop", "loaders")  # once each, and those above
_TIMEOUT = 120


def environment(folder: Path) -> dict[str, str]:
    """This environment, one thread, no GPU, no network, and nothing of an outer Holdfast."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PYTHONPATH"))}
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
    single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**kept, **quiet, **single, "XDG_RUNTIME_DIR": str(folder)}


class Process:
    """A started process whose output is kept; `wait` fails loudly if it did."""

    def __init__(self, command: list[str], folder: Path, **env: str) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        out = {"stdout": self._output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, cwd=folder, env={**environment(folder), **env}, **out)

    def end(self) -> int:
        """Wait for the end and give the exit code."""
        try:
            return self._process.wait(_TIMEOUT)
        finally:
            self._process.kill()

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def wait(self) -> str:
        """Wait for a good end and give what was printed."""
        code = self.end()
        self._output.seek(0)
        text = self._output.read()
        assert code == 0, text
        return text


class WarmPython:
    """Runs scripts alone, in a Python that has imported torch already."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("warm_python.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=environment(folder), text=True, **pipes)

    def load(self, *modules: str) -> None:
        """Import more, for all scripts that follow."""
        self._process.stdin.write(json.dumps({"import": modules}) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "0\n"

    def run(self, folder: Path, script: str, *arguments: str, **env: str) -> str:
        """Run one to its end and give what it printed."""
        code, printed = self.end_of(folder, script, *arguments, **env)
        assert code == 0, f"{code}: {printed}"
        return printed

    def end_of(self, folder: Path, script: str, *arguments: str, **env: str) -> tuple[int, str]:
        """Run one to its end, good or bad: its exit code, that of a signal being negative, and what it printed."""
        self._process.stdin.write(json.dumps([str(folder), env, script, *arguments]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()), (folder / "printed").read_text()

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait(600)
        self._process.stdout.close()


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
    """What a watched script saved and printed, and what was recorded of it."""

    story: dict[str, Any]
    printed: str
    recorded: Recorded


class Training:
    """One script and its arguments, run the three ways; without a warm Python, each in a process of its own."""

    def __init__(
        self, folder: Path, launcher: tuple[str, ...], words: list[str], *, warm: WarmPython | None, by_command: bool
    ) -> None:
        self._folder, self._launcher, self._words, self._warm = folder, launcher, words, warm
        self._started: dict[str, Process] = {}
        if by_command:
            command = [*HOLDFAST, "run", "--folder", str(folder), "--name", "full", "--"]
            self._start("full", command, HOLDFAST_SAMPLING="full", HOLDFAST_DEBUG="raise")
        if warm is None:
            self._start("default", [], **self._watching("default"))

    @cached_property
    def alone(self) -> dict[str, Any]:
        """What the script says without Holdfast."""
        return self._run("alone")[0]

    @cached_property
    def watched(self) -> Outcome:
        """The same, watched as by default."""
        return self._outcome("default", {})

    @cached_property
    def full(self) -> Outcome:
        """The same with every module and parameter sampled at every step."""
        return self._outcome("full", {"HOLDFAST_SAMPLING": "full"})

    @property
    def recorded(self) -> Recorded:
        """What was recorded as by default."""
        return self.watched.recorded

    @property
    def recorded_in_full(self) -> Recorded:
        """What was recorded with everything sampled."""
        return self.full.recorded

    def close(self) -> None:
        """End what still runs."""
        for process in self._started.values():
            process.close()

    def _outcome(self, how: str, env: dict[str, str]) -> Outcome:
        if how not in self._started:
            env = {**self._watching(how), **env}
        story, printed = self._run(how, **env)
        return Outcome(story, printed, Recorded(RunFolder.open(self._folder / how)))

    def _run(self, how: str, **env: str) -> tuple[dict[str, Any], str]:
        """Run the script, or wait for it where it has been started."""
        if self._warm is not None and how not in self._started:
            printed = self._warm.run(self._place(how), *self._with_path(how), **env)
        else:
            printed = (self._started.get(how) or self._start(how, [], **env)).wait()
        return load_story(self._folder / f"from-{how}"), printed

    def _start(self, how: str, before: list[str], **env: str) -> Process:
        process = Process([*before, *self._launcher, *self._with_path(how)], self._place(how), **env)
        self._started[how] = process
        return process

    def _watching(self, how: str) -> dict[str, str]:
        run = RunFolder.create(self._folder, how)
        return {"HOLDFAST_RUN": str(run.path), "PYTHONPATH": str(SITE), "HOLDFAST_DEBUG": "raise"}

    def _place(self, how: str) -> Path:
        place = self._folder / f"from-{how}"
        place.mkdir()
        return place

    def _with_path(self, how: str) -> list[str]:
        script, *arguments = self._words
        return [script, str(self._folder / f"from-{how}" / "story.pt"), *arguments]


class Trainings:
    """All trainings of a test session, each run once."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder = make_folder
        self._known: dict[tuple[Any, ...], Training] = {}

    def __call__(self, script: str, *arguments: str, launcher: tuple[str, ...] = (sys.executable,)) -> Training:
        """The training of that script; `launcher` is what stands before it on the command line."""
        key = (script, arguments, launcher)
        if key not in self._known:
            is_first = script in BY_COMMAND and all(known[0] != script for known in self._known)
            is_cold = not {script, *arguments}.isdisjoint(IN_ITS_OWN_PROCESS) or launcher != (sys.executable,)
            self._known[key] = Training(
                self._make_folder(script),
                launcher,
                [str(TRAININGS / f"{script}.py"), *arguments],
                warm=None if is_cold else self.warm,
                by_command=is_first or is_cold,
            )
        return self._known[key]

    def close(self) -> None:
        """End what was started."""
        for training in self._known.values():
            training.close()
        if "warm" in vars(self):
            self.warm.close()

    @cached_property
    def warm(self) -> WarmPython:
        """Runs a script alone."""
        return WarmPython(self._make_folder("warm"))


def load_story(folder: Path) -> dict[str, Any]:
    """What a script has saved there."""
    story: dict[str, Any] = torch.load(folder / "story.pt", weights_only=False)
    return story


def assert_bit_equal(training: Training) -> None:
    """Nothing that the script computed differs between the three runs, in any bit, and Holdfast found no fault with itself."""
    differing = difference(training.alone, training.watched.story)
    assert differing is None, f"watched: {differing}"
    differing = difference(training.alone, training.full.story)
    assert differing is None, f"under holdfast run, all sampled: {differing}"
    assert [one for one in training.recorded.findings if not one["code"].startswith("non-finite-")] == []
    assert [one for one in training.recorded_in_full.findings if not one["code"].startswith("non-finite-")] == []


def recordings_of(training: Training) -> list[Recorded]:
    """What was recorded as by default, and with everything sampled."""
    return [training.recorded, training.recorded_in_full]


def assert_steps_are_the_scripts(training: Training) -> None:
    """Loss, norm and whatever else the script has kept step by step is in the `steps` table."""
    story = training.alone
    columns = {"epochs": "epoch", "samples": "samples", "backwards": "backwards", "skipped": "skipped", "scales": "scale"}
    for recorded in recordings_of(training):
        steps = recorded.steps
        assert steps["step"] == list(range(len(story["losses"])))
        assert steps["loss"] == pytest.approx(story["losses"], rel=1e-6, nan_ok=True)
        assert steps["grad_norm"] == pytest.approx(story["norms"], rel=1e-5, nan_ok=True)
        if "lr" in story:
            assert steps["lr"] == pytest.approx(story["lr"])
        for kept, column in columns.items():
            if kept in story:
                assert steps[column] == story[kept], column


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
