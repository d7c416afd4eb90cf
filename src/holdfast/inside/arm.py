"""Arm Holdfast in this process: once, when the script imports torch, or when `holdfast.watch` is called."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from io import TextIOWrapper
from pathlib import Path

from holdfast.inside.control.restarted import restarted
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.orphaned_output import stay_alive_without
from holdfast.inside.policy import Policy, read_rules
from holdfast.inside.runtime import Runtime
from holdfast.inside.scope import Scope
from holdfast.inside.taps.hooks import Hooks
from holdfast.signals.pulse import SAVING
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.stack_signal import answer_signal
from holdfast.signals.trouble import NOTHING_SEEN
from holdfast.state import report

_SAMPLING = {"full": frozenset(("parameters", "weights", "modules")), "modules": frozenset(("modules",))}
_MANY_GRADIENTS = 32  # that a script which trains computes


class Armed:
    """The one session of this process and its hooks; hooks are in place while there is something to record."""

    def __init__(self) -> None:
        self.runtime = Runtime()
        self._hooks: Hooks | None = None
        report.recorder = self
        os.register_at_fork(after_in_child=self.runtime.after_fork)
        atexit.register(self.close_all)

    def add(self, scope: Scope) -> None:
        """Begin to record into a scope; the newest is asked first."""
        self.runtime.scopes.insert(0, scope)
        if self._hooks is None:
            self._hooks = Hooks(self.runtime)
            self._hooks.install()
        elif scope.policy.acts and not self._hooks.guards:
            self._hooks.remove()
            self._hooks.install()

    def remove(self, scope: Scope) -> None:
        """End a scope, and take the hooks out with the last one."""
        self.runtime.close(scope)
        if not self.runtime.scopes and self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    # What saving and restoring have to know, `holdfast.state.report.Recorder`

    def recorded_run(self) -> RunFolder | None:
        """The run that is being recorded, if one is."""
        return self.runtime.scopes[0].run if self.runtime.scopes else None

    def state_loaded(self, origin: Mapping[str, str]) -> None:
        """A training resumes from a checkpoint."""
        if self.runtime.scopes:
            self.runtime.state_loaded()
        for scope in self.runtime.scopes:
            scope.origin = dict(origin)

    def while_saving(self) -> AbstractContextManager[None]:
        """While the training thread waits for a save."""
        return HEARTBEAT.during(SAVING)

    def while_unseen(self) -> AbstractContextManager[None]:
        """While optimizer steps are made that are not the training's."""
        return self._hooks.unseen() if self._hooks is not None else contextlib.nullcontext()

    def close_all(self) -> None:
        """At the end of the process: write what is under way."""
        for scope in list(self.runtime.scopes):
            with contextlib.suppress(Exception):
                self._report_unseen(scope)
            with contextlib.suppress(Exception):
                self.remove(scope)

    def _report_unseen(self, scope: Scope) -> None:
        """A script that computes gradients and makes no step that can be seen must not pass for one that was watched."""
        calls = self.runtime.gradient_calls
        if calls >= _MANY_GRADIENTS and not scope.run.recordings():
            words = f"gradients were computed {calls:,} times with torch.autograd.grad or torch.func, and no optimizer stepped"
            scope.step_back(NOTHING_SEEN, RuntimeError(words))


_armed: Armed | None = None


def armed() -> Armed:
    """The one `Armed` of this process."""
    global _armed
    if _armed is None:
        _armed = Armed()
    return _armed


def _begin_others(names: str) -> None:
    """Call what else was asked for, as `module:function`, before our own hooks are hung in: a drill gets in beneath them."""
    for name in filter(None, names.split(",")):
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)()


def arm_from_environment() -> None:
    """Arm as `holdfast run` asked for. Never raises: a training must start whatever happens here."""
    try:
        _begin_others(os.environ.get("HOLDFAST_ALSO", ""))
        folder = os.environ.get("HOLDFAST_RUN")
        if not folder:
            return
        armed().runtime.registry.is_whole = True
        armed().add(
            Scope(
                RunFolder(Path(folder)),
                budget=float(os.environ.get("HOLDFAST_BUDGET") or 0.01),
                policy=Policy(os.environ.get("HOLDFAST_POLICY") or "observe", read_rules(os.environ.get("HOLDFAST_RULES", ""))),
                always_done=_SAMPLING.get(os.environ.get("HOLDFAST_SAMPLING", ""), frozenset()),
                follows_children=True,
            )
        )
        with contextlib.suppress(OSError):
            answer_signal(Path(folder) / FOLDER)  # first, for at the end it is the last to tidy up there
            listen(RunFolder(Path(folder)))
        restart = restarted()
        if restart is not None and restart.checkpoint is not None:
            from holdfast.inside.control.restarted import resume_with

            resume_with(restart.checkpoint)
        supervisor = os.environ.get("HOLDFAST_SUPERVISOR", "")
        if supervisor.isdigit():
            stay_alive_without(int(supervisor))
    except Exception as error:  # shields the start of the user's script
        if os.environ.get("HOLDFAST_DEBUG") == "raise":
            raise
        with contextlib.suppress(Exception):
            RunFolder(Path(os.environ["HOLDFAST_RUN"])).journal.write(
                "finding",
                code="holdfast-degraded",
                severity="warning",
                evidence={"what": "arming", "error": f"{type(error).__name__}: {error}"},
            )


FOLDER = "faults"
_kept: list[TextIOWrapper] = []  # faulthandler keeps the number of the file, not the file


def listen(run: RunFolder) -> None:
    """Have the stacks of a crash written to `faults/PID.txt`; an empty file is removed when the process ends well."""
    if faulthandler.is_enabled() or _kept:
        return
    folder = run.path / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{os.getpid()}.txt"
    file = path.open("w", encoding="utf-8")
    _kept.append(file)
    faulthandler.enable(file=file, all_threads=True)
    atexit.register(_remove_if_empty, path, os.getpid())


def _remove_if_empty(path: Path, pid: int) -> None:
    with contextlib.suppress(OSError):
        if pid == os.getpid() and path.stat().st_size == 0:
            path.unlink()
