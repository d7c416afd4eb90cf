"""From which checkpoint the next attempt continues, and how it is passed on: arguments and the environment.

A script that saves by itself resumes from its own newest file that is whole and finite. One that never saved resumes from what
Holdfast has kept under `heal`: see inside/control/fast_forward.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.environment.scratch import offline_trackers
from holdfast.errors import HoldfastError, UsageError
from holdfast.recovery.restart import Changes
from holdfast.signals.lineage import mark_of, same_script
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.supervisor.attempts import under_way

if TYPE_CHECKING:
    from holdfast.checkpoints.manifest import Kept

_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_OF_TRAINER = re.compile(r"checkpoint-\d+")
_BESIDE = 200  # files of a folder that are looked at
_NAMES = ("checkpoint", "step", "attempt", "workers", "parts", "lr_factor")
_LOOKED_AT = 8  # files at most: verifying reads all of them
_SAVES = 32  # files of the script whose steps a restarted script gets
_ROWS = 400_000  # of the table of steps that are read


@dataclass(frozen=True, slots=True)
class Origin:
    """What the next attempt resumes from: `path` is the script's own, `kept` Holdfast's, which a script cannot load."""

    path: Path | None = None
    step: int | None = None
    kept: Path | None = None
    kept_step: int | None = None
    kept_in: Path | None = None  # the folder of those of the training that was under way, of several
    before: int | None = None  # states of this step and later ones are not trusted
    place: int = 0  # of the training that saved `path` among those of the script


def find_origin(run: RunFolder, *, before: int | None = None) -> Origin:
    """The newest clean checkpoints of a run, from before step `before` if that is given."""
    path, step = next(_clean(run, saved_by_the_script(run), before), (None, None))
    newest = under_way(run.recordings())[:1]
    kept_in = run.path / str(newest[0].info().get("checkpoints") or "checkpoints") if newest else None
    kept, kept_step = next(_clean(run, _kept_by_holdfast(run, kept_in), before), (None, None))
    return Origin(path, step, kept, kept_step, kept_in, before, _place_of(run, path) if path is not None else 0)


def _place_of(run: RunFolder, path: Path) -> int:
    """How many trainings of the script had begun before the one that saved this file, or files into this folder."""
    rows = [row for row in run.journal if row.get("event") == "saved" and row.get("path") and row.get("recording")]
    saved_by = [row["recording"] for row in rows if (saved := Path(str(row["path"]))) == path or path in saved.parents]
    mine = [recording for recording in run.recordings() if recording.name in saved_by[-1:]]
    return int(mine[0].info().get("place") or 0) if mine else 0


def confirmed(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """How a script resumes, as a run of it in this folder was last told with `--resume-args`; "" takes that back."""
    templates = (run.info().get("resume_args") for run in runs_of(folder, facts))
    return next((template for template in templates if isinstance(template, str)), None)


def runs_of(folder: Path, facts: Mapping[str, Any]) -> list[RunFolder]:
    """The runs of a script in a folder, the newest first; `facts` are what `run.json` says of its command."""
    runs = []
    for path in folder.glob("*/run.json"):
        with contextlib.suppress(OSError, HoldfastError):
            run = RunFolder.open(path.parent)
            if not path.parent.is_symlink() and same_script(facts, run.info()):
                runs.append((float(run.info().get("started") or 0.0), run))
    return [run for _, run in sorted(runs, key=lambda dated: -dated[0])]


def saved_by_the_script(run: RunFolder) -> list[Path]:
    """Files that the script has saved, the newest first; a trainer's folder stands for the files in it.

    Many scripts save under another name and rename: so all that was written since where something was saved is looked at.
    """
    ours, since = run.path / "checkpoints", float(run.info().get("started") or 0.0)
    saves: dict[Path, float] = {}
    for row in run.journal:
        if row.get("kind") == "checkpoint" and row.get("event") == "saved" and row.get("path") and row.get("by") != "guard":
            path = _whole(Path(str(row["path"])))
            for file in (path, *_beside(path)):
                if file not in saves and not file.is_relative_to(ours):
                    saves[file] = changed(file)
    saved = [kept.path for kept in _store_of(run) if kept.manifest.get("made_by") != "guard"]
    saves |= {path: changed(path) for path in saved}
    return sorted((path for path, at in saves.items() if at >= since), key=lambda path: -saves[path])


def _beside(path: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [file for file in path.parent.iterdir() if _is_alike(file, path)][:_BESIDE]
    return []


def _is_alike(file: Path, path: Path) -> bool:
    """Whether something may be a checkpoint, by its name, where `path` is one."""
    if file.suffix in _SUFFIXES or (path.suffix and file.suffix == path.suffix):
        return True
    return not path.suffix and is_of_trainer(file)


def changed(path: Path) -> float:
    """When a file was written last; before all times if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0


def _whole(path: Path) -> Path:
    """The folder `checkpoint-500` of the Hugging Face trainer, of which one file was saved; else the file itself."""
    return path.parent if is_of_trainer(path.parent) else path


def is_of_trainer(path: Path) -> bool:
    """Whether it is named as the Hugging Face trainer names the folders of its checkpoints."""
    return _OF_TRAINER.fullmatch(path.name) is not None


def _kept_by_holdfast(run: RunFolder, folder: Path | None) -> list[Path]:
    return [kept.path for kept in reversed(_store_of(run, folder))]


def _store_of(run: RunFolder, folder: Path | None = None) -> list[Kept]:
    from holdfast.checkpoints.manifest import kept_in

    return kept_in(folder or run.path / "checkpoints")


def _clean(run: RunFolder, paths: Iterable[Path], before: int | None) -> Iterator[tuple[Path, int | None]]:
    from holdfast.checkpoints.clean import is_clean
    from holdfast.checkpoints.formats.open import open_checkpoint
    from holdfast.checkpoints.summary import summarise
    from holdfast.checkpoints.verify import verify

    for path in list(paths)[:_LOOKED_AT]:
        try:
            contents = open_checkpoint(path)
            verdict, summary = verify(contents), summarise(contents)
        except (HoldfastError, OSError):
            continue
        if summary.weights_only or not summary.holds & {"weights", "ema"}:  # the best model's weights, or no model at all
            continue
        step = step_of(run, path, summary.step)
        if is_clean(verdict) and (before is None or step is None or step < before):
            yield path, step


def step_of(run: RunFolder, path: Path, own: int | None) -> int | None:
    """The step of a checkpoint: as the journal saw it saved, else as it says itself, else how far the run was at that moment."""
    mark = mark_of(path)
    for row in run.journal if mark is not None else ():
        if row.get("event") == "saved" and row.get("mark") == mark and isinstance(row.get("step"), int):
            return int(row["step"])
    if own is not None:
        return own
    newest = sorted(run.recordings(), key=lambda recording: (recording.rank, -recording.part))
    return next((made for recording in newest if (made := steps_until(recording, changed(path))) is not None), None)


def _steps_of_saves(run: RunFolder) -> dict[str, int]:
    """What the script has saved lately, and at which steps: it may resume from another one than the chosen."""
    steps = {str(path): step_of(run, path, None) for path in saved_by_the_script(run)[:_SAVES]}
    return {path: step for path, step in steps.items() if step is not None}


def _reached(run: RunFolder) -> int | None:
    """How many steps the attempts so far have made."""
    return max((made for recording in run.recordings() if (made := steps_until(recording, math.inf))), default=None)


def steps_until(recording: Recording, moment: float) -> int | None:
    """How many steps a training had made at a moment; None before its first."""
    from holdfast.probe.rows import last_rows

    rows = last_rows(recording.path, "steps", ("step", "time"), _ROWS)
    made = rows["step"][rows["time"] <= moment]
    return int(made[-1]) + 1 if len(made) else None


def arguments(template: str | None, facts: Mapping[str, Any], *, needs: str | None = None) -> list[str]:
    """The words of a template such as `--resume {checkpoint}`; none while something that it names is not known."""
    if not template or (needs is not None and facts.get(needs) is None):
        return []
    argv = [word.format(**{name: facts.get(name) for name in _NAMES}) for word in shlex.split(template)]
    return [] if any(facts.get(name) is None for name in names_in(template)) else argv


def names_in(template: str) -> list[str]:
    """What a template names; one that is not known is an error in words."""
    import string

    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise UsageError(f"{template!r} cannot be read: {error}.", fix='--resume-args "--resume {checkpoint}"') from None
    for name in names:
        if name not in _NAMES:
            raise UsageError(f"{template!r} names {{{name}}}, which is unknown.", fix=f"use {{{'}, {'.join(_NAMES)}}}")
    return names


def environment(run: RunFolder, origin: Origin, changes: Changes, attempt: int) -> dict[str, str]:
    """What a later attempt finds in its environment; the first has none of it."""
    trackers = offline_trackers(run.path / "trackers") if changes.trackers_offline else {}
    variables: dict[str, Any] = {
        "HOLDFAST_ATTEMPT": attempt,
        "HOLDFAST_CHECKPOINT": origin.path,
        "HOLDFAST_CHECKPOINT_STEP": origin.step,
        "HOLDFAST_CHECKPOINT_PLACE": origin.place or None,
        "HOLDFAST_SAVED": json.dumps(saved) if (saved := _steps_of_saves(run)) else None,
        "HOLDFAST_REACHED": _reached(run),
        "HOLDFAST_KEPT": origin.kept,
        "HOLDFAST_KEPT_STEP": origin.kept_step,
        "HOLDFAST_KEPT_IN": origin.kept_in,
        "HOLDFAST_BEFORE": origin.before,
        "HOLDFAST_WORKERS": changes.workers,
        "HOLDFAST_MICRO_BATCHES": changes.parts if changes.parts > 1 else None,
        "HOLDFAST_LR_FACTOR": changes.lr_factor if changes.lr_factor != 1.0 else None,
        "HOLDFAST_LR_LIMIT": changes.lr_limit,
        "HOLDFAST_CATCH_UP": changes.catch_up or None,
    }
    return trackers | {name: str(value) for name, value in variables.items() if value is not None}
