"""Run a training script alone or under Holdfast, in a folder of its own, and gather what it printed and what was journaled."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
LEAVES_ALONE = ("skip-batch", "clip", "save-checkpoint")  # what a single odd batch may lead to; all else changes the course


@dataclass
class Trial:
    """One run: what its last line said, how long it took, and its journal if it had one."""

    said: dict[str, Any]
    seconds: float
    exit_code: int
    journal: list[dict[str, Any]] = field(default_factory=list)
    errors: str = ""

    @property
    def actions(self) -> list[dict[str, Any]]:
        """Actions that were carried out."""
        return [entry for entry in self.journal if entry["kind"] == "action" and entry.get("state") == "done"]

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Findings that are more than a remark."""
        return [entry for entry in self.journal if entry["kind"] == "finding" and entry.get("severity") != "info"]

    @property
    def steps_lost(self) -> int:
        """Steps whose update was left out, or undone by going back."""
        lost: set[int] = set()
        for action in self.actions:
            if action["action"] == "skip-batch":
                lost.add(action["step"])
            if action["action"] == "roll-back":
                lost.update(range(action["settings"]["to"], action.get("at", action["step"])))
        return len(lost)

    def in_words(self) -> str:
        """The actions, one after the other, each with its step and what was set; repeated ones are counted."""
        counted: dict[str, list[int]] = {}
        for action in self.actions:
            settings = ", ".join(f"{key} {_short(value)}" for key, value in (action.get("settings") or {}).items())
            counted.setdefault(action["action"] + (f" ({settings})" if settings else ""), []).append(action["step"])
        return "; ".join(
            f"{what} at {steps[0]}" if len(steps) == 1 else f"{len(steps)} x {what} from {steps[0]}"
            for what, steps in counted.items()
        )


def run(script: str, *arguments: str, policy: str | None = None, timeout: float = 600, **environment: str) -> Trial:
    """Run `script` (relative to the benchmarks) to its end; with a policy, under `holdfast run`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "PYTHONPATH", "FAULT"))}
    single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(FOLDER / script), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        if policy is not None:
            holdfast = [sys.executable, "-m", "holdfast.cli.main", "run", "--folder", folder, "--name", "trial"]
            command = [*holdfast, "--policy", policy, "--", *command]
        begun = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env={**kept, **single, "XDG_RUNTIME_DIR": folder, **environment}, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        return Trial(_last_object(done.stdout), seconds, done.returncode, _journal(Path(folder) / "trial"), done.stderr[-2000:])


def _last_object(printed: str) -> dict[str, Any]:
    """The last line that is a JSON object; nothing where the script did not come that far."""
    for line in reversed(printed.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def _journal(run_folder: Path) -> list[dict[str, Any]]:
    from holdfast.signals.journal import Journal

    return list(Journal(run_folder / "journal.jsonl"))


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_between(page: Path, name: str, body: str) -> None:
    """Put `body` between the marks `<!-- NAME -->` and `<!-- end of NAME -->` of a page; NAME ends with the architecture."""
    name = f"{name}, {platform.machine()}"
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(begin, 1)
    page.write_text(before + begin + body + end + rest.split(end, 1)[1], encoding="utf-8")
