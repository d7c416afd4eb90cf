"""The words after `holdfast train`: a task, its settings, and how to start."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from holdfast.errors import UsageError
from holdfast.train.settings import DetectSettings, add_flags, read_settings

TASKS = {"detect": DetectSettings}
_HELP = "holdfast train detect --help lists all settings"


class _Parser(argparse.ArgumentParser):
    """What argparse does not understand is raised like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", fix=_HELP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What to train, and how to start."""

    task: str
    settings: DetectSettings
    validate: bool = True
    resume: Path | None = None


def parse(words: Sequence[str]) -> Arguments:
    """Read the words after `holdfast train`; `--help` prints and leaves."""
    parser = _Parser("holdfast train", allow_abbrev=False, description="Train with every safety on.")
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, kind in TASKS.items():
        task = tasks.add_parser(name, help=(kind.__doc__ or "").split(".")[0], allow_abbrev=False)
        task.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings; flags win")
        task.add_argument("--no-validate", action="store_true", help="do not check the data before training")
        task.add_argument("--resume", type=Path, metavar="CHECKPOINT", help=argparse.SUPPRESS)
        add_flags(task, kind)
    given, unknown = parser.parse_known_args(list(words))
    if unknown:
        raise _unknown(unknown[0], list(vars(given)))
    flags = {name: value for name, value in vars(given).items() if name not in ("task", "config", "no_validate", "resume")}
    settings = read_settings(TASKS[given.task], given.config, flags)
    if not settings.data:
        raise UsageError("which data?", fix=f"holdfast train {given.task} --data data.yaml")
    return Arguments(task=given.task, settings=settings, validate=not given.no_validate, resume=given.resume)


def parse_resume(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The name of a run, where there is one, and settings to change when it is resumed."""
    parser = _Parser("holdfast resume", allow_abbrev=False, add_help=False)
    parser.add_argument("run", nargs="?")
    add_flags(parser, DetectSettings)
    given, unknown = parser.parse_known_args(list(words))
    if unknown:
        raise _unknown(unknown[0], list(vars(given)))
    changes = {name: value for name, value in vars(given).items() if value is not None}
    return changes.pop("run", None), changes


def _unknown(word: str, names: Sequence[str]) -> UsageError:
    flags = ["--" + name.replace("_", "-") for name in names]
    near = difflib.get_close_matches(word.partition("=")[0].replace("_", "-"), flags, n=1)
    return UsageError(f"there is no option {word}.", fix=f"did you mean {near[0]}?" if near else _HELP)


def words_of(arguments: Arguments) -> list[str]:
    """The words that give the same settings again: only what differs from the defaults."""
    default = type(arguments.settings)(data="-").as_dict()
    words = [arguments.task]
    for name, value in arguments.settings.as_dict().items():
        flag = "--" + name.replace("_", "-")
        if value == default[name]:
            continue
        words += [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [flag, str(value)]
    return [*words, *(["--resume", str(arguments.resume)] if arguments.resume else [])]
