"""The environment of a restarted process: where to resume, and what is different in this attempt.

HOLDFAST_ATTEMPT             2, 3, …
HOLDFAST_CHECKPOINT          the checkpoint for a script that loads it itself; HOLDFAST_CHECKPOINT_STEP
HOLDFAST_CHECKPOINT_PLACE    how many trainings the script had begun before the one whose checkpoint that is
HOLDFAST_SAVED               what the script has saved, and the step of each, for one that resumes from another: JSON
HOLDFAST_REACHED             how many steps the attempts before have made
HOLDFAST_KEPT                Holdfast's own checkpoint, for other scripts: see fast_forward.py; HOLDFAST_KEPT_STEP
HOLDFAST_KEPT_IN             the folder of those of the training that was under way, also if none of them can be used
HOLDFAST_BEFORE              the step before which the training went well, for a trainer that chooses a checkpoint itself
HOLDFAST_WORKERS             the maximum number of loader workers
HOLDFAST_MICRO_BATCHES       parts that a `@run.step` splits every batch into
HOLDFAST_LR_FACTOR           a factor on the learning rate
HOLDFAST_LR_LIMIT            what the learning rate must not jump above
HOLDFAST_CATCH_UP            "slowly": all passes run while it is fast-forwarded; "never": it is not
HOLDFAST_ELASTIC             1, also in a first attempt, if torchrun may restart the ranks by itself: see run_checkpoints.py
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from holdfast.inside.taps.imports import when_imported
from holdfast.inside.taps.loads import Loads
from holdfast.inside.taps.registry import Taps
from holdfast.state.parameters import parameters_of

ELASTIC = "HOLDFAST_ELASTIC"
_STATES = 16  # of an optimizer's parameters, that are looked at
_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The settings of a later attempt."""

    attempt: int
    checkpoint: str | None = None
    place: int = 0
    step: int | None = None
    saved: Mapping[str, int] = field(default_factory=dict)
    reached: int = 0
    kept: str | None = None
    kept_step: int | None = None
    kept_in: str | None = None
    workers: int | None = None
    parts: int = 1
    lr_factor: float = 1.0
    lr_limit: float | None = None
    catch_up: str = ""

    def loaded_by_script(self, paths: Iterable[str]) -> bool:
        """Whether one of these files is the checkpoint or inside it."""
        if self.checkpoint is None:
            return False
        checkpoint = Path(self.checkpoint)
        return any(Path(path) == checkpoint or checkpoint in Path(path).parents for path in paths)


@cache
def restarted() -> Restarted | None:
    """The settings of this process; None in a first attempt."""
    return read(os.environ)


def resumes_by_itself(loads: Loads, optimizer: Any, made: int = 0) -> bool:
    """Whether the script has loaded a state before its first step: the optimizer's, or weights that an attempt before has saved.

    A model that is pickled as a whole brings its optimizer along, with the counts of its updates. `made`: of those, here.
    """
    if loads.has_loaded(optimizer) or _updates_in(optimizer) > made:
        return True
    restart = restarted()
    parameters = parameters_of(optimizer) if hasattr(optimizer, "param_groups") else []
    return restart is not None and any(path in restart.saved for path in loads.files_of(parameters))


def step_loaded(paths: Sequence[str], optimizer: Any, *, resumes: bool, made: int = 0) -> int:
    """The step that a restarted script resumes from, if it loaded the chosen checkpoint or one that it saved earlier; else 0.

    `resumes`: by itself, so it is not fast-forwarded to the step of Holdfast's own checkpoint. From a file that
    is not known, the optimizer's state may show it: Adam and its like count their updates. A count beyond all that the attempts
    before have made is of another training, such as a pre-training. `made`: of those, in this process.
    """
    restart = restarted()
    if restart is None:
        return 0
    if restart.loaded_by_script(paths):
        return restart.step or 0
    steps = (restart.saved.get(path) for path in reversed(paths) if restart.kept is None or resumes)
    own = max(0, _updates_in(optimizer) - made) if resumes else 0
    return next((step for step in steps if step), own if own <= restart.reached else 0)


def _updates_in(optimizer: Any) -> int:
    held = getattr(optimizer, "state", None)
    states = [state for state in islice(held.values(), _STATES) if isinstance(state, dict)] if isinstance(held, dict) else ()
    counts = [torch.as_tensor(count) for state in states if isinstance(count := state.get("step"), (int, float, torch.Tensor))]
    return max((int(count) for count in counts if count.numel() == 1), default=0)


def read(environment: Mapping[str, str]) -> Restarted | None:
    """Read the settings from an environment; malformed values count as missing."""
    attempt = _int(environment.get("HOLDFAST_ATTEMPT"))
    if attempt is None or not environment.get("HOLDFAST_RUN"):
        return None
    return Restarted(
        attempt=attempt,
        checkpoint=environment.get("HOLDFAST_CHECKPOINT"),
        place=_int(environment.get("HOLDFAST_CHECKPOINT_PLACE")) or 0,
        step=_int(environment.get("HOLDFAST_CHECKPOINT_STEP")),
        saved=_steps(environment.get("HOLDFAST_SAVED")),
        reached=_int(environment.get("HOLDFAST_REACHED")) or 0,
        kept=environment.get("HOLDFAST_KEPT"),
        kept_step=_int(environment.get("HOLDFAST_KEPT_STEP")),
        kept_in=environment.get("HOLDFAST_KEPT_IN"),
        workers=_int(environment.get("HOLDFAST_WORKERS")),
        parts=_int(environment.get("HOLDFAST_MICRO_BATCHES")) or 1,
        lr_factor=_float(environment.get("HOLDFAST_LR_FACTOR")) or 1.0,
        lr_limit=_float(environment.get("HOLDFAST_LR_LIMIT")),
        catch_up=environment.get("HOLDFAST_CATCH_UP", ""),
    )


def cap_workers(taps: Taps, max_workers: int) -> None:
    """Limit the workers of every DataLoader created from now on; with 0, the options that need workers are dropped."""

    def capped(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(*args: Any, **kwargs: Any) -> None:
            arguments = inspect.signature(original).bind(*args, **kwargs).arguments
            num_workers = arguments.get("num_workers", 0)
            if isinstance(num_workers, int) and num_workers > max_workers:
                arguments["num_workers"] = max_workers
                for name in _WORKER_OPTIONS if max_workers == 0 else ():
                    arguments.pop(name, None)
            original(**arguments)

        return __init__

    taps.wrap("torch.utils.data.DataLoader.__init__", capped)


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _steps(text: str | None) -> dict[str, int]:
    try:
        return {path: step for path, step in json.loads(text or "{}").items() if isinstance(step, int)}
    except (ValueError, AttributeError):
        return {}


_TRAINERS = {  # module: class, method, argument, its position after `self`
    "transformers.trainer": ("Trainer", "train", "resume_from_checkpoint", 0),
    "lightning.pytorch.trainer.trainer": ("Trainer", "fit", "ckpt_path", 4),
    "pytorch_lightning.trainer.trainer": ("Trainer", "fit", "ckpt_path", 4),
}


def resume_with(checkpoint: str, is_its_own: Callable[[], bool]) -> None:
    """Have Hugging Face and Lightning trainers resume from a checkpoint of theirs, now or once imported."""
    when_imported(dict.fromkeys(_TRAINERS, lambda module: pass_checkpoint(module, checkpoint, is_its_own)))


def pass_checkpoint(module: ModuleType, checkpoint: str, is_its_own: Callable[[], bool] = lambda: True) -> None:
    """Wrap the trainer's method in an imported module to pass the checkpoint by default.

    `is_its_own` tells at each call whether the training that begins is the one whose checkpoint it is: not another fold or stage.
    Lightning reads only plain tensors unless told otherwise, and refuses the settings that its own models save. This script
    wrote the file itself, in the attempt before.
    """
    kind, method, argument, index = _TRAINERS[module.__name__]
    owner = getattr(module, kind, None)
    original = getattr(owner, method, None)
    if owner is None or original is None or not _is_readable_by(module.__name__, Path(checkpoint)):
        return

    reads_whole = {"weights_only": False} if "weights_only" in inspect.signature(original).parameters else {}

    @functools.wraps(original)
    def resumed(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) <= index and not kwargs.get(argument) and is_its_own():
            kwargs = {**reads_whole, **kwargs, argument: checkpoint}
        return original(trainer, *args, **kwargs)

    setattr(owner, method, resumed)


def _is_readable_by(module: str, checkpoint: Path) -> bool:
    if module.startswith("transformers"):
        return (checkpoint / "trainer_state.json").exists()
    return checkpoint.suffix == ".ckpt"
