"""Arm Holdfast in this process: when the script imports torch under `holdfast run`, or at `holdfast.watch`."""

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
from holdfast.inside.scheduler_signal import VARIABLE, leave_sigterm_to_supervisor
from holdfast.inside.scope import Scope
from holdfast.inside.seeding import settle_vector_math
from holdfast.inside.taps.hooks import Hooks
from holdfast.signals.pulse import SAVING
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.stack_signal import answer_signal, remove_if_empty
from holdfast.signals.trouble import NOTHING_SEEN
from holdfast.state import report

_SAMPLING = {"full": frozenset(("parameters", "weights", "modules")), "modules": frozenset(("modules",))}
_MIN_GRADIENT_CALLS = 32  # of a script that trains


class Armed:
    """The runtime of this process and its hooks, which are installed while there is something to record."""

    def __init__(self) -> None:
        self.runtime = Runtime()
        self._hooks: Hooks | None = None
        report.recorder = self
        os.register_at_fork(after_in_child=self.runtime.after_fork)
        atexit.register(self.close_all)

    def add(self, scope: Scope) -> None:
        """Start to record into a scope; the newest scope has priority."""
        self.runtime.scopes.insert(0, scope)
        if self._hooks is None:
            settle_vector_math()
            self._hooks = Hooks(self.runtime)
            self._hooks.install()
        elif scope.policy.acts and not self._hooks.guards:
            self._hooks.remove()
            self._hooks.install()

    def remove(self, scope: Scope) -> None:
        """End a scope; the hooks go with the last one."""
        self.runtime.close(scope)
        if not self.runtime.scopes and self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    # The interface that saving and restoring use, `holdfast.state.report.Recorder`

    def recorded_run(self) -> RunFolder | None:
        """The run that is being recorded, if any."""
        return self.runtime.scopes[0].run if self.runtime.scopes else None

    def state_loaded(self, origin: Mapping[str, str]) -> None:
        """A training resumes from a checkpoint."""
        if self.runtime.scopes:
            self.runtime.state_loaded()
        for scope in self.runtime.scopes:
            scope.origin = dict(origin)

    def while_saving(self) -> AbstractContextManager[None]:
        """Show the phase `saving` while the training thread waits for a save."""
        return HEARTBEAT.during(SAVING)

    def close_all(self) -> None:
        """End all scopes at the end of the process."""
        for scope in list(self.runtime.scopes):
            with contextlib.suppress(Exception):
                self._report_no_steps(scope)
            with contextlib.suppress(Exception):
                self.remove(scope)

    def _report_no_steps(self, scope: Scope) -> None:
        """Report a script that computed gradients although no step was recorded: it was not watched."""
        calls = self.runtime.gradient_calls
        if calls >= _MIN_GRADIENT_CALLS and not scope.run.recordings():
            text = f"gradients were computed {calls:,} times with torch.autograd.grad or torch.func, and no optimizer stepped"
            scope.step_back(NOTHING_SEEN, RuntimeError(text))


_armed: Armed | None = None


def armed() -> Armed:
    """The one `Armed` of this process."""
    global _armed
    if _armed is None:
        _armed = Armed()
    return _armed


def _call_plugins(names: str) -> None:
    """Call each `module:function` of HOLDFAST_ALSO before our hooks are installed: a drill has to be beneath them."""
    for name in filter(None, names.split(",")):
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)()


def arm_from_environment() -> None:
    """Arm as `holdfast run` has set the environment. Never raises: the training must start in any case."""
    try:
        _call_plugins(os.environ.get("HOLDFAST_ALSO", ""))
        folder = os.environ.get("HOLDFAST_RUN")
        if not folder:
            return
        armed().runtime.registry.is_whole = True
        scope = Scope(
            RunFolder(Path(folder)),
            budget=float(os.environ.get("HOLDFAST_BUDGET") or 0.01),
            policy=Policy(os.environ.get("HOLDFAST_POLICY") or "observe", read_rules(os.environ.get("HOLDFAST_RULES", ""))),
            always_done=_SAMPLING.get(os.environ.get("HOLDFAST_SAMPLING", ""), frozenset()),
            follows_children=True,
        )
        armed().add(scope)
        with contextlib.suppress(OSError):
            answer_signal(Path(folder) / FOLDER)  # first, so that at exit it cleans up last
            write_crash_stacks(RunFolder(Path(folder)))
        restart = restarted()
        if restart is not None and restart.checkpoint is not None:
            from holdfast.inside.control.restarted import resume_with

            place = restart.place
            resume_with(restart.checkpoint, lambda: scope.num_begun == place)
        if os.environ.get(VARIABLE):
            leave_sigterm_to_supervisor()
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
_open_files: list[TextIOWrapper] = []  # faulthandler keeps the descriptor, not the file


def write_crash_stacks(run: RunFolder) -> None:
    """Have faulthandler write to `faults/PID.txt`; an empty file is removed at a normal exit."""
    if faulthandler.is_enabled() or _open_files:
        return
    folder = run.path / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{os.getpid()}.txt"
    file = path.open("w", encoding="utf-8")
    _open_files.append(file)
    faulthandler.enable(file=file, all_threads=True)
    atexit.register(remove_if_empty, path, os.getpid())
