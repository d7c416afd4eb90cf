"""Run a saved step again: the run's own command, with the saved batch and weights, up to the update that was bad."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.environment.scratch import started_inside
from holdfast.errors import HoldfastError, UsageError
from holdfast.signals.run_folder import Recording, RunFolder

_FOLDER = "batches"
_TAIL = 12  # lines of output that are shown when the script fails


@dataclass(frozen=True, slots=True, order=True)
class SavedStep:
    """A step whose batch was kept; `recording` is the rank's, None in a folder that belongs to none."""

    step: int
    rank: int
    path: Path
    recording: Recording | None

    def facts(self) -> dict[str, Any]:
        """What the file beside it says: indices, data set, what was skipped."""
        try:
            content = json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def saved_steps(run: RunFolder) -> list[SavedStep]:
    """All steps of a run that can be replayed, by step and rank."""
    places: list[tuple[Path, Recording | None]] = [(run.path / _FOLDER, None)]
    places += [(recording.path / _FOLDER, recording) for recording in run.recordings()]
    steps = []
    for folder, recording in places:
        for path in folder.glob("step-*.pt"):
            number = path.stem.removeprefix("step-")
            if number.isdecimal():
                steps.append(SavedStep(int(number), recording.rank if recording else 0, path, recording))
    return sorted(steps, key=lambda step: (step.step, step.rank, str(step.path)))


def choose(run: RunFolder, step: int | None, rank: int | None = None) -> list[SavedStep]:
    """The saved step that is meant, the first one if none is named: one file for each rank that has kept it."""
    saved = saved_steps(run)
    if not saved:
        raise _nothing_saved(run)
    fitting = [batch for batch in saved if step in (None, batch.step) and rank in (None, batch.rank)]
    if fitting:
        return [batch for batch in fitting if batch.step == fitting[0].step]
    steps = ", ".join(dict.fromkeys(f"{batch.step}" + (f" (rank {batch.rank})" if batch.rank else "") for batch in saved))
    which = "a step" if step is None else f"step {step}"
    which += f" of {run.name}" if rank is None else f" of rank {rank} of {run.name}"
    fix = f"holdfast replay {run.target} --step {saved[0].step}"
    raise UsageError(f"{which} is not saved; there are: {steps}.", fix=fix)


def _nothing_saved(run: RunFolder) -> UsageError:
    """Why no batch was saved, and what to do about that; never the policy that the run had."""
    info = run.info()
    if str(info.get("policy") or "observe") == "observe":
        again = shlex.join(map(str, info.get("command") or ("python", "train.py")))
        return UsageError(
            f"no batch of {run.name} is saved: under the policy observe no update is skipped, and no batch is kept.",
            fix=f"train with the policy guard: holdfast run --policy guard -- {again}",
        )
    rows = list(run.journal)
    skipped = [row for row in rows if row.get("kind") == "action" and row.get("action") == "skip-batch"]
    if not skipped:
        return UsageError(
            f"no batch of {run.name} is saved: none of its updates was skipped.",
            fix=f"see the findings: holdfast diagnose {run.target}",
        )
    findings = [row.get("evidence") or {} for row in rows if row.get("kind") == "finding"]
    not_saved = [str(missing) for evidence in findings for missing in (evidence.get("batch") or {}).get("not_saved") or ()]
    failed = [str(evidence["error"]) for evidence in findings if "what" in evidence and "error" in evidence]
    reason = next(iter((*not_saved, *failed)), "the batch did not come from a DataLoader")
    return UsageError(
        f"no batch of {run.name} is saved, though the update of step {skipped[0].get('step')} was skipped: {reason}.",
        fix=f"see the journal: holdfast journal {run.target}",
    )


def replay(run: RunFolder, saved: SavedStep, *, timeout: float) -> dict[str, Any]:
    """Start the command again, wait for the answer, and give it."""
    command, more = command_of(run, saved)
    folder = Path(str(run.info().get("cwd") or Path.cwd()))
    if not folder.is_dir():
        raise HoldfastError(f"{folder}, where the run was started, does not exist.", fix="put the script and its data back there")
    with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as place:
        result, log = Path(place) / "result.json", Path(place) / "output.log"
        variables = {"HOLDFAST_REPLAY": str(saved.path.resolve()), "HOLDFAST_REPLAY_RESULT": str(result)}
        environment = started_inside(os.environ, "holdfast.injected.replay:begin", Path(place), **more, **variables)
        environment["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled away from sight
        code = _run(command, folder, environment, log, timeout)
        printed = log.read_text(encoding="utf-8", errors="replace")
        try:
            answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise _failed(command, code, printed, "") from None
    if answer.get("problem"):
        raise _failed(command, code, printed, str(answer["problem"]))
    return answer


def command_of(run: RunFolder, saved: SavedStep) -> tuple[list[str], dict[str, str]]:
    """The words to start, and what they need in their environment. Of several ranks, the one that saved runs alone."""
    info = run.info()
    command = [str(word) for word in info.get("command") or ()]
    ranks = {recording.rank for recording in run.recordings()}
    if saved.recording is not None and (len(ranks) > 1 or (info.get("world_size") or 1) > 1):
        own = [str(word) for word in saved.recording.info().get("argv") or ()]
        if own and "-c" not in own[:3]:  # a child of `multiprocessing` cannot be started by itself
            return own, _alone()
    if not command:
        raise HoldfastError(f"{run.name} does not say how it was started.", fix="its run.json holds no command")
    if any("ipykernel" in word for word in command):
        raise HoldfastError(
            f"{run.name} was trained in a notebook, which cannot be started again.", fix="move the cells to a script"
        )
    interpreter = info.get("python")
    if isinstance(interpreter, str) and Path(interpreter).exists() and Path(command[0]).name.startswith(("python", "pypy")):
        command[0] = interpreter
    return command, {}


def _alone() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _run(command: Sequence[str], folder: Path, environment: dict[str, str], log: Path, timeout: float) -> int:
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise HoldfastError(
                f"{command[0]} cannot be started: {error.strerror}.", fix="activate the run's environment"
            ) from error
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise HoldfastError(
                f"the script did not reach its first update within {timeout:g} s.", fix=f"--timeout {timeout * 5:g}"
            ) from None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started, as far as it still runs: a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failed(command: Sequence[str], code: int, printed: str, problem: str) -> HoldfastError:
    last = [line for line in printed.splitlines() if line.strip()][-_TAIL:]
    shown = "".join(f"\n    {line}" for line in last)
    reason = problem or f"the script ended with code {code} before its first update"
    return HoldfastError(
        f"the step could not be replayed: {reason}.{' It printed:' if shown else ''}{shown}",
        fix=f"check that this still runs: {' '.join(command)}",
    )
