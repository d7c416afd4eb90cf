"""What to type to resume from a checkpoint: the lines for whoever wrote it, with the settings that were chosen."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.recovery.choosing.choose import new_folder
from holdfast.recovery.choosing.resume_flag import resume_command

if TYPE_CHECKING:
    from holdfast.recovery.choosing.options import Option

_RESTORED = ("optimizer", "scheduler", "scaler")
_RATES = '("lr", "initial_lr", "max_lr", "min_lr")'  # what schedulers keep in the groups; OneCycleLR goes by its own alone


def lines_for(option: Option) -> list[str]:
    """Python that restores the checkpoint of an option and applies its learning rate; none for a fresh start."""
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
    arguments = "".join(f", {name}={name}" for name in _RESTORED if name in held)
    return [f"holdfast.load(model, {path}{arguments})", *_lower(factor, schedule="scheduler" in held)]


class Commands(NamedTuple):
    """Lines for the shell."""

    start: str
    resumes: bool = False  # it names the checkpoint itself, so that the script stays as it is
    change: str = ""  # what changes the settings once it runs


def commands_for(option: Option, info: Mapping[str, Any], run: Path) -> Commands | None:
    """The command of the run before, as a run of its own under a name that is free; with the script's own flag, if it has one.

    `info` is what was recorded of the run.
    """
    command = [str(word) for word in info.get("command") or ()] if isinstance(info.get("command"), list) else []
    if not command:
        return None
    folder, name = Path(str(info.get("cwd") or Path.cwd())), shlex.quote(new_folder(run).name)
    resumed = None
    if option.candidate is not None and option.candidate.producer != "holdfast":
        path = option.candidate.path.resolve()
        resumed = resume_command(command, path.relative_to(folder) if path.is_relative_to(folder) else path, folder)
    elsewhere = "" if folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    start = f"{elsewhere}holdfast run --name {name} -- {shlex.join(resumed or command)}"
    settings = _live_settings(option) if resumed is not None else ""
    return Commands(start, resumed is not None, f"{elsewhere}holdfast set {settings} -t {name}" if settings else "")


def _live_settings(option: Option) -> str:
    factor, clip = (option.settings.get(name, {}).get("value") for name in ("lr", "clip_norm"))
    return " ".join((*([f"'lr*={factor:g}'"] if factor is not None else ()), *([f"clip={clip:g}"] if clip is not None else ())))


def _store(option: Option, path: Path) -> list[str]:
    held = option.candidate.summary.holds if option.candidate is not None else frozenset()
    arguments = ", ".join(f"{name}={name}" for name in ("model", *_RESTORED, "ema", "loader") if name in held or name == "model")
    factor, new = option.settings.get("lr", {}).get("value"), (option.folder or path.parent) / "checkpoints"
    return [
        f"old = holdfast.CheckpointStore({_quoted(path.parent)})",
        f"old.restore({arguments}, at={_quoted(path)})",
        *_lower(factor, schedule="scheduler" in held),
        f"store = holdfast.CheckpointStore({_quoted(new)})  # new checkpoints go here",
    ]


def _lower(factor: float | None, *, schedule: bool = False, scheduler: str = "scheduler") -> list[str]:
    """The learning rate is lowered after loading: optimizer and scheduler bring their own back."""
    if factor is None:
        return []
    lines = [
        "for group in optimizer.param_groups:  # after loading, which restores the old learning rate",
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
    arguments = []
    rate = option.settings.get("lr", {})
    if "becomes" in rate:
        arguments.append(f"lr0={rate['becomes']:g}")
    elif rate:
        arguments.append(f"lr0={rate['value']:g} * OLD_LR0")
    if "warmup_epochs" in option.settings:
        arguments.append(f"warmup_epochs={option.settings['warmup_epochs']['value']}")
    if option.folder is not None:
        arguments.append(f"project={_quoted(option.folder.parent)}, name={_quoted(option.folder.name)}")
    return [f"YOLO({path}).train(data=..., {', '.join(arguments)})"]


def _quoted(value: Any) -> str:
    return json.dumps(str(value), ensure_ascii=False)
