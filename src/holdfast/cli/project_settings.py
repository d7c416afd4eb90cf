"""Settings of `holdfast run` beside its flags: HOLDFAST_* variables, then the table [run] of `holdfast.toml` in the project.

[run]
policy = "heal"
to = ["tensorboard"]
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.environment.check import Check

FILE = "holdfast.toml"
_NOT_HERE = ("help", "name", "nodes", "resume")  # of one run


def with_project(options: Sequence[str], option_names: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """The options, with what the environment and the file add in front; `option_names` are the names of all options."""
    typed = {word.partition("=")[0] for word in options}
    more = [word for name, (values, _) in in_force(option_names, environment).items() if name not in typed for word in values]
    return [*more, *options]


def in_force(option_names: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, tuple[list[str], str]]:
    """What is set without a flag: for each option its words, and where they come from."""
    settings: dict[str, tuple[list[str], str]] = {}
    file = find_file(Path.cwd())
    if file is not None:
        for name, value in _read(file, option_names).items():
            values = value if isinstance(value, list) else [value]
            settings[f"--{name}"] = [f"--{name}={item}" for item in values], file.name
    for option in option_names if "HOLDFAST_RUN" not in environment else ():  # in a run they are those of its own
        variable = f"HOLDFAST_{option.strip('-').replace('-', '_').upper()}"
        if option[2:] not in _NOT_HERE and (text := environment.get(variable)):
            settings[option] = [f"{option}={line}" for line in text.splitlines()], variable
    return settings


def find_file(folder: Path) -> Path | None:
    """The file in this folder or above it, up to the top of the project."""
    for place in (folder, *folder.parents):
        if (place / FILE).is_file():
            return place / FILE
        if (place / ".git").exists():
            break
    return None


def check(option_names: Sequence[str], defaults: Mapping[str, Any]) -> Check:
    """`holdfast doctor` reports what is in force, and a file that cannot be used."""
    from holdfast.environment.check import Check, Fix, Verdict, ok, problem

    def ask(_machine: object) -> Verdict:
        try:
            settings = in_force(option_names)
        except UsageError as error:
            return problem(error.problem, Fix(error.fix))
        parts = [
            f"{' '.join(word.lstrip('-').replace('=', ' ', 1) for word in options)} ({where})"
            for options, where in settings.values()
        ]
        parts += [
            f"{name.replace('_', '-')} {value}" for name, value in defaults.items() if f"--{name}" not in settings and value
        ]
        return ok(f"holdfast run: {', '.join(parts)}")

    return Check(name="settings", asks="what holdfast run is set to", ask=ask)


def _read(file: Path, option_names: Sequence[str]) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be read: {error}.", fix='write it as TOML: [run] on a line, then policy = "heal"'
        ) from None
    for table in content:
        if table != "run":
            raise UsageError(f"{file} has an unknown table [{table}].", fix="put the options of holdfast run under [run]")
    names = [option[2:] for option in option_names if option[2:] not in _NOT_HERE]
    for name in content.get("run", {}):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            fix = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(names)}"
            raise UsageError(f"{file} sets {name!r}, which is not an option of holdfast run.", fix=fix)
    return dict(content.get("run", {}))
