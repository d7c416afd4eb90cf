"""What to type to resume from a checkpoint: the lines for whoever wrote it, with the settings that were chosen."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.choose import new_folder

if TYPE_CHECKING:
    from holdfast.checkpoints.choosing.options import Option

_GIVEN = ("optimizer", "scheduler", "scaler")
_RATES = '("lr", "initial_lr", "max_lr", "min_lr")'  # what schedulers keep in the groups; OneCycleLR goes by its own alone


def lines_for(option: Option) -> list[str]:
    """Python that restores the option's checkpoint and applies its learning rate; none for a fresh start."""
    candidate = option.candidate
    if candidate is None:
        return []
    path, held = _quoted(candidate.path), candidate.summary.holds
    factor = option.settings.get("lr", {}).get("value")
    if candidate.producer == "holdfast":
        return _store(option, candidate.path)
    if candidate.producer == "ultralytics":
        return _ultralytics(option, path)
    if candidate.producer == "lightning" and not candidate.summary.weights_only:
        return _lightning(path, _quoted(option.folder or ""), factor)
    if candidate.producer == "transformers" and not candidate.summary.weights_only:
        return _trainer(path, _quoted(option.folder or ""), factor)
    if candidate.producer == "accelerate":
        return [f"accelerator.load_state({path})", *_lower(factor, schedule="scheduler" in held)]
    if candidate.producer == "deepspeed":
        return [f"engine.load_checkpoint({_quoted(candidate.path.parent)}, tag={_quoted(candidate.path.name)})", *_lower(factor)]
    given = "".join(f", {name}={name}" for name in _GIVEN if name in held)
    return [f"holdfast.load(model, {path}{given})", *_lower(factor, schedule="scheduler" in held)]


def command_for(command: Sequence[str], run: Path) -> str:
    """The command of the run before, as a run of its own under a name that is free."""
    words = shlex.join(str(word) for word in command)
    return f"holdfast run --name {shlex.quote(new_folder(run).name)} -- {words}"


def _store(option: Option, path: Path) -> list[str]:
    held = option.candidate.summary.holds if option.candidate is not None else frozenset()
    given = ", ".join(f"{name}={name}" for name in ("model", *_GIVEN, "ema", "loader") if name in held or name == "model")
    factor, new = option.settings.get("lr", {}).get("value"), (option.folder or path.parent) / "checkpoints"
    return [
        f"old = holdfast.CheckpointStore({_quoted(path.parent)})",
        f"old.restore({given}, at={_quoted(path)})",
        *_lower(factor, schedule="scheduler" in held),
        f"store = holdfast.CheckpointStore({_quoted(new)})  # what comes is saved here",
    ]


def _lower(factor: float | None, *, schedule: bool = False, scheduler: str = "scheduler") -> list[str]:
    """The learning rate is lowered after loading: optimizer and scheduler bring their own back."""
    if factor is None:
        return []
    lines = [
        "for group in optimizer.param_groups:  # after loading: that brings the old rate back",
        f"    group.update({{key: {factor:g} * group[key] for key in {_RATES} if key in group}})",
    ]
    if schedule:
        lines += [
            f'for one in getattr({scheduler}, "_schedulers", [{scheduler}]):',
            '    for name in ("base_lrs", "max_lrs"):',
            f"        setattr(one, name, [{factor:g} * rate for rate in getattr(one, name, [])])",
        ]
    return lines


def _lightning(path: str, folder: str, factor: float | None) -> list[str]:
    """The checkpoint is restored within `fit`: the rate is lowered by a callback after that."""
    begin = [
        "class Gentler(L.Callback):",
        "    def on_train_start(self, trainer, module):",
        "        for optimizer in trainer.optimizers:",
        *_indented(_lower(factor), 3),
        "        for scheduler in (config.scheduler for config in trainer.lr_scheduler_configs):",
        *_indented(_lower(factor, schedule=True)[2:], 3),
    ]
    callbacks = ", callbacks=[Gentler()]" if factor is not None else ""
    trainer = f"trainer = L.Trainer(default_root_dir={folder}{callbacks}, ...)"
    return [*(begin if factor is not None else []), trainer, f"trainer.fit(model, ckpt_path={path})"]


def _trainer(path: str, folder: str, factor: float | None) -> list[str]:
    begin = [
        "class Gentler(TrainerCallback):",
        "    def on_train_begin(self, args, state, control, optimizer, lr_scheduler, **_):",
        *_indented(_lower(factor, schedule=True, scheduler="lr_scheduler"), 2),
    ]
    callbacks = ", callbacks=[Gentler()]" if factor is not None else ""
    return [
        *(begin if factor is not None else []),
        f"args = TrainingArguments(output_dir={folder}, ...)",
        f"trainer = Trainer(args=args{callbacks}, ...)",
        f"trainer.train(resume_from_checkpoint={path})",
    ]


def _indented(lines: Sequence[str], times: int) -> list[str]:
    return ["    " * times + line for line in lines]


def _ultralytics(option: Option, path: str) -> list[str]:
    """`resume=True` takes all settings from the file, so a change of settings starts from its weights."""
    if not option.settings:
        return [f"YOLO({path}).train(resume=True)"]
    given = []
    rate = option.settings.get("lr", {})
    if "becomes" in rate:
        given.append(f"lr0={rate['becomes']:g}")
    elif rate:
        given.append(f"lr0={rate['value']:g} * OLD_LR0")
    if "warmup_epochs" in option.settings:
        given.append(f"warmup_epochs={option.settings['warmup_epochs']['value']}")
    if option.folder is not None:
        given.append(f"project={_quoted(option.folder.parent)}, name={_quoted(option.folder.name)}")
    return [f"YOLO({path}).train(data=..., {', '.join(given)})"]


def _quoted(value: Any) -> str:
    return json.dumps(str(value), ensure_ascii=False)
