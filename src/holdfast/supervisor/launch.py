"""Before a command starts: its run folder, and the environment that takes Holdfast into it.

Training always starts. A runs folder that cannot be written is replaced by one under the temporary folder, and if
there is none either, the command runs unwatched; the one line on stderr says which.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import UsageError
from holdfast.inside.policy import Policy
from holdfast.inside.scheduler_signal import VARIABLE
from holdfast.signals.run_folder import RunFolder, replace_text
from holdfast.signals.tracker_names import not_installed
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.command import Command
from holdfast.supervisor.facts import default_name, facts_at_start, is_elastic

_TORCHRUN = "SIGTERM,SIGINT,SIGQUIT"  # torchrun would end its ranks when the terminal goes away
_NEW_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
ELASTIC = "HOLDFAST_ELASTIC"  # see inside/run_checkpoints.py, which imports torch
PID_FILE = "supervisor.pid"  # whom a job signals, with `--resume`
SITE = Path(holdfast.__file__).resolve().parent / "inside" / "site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the options of `holdfast run` say; `budget` is a share of the step."""

    name: str | None = None
    folder: Path = Path("runs")
    policy: str = "observe"
    rules: Mapping[str, str] = field(default_factory=dict)
    patience: int | None = None
    budget: float = 0.01
    hang_after: str | None = None  # seconds, or `off`
    restarts: int = 3
    resume_args: str | None = None
    restart_args: str | None = None
    resume: bool = False  # continue the run of this name, and save and exit with 75 when a scheduler wants the machine back
    nodes: int = 1  # that work on this run together
    node: int = 0  # this one; 0 watches and judges for all
    join: str | None = None  # where the first node listens, if this one does not share its folder
    to: tuple[str, ...] = ()  # trackers
    notify: tuple[str, ...] = ()  # commands and addresses

    def __post_init__(self) -> None:
        if self.name is not None and not _usable(self.name):
            raise UsageError(
                f"{self.name!r} cannot be the name of a run: it becomes the name of a folder.",
                fix="use letters, digits, - and _: holdfast run --name first-try -- …",
            )


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that is ready to start; `run` is None when no folder could be made anywhere."""

    command: Command
    settings: Settings
    run: RunFolder | None
    line: str
    more: Mapping[str, str] = field(default_factory=dict)  # what a restart adds to the environment

    @property
    def apart(self) -> bool:
        """Whether the command gets a process group of its own: a scheduler's signals are for the supervisor alone."""
        return self.settings.resume and not os.isatty(0)

    @property
    def _elastic(self) -> dict[str, str]:
        """For ranks that torchrun restarts by itself. With gloo they would find the store of the ranks before them."""
        if not is_elastic(self.command.arguments, os.environ):
            return {}
        return {ELASTIC: "1", _NEW_STORE: os.environ.get(_NEW_STORE, "1")}

    def environment(self, streams: str = "") -> dict[str, str]:
        """The child's environment; without a run folder, the one we have."""
        if self.run is None:
            return dict(os.environ)
        return {
            **os.environ,
            "PYTHONPATH": _first_on_path(os.environ),
            "HOLDFAST_RUN": str(self.run.path),
            "HOLDFAST_POLICY": self.settings.policy,
            "HOLDFAST_RULES": ",".join(f"{code}={name}" for code, name in self.settings.rules.items()),
            "HOLDFAST_BUDGET": repr(self.settings.budget),
            "HOLDFAST_SUPERVISOR": str(os.getpid()),
            "HOLDFAST_STREAMS": streams,
            "PET_SIGNALS_TO_HANDLE": os.environ.get("PET_SIGNALS_TO_HANDLE", _TORCHRUN),
            **({VARIABLE: "1", "PET_SIGNALS_TO_HANDLE": "SIGINT,SIGQUIT"} if self.settings.resume else {}),
            **(self._elastic if self.settings.policy not in ("observe", "guard") else {}),
            **self.more,
        }


class RunInfo:
    """Changes to `run.json` from several threads of this process; a disk that refuses raises nothing."""

    def __init__(self, run: RunFolder) -> None:
        self._run, self._lock = run, threading.Lock()

    def note(self, **changes: Any) -> OSError | None:
        """Set some fields; returns the error of a disk that refuses."""
        with self._lock:
            try:
                if self._run.info():
                    self._run.update_info(**changes)
            except OSError as error:
                return error
        return None


def prepare(command: Command, settings: Settings) -> Launch:
    """Make the run folder, here or under the temporary folder, and word the one line."""
    name = settings.name or default_name(command.arguments, time.strftime("%m%d-%H%M%S"))
    started = facts_at_start(command.arguments, os.environ)
    settings = replace(settings, resume_args=_resume_args(settings, started))
    facts = {
        "holdfast": holdfast.__version__,
        "asked": settings.name,
        "policy": settings.policy,
        "rules": dict(settings.rules),
        "patience": settings.patience,
        "budget": settings.budget,
        "hang_after": settings.hang_after,
        "resume_args": settings.resume_args,
        "to": list(settings.to),
        "supervisor": os.getpid(),
        "started": time.time(),
        "ended": None,
        "exit_code": None,
        "pid": None,
        "nodes": settings.nodes if settings.nodes > 1 else None,
        **started,
    }
    try:
        run = _join(settings, name, facts) if settings.resume else RunFolder.create(settings.folder, name, **facts)
    except OSError as error:
        return _prepare_elsewhere(command, settings, name, facts, error)
    taken = "" if run.name == name else f" (the name {name} was taken)"
    number = f" (node {settings.node})" if settings.node else ""
    line = f"holdfast: run {run.name} in {_shown(run.path)}{number}{taken}{command.note}"
    missing = [
        f"\nholdfast: {package} is not installed: pip install {package}, then: holdfast sync {run.target} --to {package}"
        for package in not_installed(settings.to)
    ]
    return Launch(command, settings, run, line + "".join(missing))


def _join(settings: Settings, name: str, facts: dict[str, Any]) -> RunFolder:
    """The folder of a run that is started again, or by several nodes; what its first start was told stays."""
    run = RunFolder.join(settings.folder, name, **facts)
    if settings.node == 0:
        again = ("supervisor", "ended", "exit_code", "pid", "host", "nodes", "world_size")
        run.update_info(**{key: facts[key] for key in again if key in facts})
        replace_text(run.path / PID_FILE, f"{os.getpid()}\n")
    elif settings.join is not None:
        run.update_info(led_by=settings.join, ended=None, exit_code=None)
    return run


def _resume_args(settings: Settings, facts: Mapping[str, Any]) -> str | None:
    """How the script resumes: as this run was told, else as an earlier run of the same script was."""
    if settings.resume_args is not None or not Policy(settings.policy, settings.rules).heals:
        return settings.resume_args
    from holdfast.supervisor.resume import confirmed

    return confirmed(settings.folder, facts)


def _prepare_elsewhere(command: Command, settings: Settings, name: str, facts: dict[str, Any], why: OSError) -> Launch:
    reason = f"{settings.folder} cannot be written: {why.strerror or why}"
    try:
        run = RunFolder.create(Path(tempfile.mkdtemp(prefix="holdfast-runs-")), name, **facts)
    except OSError:
        return Launch(command, settings, None, f"holdfast: not watching this run, no folder can be written ({reason})")
    Trouble(run.journal).step_back(f"keeping the run in {settings.folder}", why)
    return Launch(command, settings, run, f"holdfast: run {run.name} in {run.path} ({reason})")


def _first_on_path(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with our folder first. An empty one stays empty behind it: a lone separator would mean `here`."""
    site = str(SITE)
    theirs = environment.get("PYTHONPATH", "")
    if theirs == site or theirs.startswith(site + os.pathsep):
        return theirs
    return site + os.pathsep + theirs if theirs else site


def _shown(path: Path) -> str:
    """The path as short as it can be typed from here."""
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd().resolve()))
    return str(path)


def _usable(name: str) -> bool:
    plain = name == name.strip() and name.isprintable() and "/" not in name and not name.startswith(".")
    return bool(name) and plain and name != "latest" and len(name.encode()) <= 200
