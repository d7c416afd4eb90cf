"""A training for other machines: what it needs, and the command that each node runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError

_PYTHON = re.compile(r"(.*/)?python[0-9.]*$")
_TORCHRUN = ("-m", "torch.distributed.run")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d{1,2}))?(?::(\d{1,2}))?$")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to run, on how many nodes with how many GPUs each; `gpus` is None where the engine decides."""

    command: tuple[str, ...]
    name: str
    nodes: int = 1
    gpus: int | None = None
    policy: str = "heal"
    folder: str = "runs"
    resume_args: str | None = None
    restarts: int = 3

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("there is no command to launch.", fix="add one: holdfast launch slurm -- python train.py")
        if not _FILE_NAME.match(self.name):
            raise UsageError(f"{self.name!r} cannot be the name of a job.", fix="use letters, digits, - and _: --name first-try")
        if self.policy in ("observe", "guard"):
            raise UsageError(f"the policy {self.policy} saves no checkpoint to resume from.", fix="--policy heal")

    @property
    def ranks_per_node(self) -> int:
        """One for each GPU, or a single one."""
        return self.gpus or 1

    def lines(self, run: str, rendezvous: Sequence[str]) -> list[list[str]]:
        """`holdfast run` for each node, in lines as a person would break them: options, launcher, script.

        `run` names the run; `rendezvous` tells torchrun where several nodes meet.
        """
        options = ["holdfast", "run", "--name", run, "--folder", self.folder, "--policy", self.policy, "--resume"]
        if self.resume_args is not None:
            options += ["--resume-args", self.resume_args]
        options += ["--nodes", str(self.nodes), "--restarts", "0"] if self.nodes > 1 else ["--restarts", str(self.restarts)]
        if self.nodes == self.ranks_per_node == 1:
            return [[*options, "--"], list(self.command)]
        where = ["--nnodes", str(self.nodes), *rendezvous] if self.nodes > 1 else ["--standalone"]
        launcher, script = self._launcher()
        return [[*options, "--"], [*launcher, *where, "--nproc-per-node", str(self.ranks_per_node)], script]

    def _launcher(self) -> tuple[list[str], list[str]]:
        first, rest = self.command[0], list(self.command[1:])
        if Path(first).name == "torchrun":
            return [first], rest
        if _PYTHON.match(first):
            return [first, *_TORCHRUN], rest[2:] if tuple(rest[:2]) == _TORCHRUN else rest
        if first.endswith(".py"):
            return ["python", *_TORCHRUN], list(self.command)
        problem = f"{first} cannot be started with torchrun, which several GPUs or nodes need."
        raise UsageError(problem, fix="give the script itself: -- python train.py")


def default_name(command: Sequence[str]) -> str:
    """The script's name without its ending."""
    scripts = [word for word in command if word.endswith(".py")]
    module = command[list(command).index("-m") + 1 :][:1] if "-m" in command else []
    stem = Path((scripts or module or list(command[:1]) or ["training"])[0]).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.") or "training"


class Shell(str):
    """A word whose variables the shell replaces: ours, never the user's."""

    __slots__ = ()


def quoted(arguments: Sequence[str]) -> str:
    """Words for the shell."""
    return " ".join(f'"{word}"' if isinstance(word, Shell) else shlex.quote(word) for word in arguments)


def script(lines: Sequence[Sequence[str]], before: str = "") -> str:
    """A command over several lines, as a shell reads it."""
    return " \\\n  ".join(([before] if before else []) + [quoted(line) for line in lines if line])


def as_yaml(resource: dict[str, Any]) -> str:
    """A file as a person would write it: in the given order, scripts over several lines."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Writes text of several lines as such."""

    Dumper.add_representer(
        str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
    )
    return str(yaml.dump(resource, Dumper=Dumper, sort_keys=False, width=10_000))


def seconds_of(text: str) -> int:
    """Slurm's time limits: minutes, H:MM:SS, M:SS, D-H, D-HH:MM:SS."""
    match = _TIME.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not a time limit.", fix="--time 4:00:00 is four hours, --time 1-12:00:00 a day and a half")
    days, *parts = match.groups()
    values = [int(part) for part in parts if part is not None]
    if days is not None:
        return int(days) * 86400 + sum(number * unit for number, unit in zip(values, (3600, 60, 1), strict=False))
    units = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(values)]
    return sum(number * unit for number, unit in zip(values, units, strict=True))
