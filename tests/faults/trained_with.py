"""Trainings of the integrations' victims: run alone or under a run, and what was recorded of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_run import VICTIMS, typed
from watched_training import SITE, Recorded, WarmPython

from holdfast.signals.run_folder import RunFolder

KILLED = -9


@contextmanager
def python_with(folder: Path, *modules: str) -> Iterator[WarmPython]:
    """A Python that has imported these."""
    warm = WarmPython(folder)
    try:
        warm.load(*modules)
        yield warm
    finally:
        warm.close()


class Trained:
    """The trainings of one script, each in a folder of its own."""

    def __init__(self, warm: WarmPython, script: str, folder: Path) -> None:
        self._warm, self._script, self.folder = warm, str(VICTIMS / script), folder

    def end_of(self, place: str, *words: str, joins: str | None = None, policy: str = "observe") -> tuple[int, dict[str, Any]]:
        """The exit code and what it printed last; `joins`: the name of a run as `holdfast run` would have made it."""
        folder, env = self.folder / place, {"HF_HUB_OFFLINE": "1"}
        folder.mkdir(exist_ok=True)
        if joins is not None:
            run = RunFolder.create(folder / "runs", joins)
            env |= {"HOLDFAST_RUN": str(run.path), "PYTHONPATH": str(SITE), "HOLDFAST_DEBUG": "raise", "HOLDFAST_POLICY": policy}
        code, printed = self._warm.end_of(folder, self._script, *words, **env)
        last = printed.strip().splitlines()[-1] if printed.strip() else ""
        assert code in (0, KILLED), printed
        return code, json.loads(last) if code == 0 else {}

    def recorded(self, place: str, name: str) -> Recorded:
        """What was recorded of a run."""
        return Recorded(RunFolder.open(self.folder / place / "runs" / name))

    def runs(self, place: str) -> list[str]:
        """The names of the runs in a place."""
        return sorted(path.parent.name for path in (self.folder / place).glob("runs/*/run.json") if not path.parent.is_symlink())

    def listed(self, place: str, name: str) -> dict[str, str]:
        """The checkpoints that `holdfast checkpoints list RUN` shows: name and state."""
        done = typed("checkpoints", "list", name, "--json", folder=self.folder / place)
        return {Path(row["path"]).name: row["state"] for row in json.loads(done.stdout)}


def cut_short(path: Path) -> None:
    """Leave the first half of a file, as a job that is killed in the middle of a save does."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def verified(recorded: Recorded) -> list[str]:
    """The checkpoints that were verified during the run."""
    return [Path(row["path"]).name for row in recorded.run.journal if row.get("event") == "verified"]


@dataclass(frozen=True)
class Resumed:
    """A training of 30 steps in 3 epochs, and the same one killed at step 17 and resumed; its newest checkpoint is torn."""

    trained: Trained
    whole: dict[str, Any]
    resumed: dict[str, Any]
    origin: str  # of the resumed one

    @property
    def joined(self) -> Recorded:
        """What was recorded of the whole training, into the run that was there."""
        return self.trained.recorded("uninterrupted", "all")

    def own(self, name: str) -> Recorded:
        """What was recorded of the resumed one, into a run of its own."""
        return self.trained.recorded("killed", name)


def resumed_after_a_kill(trained: Trained, newest: str) -> Resumed:
    """Train all of it, then with a kill; `newest` is the file of the newest checkpoint that is cut short."""
    _, whole = trained.end_of("uninterrupted", joins="all")
    assert trained.end_of("killed", "--kill-at", "17")[0] == KILLED
    cut_short(trained.folder / "killed" / newest)
    _, resumed = trained.end_of("killed", "--resume")
    assert whole.pop("from") is None
    return Resumed(trained, whole, resumed, resumed.pop("from"))


def steps_and_epochs(recorded: Recorded, metric: str) -> list[tuple[int, int]]:
    """Where a metric was evaluated."""
    return [(row["step"], row["epoch"]) for row in recorded.table("evaluations").where(name=metric, split="val")]
