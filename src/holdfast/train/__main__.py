"""`python -m holdfast.train TASK …`: the process that trains. `holdfast train` starts it under a supervisor, one per device."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoints.write import best_checkpoint
from holdfast.errors import CannotRestore, DiskFull, HoldfastError, UsageError
from holdfast.train.arguments import Arguments, parse
from holdfast.train.detect import ultralytics
from holdfast.train.settings import DetectSettings
from holdfast.train.tasks import TASKS


def main(argv: Sequence[str]) -> int:
    """Train as the words say; the exit code."""
    try:
        arguments = parse(argv)
        return train(arguments)
    except HoldfastError as error:
        return _say(error)
    except Exception as error:
        if (full := os.strerror(errno.ENOSPC)) not in str(error):
            raise
        return _say(DiskFull(f"{full}: {' '.join(str(error).split())}.", fix="free some space, then: holdfast resume"))


def _say(error: HoldfastError) -> int:
    print(f"error: {error.problem}\n  fix: {error.fix}", file=sys.stderr, flush=True)
    return error.exit_code


def train(arguments: Arguments) -> int:
    """One training in this process."""
    if ultralytics.trains(arguments.settings):
        return _become_ultralytics(arguments.settings, arguments.resume)
    from holdfast.train.batch_size import decided
    from holdfast.train.devices import place
    from holdfast.train.loop import Training

    with place(arguments.settings.device) as here:
        task = TASKS[arguments.task].task(arguments.settings, here)
        settings = decided(task, getattr(task, "settings", arguments.settings), here)  # with what the task has measured
        try:
            Training(task, settings, here).fit(resume_from=arguments.resume)
        except CannotRestore as error:
            raise _other_model(arguments, error) from None
    return 0


def _other_model(arguments: Arguments, error: CannotRestore) -> HoldfastError:
    """Why a run cannot be resumed with this data; its weights can still be used."""
    source, settings = arguments.resume, arguments.settings
    if source is None or not isinstance(settings, DetectSettings) or "class_embed" not in error.problem:
        return error
    weights = best_checkpoint(source / "checkpoints") or source
    options = f"--architecture {settings.architecture} --weights {weights} --data {settings.data}"
    problem = f"{source} was trained with another number of classes than {settings.data} has."
    return UsageError(problem, fix=f"keep its weights, with new class heads: holdfast train detect {options}")


def _become_ultralytics(settings: DetectSettings, resume: Path | None) -> int:
    """Ultralytics takes the place of this process; it resumes where this run or the resumed one has a checkpoint of it."""
    run = Path(os.environ.get("HOLDFAST_RUN") or Path(settings.project, settings.name or "detect"))
    run.mkdir(parents=True, exist_ok=True)
    settings.write(run / "settings.yaml")
    folder = run / "ultralytics"
    if resume is not None and not folder.exists():
        shutil.copytree(resume / "ultralytics", folder)
    before = os.environ.get("HOLDFAST_BEFORE", "")
    saved = ultralytics.newest(folder, int(before) if before.isdigit() else None)
    if saved is not None and (not saved.epochs or saved.epochs >= settings.epochs):
        return _is_finished(settings, resume, saved.file)
    command = ultralytics.command(settings, folder, resume=saved.file if saved is not None else None)
    for line in ultralytics.remarks(settings):
        print(f"holdfast: {line}", flush=True)
    ultralytics.cut_results(folder, saved.epochs if saved is not None else 0)
    if saved is not None:
        print(f"holdfast: resumes after epoch {saved.epochs} from {saved.file}, with the settings stored there", flush=True)
    return os.execv(command[0], command)


def _is_finished(settings: DetectSettings, resume: Path | None, weights: Path) -> int:
    """All epochs are done. A process that died after the last one has nothing left to do; more epochs cannot be added."""
    if resume is None:
        last = weights.with_name("last.pt")
        if weights != last:  # it was torn
            shutil.copy2(weights, last)
        print(f"holdfast: the training is finished: {last}", flush=True)
        return 0
    options = f"--architecture {settings.architecture} --weights {weights} --data {settings.data}"
    problem = "Ultralytics has finished this training, and cannot add epochs to it."
    raise UsageError(problem, fix=f"train on from its weights: holdfast train detect {options}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
