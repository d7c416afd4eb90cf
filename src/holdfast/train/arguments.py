"""The words after `holdfast train`: a task, its settings, and how to start."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from holdfast.errors import UsageError
from holdfast.signals.tracker_names import read_trackers
from holdfast.train.settings import TrainSettings, add_flags, read_settings
from holdfast.train.tasks import TASKS


class _Parser(argparse.ArgumentParser):
    """What argparse does not understand is raised like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", fix=f"{self.prog} --help")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What to train, and how to start."""

    task: str
    settings: TrainSettings
    validate: bool = True
    resume: Path | None = None
    to: tuple[str, ...] = ()  # trackers
    notify: tuple[str, ...] = ()  # commands and addresses


def parse(argv: Sequence[str]) -> Arguments:
    """Read the words after `holdfast train`; `--help` prints and leaves."""
    parser = _Parser("holdfast train", allow_abbrev=False, description="Train with every safety on.")
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, kind in TASKS.items():
        task = tasks.add_parser(name, help=(kind.settings.__doc__ or "").split(".")[0], allow_abbrev=False)
        task.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings; flags win")
        task.add_argument("--no-validate", action="store_true", help="do not check the data before training")
        resumes = "continue from this run or checkpoint, with the settings given here; `holdfast resume` keeps those of the run"
        task.add_argument("--resume-from", "--resume", type=Path, metavar="CHECKPOINT", dest="resume", help=resumes)
        to = "send the run to a tracker: mlflow, tensorboard, trackio or wandb; repeatable"
        task.add_argument("--to", action="append", default=[], metavar="TRACKER", help=to)
        notify = "run a command, or POST to a URL, on a critical finding, on a restart and at the end; repeatable"
        task.add_argument("--notify", action="append", default=[], metavar="COMMAND|URL", help=notify)
        add_flags(task, kind.settings)
    arguments, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise _unknown(unknown[0], list(vars(arguments)), f"holdfast train {arguments.task} --help")
    own = ("task", "config", "no_validate", "resume", "to", "notify")
    flags = {name: value for name, value in vars(arguments).items() if name not in own}
    settings = read_settings(TASKS[arguments.task].settings, arguments.config, flags)
    if not settings.data:
        example = "--config sensors.yaml" if settings.STAGED else "--data data.yaml"
        raise UsageError("which data?", fix=f"holdfast train {arguments.task} {example}")
    resume: Path | None = arguments.resume
    if resume is not None:
        settings, resume = TASKS[arguments.task].begun(settings, resume)
    return Arguments(
        task=arguments.task,
        settings=settings,
        validate=not arguments.no_validate,
        resume=resume,
        to=read_trackers(arguments.to),
        notify=tuple(arguments.notify),
    )


def parse_resume(argv: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The name of a run, where there is one, and settings of any task to change when it is resumed."""
    parser = _Parser("holdfast resume", allow_abbrev=False, add_help=False, conflict_handler="resolve")
    parser.add_argument("run", nargs="?")
    for kind in TASKS.values():
        add_flags(parser, kind.settings)
    arguments, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise _unknown(unknown[0], list(vars(arguments)), "holdfast train TASK --help")
    changes = {name: value for name, value in vars(arguments).items() if value is not None}
    return changes.pop("run", None), changes


def _unknown(word: str, names: Sequence[str], help: str) -> UsageError:
    if not word.startswith("-") and Path(word).exists():
        return UsageError(f"{word} stands alone: what is it for?", fix=f"if it is the data set: --data {word}")
    flags = ["--" + name.replace("_", "-") for name in names]
    near = difflib.get_close_matches(word.partition("=")[0].replace("_", "-"), flags, n=1)
    return UsageError(f"there is no option {word}.", fix=f"did you mean {near[0]}?" if near else f"{help} lists all settings")


def argv_of(arguments: Arguments) -> list[str]:
    """The words that give the same settings again: only what differs from the defaults."""
    default = type(arguments.settings)(data="-").as_dict()
    argv = [arguments.task]
    for name, value in arguments.settings.as_dict().items():
        flag = "--" + name.replace("_", "-")
        if value == default[name]:
            continue
        value = json.dumps(value) if isinstance(value, dict) else value
        argv += [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [flag, str(value)]
    return [*argv, *(["--resume", str(arguments.resume)] if arguments.resume else [])]
