"""`holdfast.watch`: the recording of `holdfast run`, from one line in a script or notebook.

    with holdfast.watch(model, optimizer) as run:
        for batch in run.batches(loader):
            ...

All methods of `Run` are optional: losses, norms, learning rates and loader times come from the hooks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.errors import UsageError
from holdfast.inside.arm import armed
from holdfast.inside.control.restarted import restarted
from holdfast.inside.notebook import before_each_cell, current_cell, draw, show_live
from holdfast.inside.observers.evaluations import Logged
from holdfast.inside.policy import POLICIES, Policy
from holdfast.inside.scope import Scope
from holdfast.inside.shield import Shield
from holdfast.signals.lineage import whole_path
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.tracker_names import not_installed, read_trackers

if TYPE_CHECKING:
    from holdfast.inside.run_checkpoints import RunCheckpoints
    from holdfast.state.position import Pass, Positions
    from holdfast.state.restore import Restored

Batch = TypeVar("Batch")
_open_runs: list[Run] = []


class Run:
    """A watched training. Use it in a `with` block or close it; it is closed at exit in any case."""

    def __init__(self, scope: Scope, *, owned: bool, models: Iterable[Any] = (), optimizers: Iterable[Any] = ()) -> None:
        self._scope, self._owned = scope, owned
        self._closed = threading.Event()
        self._cell = current_cell()
        self._checkpoints: RunCheckpoints | None = None
        self._positions: Positions | None = None
        self._models, self._optimizers = [weakref.ref(model) for model in models], [weakref.ref(opt) for opt in optimizers]
        self._shield = Shield(scope.step_back)

    @property
    def closed(self) -> bool:
        """Whether the recording has ended."""
        return self._closed.is_set()

    def wait_closed(self, seconds: float) -> bool:
        """Wait until the recording has ended, so many seconds at most; whether it has."""
        return self._closed.wait(seconds)

    @property
    def folder(self) -> Path:
        """Where the run is recorded."""
        return self._scope.run.path

    @property
    def name(self) -> str:
        """The run's name, as `holdfast query -t NAME` takes it."""
        return self._scope.run.name

    def batches(self, loader: Iterable[Batch], *, fast: bool = False) -> Pass[Batch]:
        """Iterate over any loader and record waiting time, epochs and the position in the data.

        After `restore` the first pass continues with the next batch: earlier batches are drawn again and discarded. With `fast`
        the sampler skips them and they are not loaded; use it if no sample depends on earlier ones.
        """
        timed = not isinstance(loader, DataLoader)  # its iterator is timed already
        return iter(self._data_positions().of(loader, fast=fast, timed=timed))

    def epoch(self, number: int) -> None:
        """Set the epoch, where no loader shows it."""
        self._shield(armed().runtime.set_epoch)(number)

    def log(self, *, split: str = "train", step: int | None = None, **metrics: float | torch.Tensor) -> None:
        """Record your own metrics: `run.log(accuracy=0.91, split="val")`. A tensor on a GPU is not waited for."""
        for name, value in metrics.items():
            self._shield(self._scope.log)(Logged(name, value, split, step))

    def ema(self, copy: Any) -> None:
        """Register an averaged copy of the model, so that it skips and rolls back with the model.

        A module, or any object with `state_dict()` and `load_state_dict()`.
        """
        self._scope.averages.add(copy)

    def step(
        self,
        function: Callable[..., Any] | None = None,
        *,
        scaler: Any = None,
        reduction: str = "mean",
        weight: Callable[..., Any] | None = None,
        split: Callable[[Any, int], Any] | None = None,
    ) -> Any:
        """Turn a function from batch to loss into a training step that survives running out of memory.

        The step runs forward and backward and returns the detached loss. If memory runs out under `heal`, it is repeated in
        smaller micro-batches, with the same gradient up to rounding. `weight` returns what the mean is over, if not samples;
        `split(batch, parts)` yields pairs of part and number of samples, for custom batch types.
        """
        if function is None:
            return partial(self.step, scaler=scaler, reduction=reduction, weight=weight, split=split)
        if self._scope.micro_batches is None:
            from holdfast.inside.oom.micro_batches import MicroBatches

            self._scope.micro_batches = MicroBatches(self._scope, armed().runtime.losses)
            if (restart := restarted()) is not None and restart.parts > 1 and not self._owned:
                self._scope.micro_batches.shrink(restart.parts)
        return self._scope.micro_batches.step(function, scaler=scaler, reduction=reduction, weight=weight, split=split)

    def changed(self, what: str) -> None:
        """Report a deliberate change of a setting: `run.changed("deep supervision")`.

        The gradients before and after are compared, and a matching learning rate is proposed; `heal` applies it.
        """
        self._shield(self._scope.changed)(what)

    def settings(self, **settings: Any) -> None:
        """Record the settings of this training: `run.settings(batch=32, augmentation="strong")`; checkpoints keep them too."""
        self._shield(self._scope.note_settings)(settings)

    def resumed(self, source: str | os.PathLike[str], *, step: int | None = None) -> None:
        """Report the checkpoint or run that this training resumes from, before its first step.

        Settings that differ from a Holdfast checkpoint's are treated as `changed`: they may need another learning rate. Call
        `settings` first. `step` is how many steps were made before, for a checkpoint that is not Holdfast's.
        """
        self._shield(self._scope.resumed)(Path(source), step)

    def save(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        metrics: Mapping[str, float | torch.Tensor] | None = None,
        wait: bool = False,
        skip_if_busy: bool = False,
    ) -> Path | None:
        """Save the training's state as a checkpoint in `checkpoints/` of the run, or in `path`; returns its path.

        Models, optimizers, schedulers, scalers and averages are found. The training waits for a copy in memory only, and for the
        save before if that is still being written: with `skip_if_busy` nothing is saved then, and None is returned. A failure
        is recorded in the journal, never raised. With `wait` the checkpoint is on disk on return, or None is returned.
        """
        if not self._owned:
            armed().runtime.interrupt.install(self._scope)
        return self._run_checkpoints().save(path, metrics, wait=wait, skip_if_busy=skip_if_busy)

    def keep(self, *, last: int = 3, every_epochs: int | None = 5, best: str | None = None) -> None:
        """Choose which checkpoints `save` keeps: the last ones, one of every so many epochs, and the best by a metric.

        Call it before the first `save`.
        """
        self._run_checkpoints().keep(keep_last=last, every_epochs=every_epochs, best=best)

    def restore(self, path: str | os.PathLike[str] | None = None, *, data: bool = True) -> Restored | None:
        """Resume from what `save` wrote: a checkpoint, a folder of them, or a run; None if there is none yet.

        Without a path, the newest clean checkpoint of this run or of the last run of the same name is used. All state is
        restored, the step count continues, and so does the first pass of `batches`; with `data=False` it starts over.
        Call it before the first step, after models, optimizers, schedulers, scalers and averages are created.
        Raises CannotRestore, with nothing changed, if the checkpoint does not fit.
        """
        return self._run_checkpoints().restore(path, data=data)

    def saved(self, path: str | os.PathLike[str], *, step: int | None = None) -> None:
        """Report a checkpoint that a trainer has written, a file or a folder: it is listed, and verified in the background."""
        is_listed = armed().runtime.saves.rows.has(whole_path(path))
        self._shield(self._scope.trainer.wrote)(Path(path), step, is_listed=is_listed)

    def ask_trainer(self, *, stop: Callable[[str, int], object] | None = None, save: Callable[[], object] | None = None) -> None:
        """Have a trainer do itself what `heal` asks for, between two steps.

        `stop` gets the reason and the exit code; without it the process ends with that code. `save` is called in addition to
        Holdfast's own checkpoint.
        """
        self._scope.trainer.stop, self._scope.trainer.save = stop, save

    def updates(self, optimizer: torch.optim.Optimizer | None) -> Callable[[], None]:
        """Record updates that a framework makes without `optimizer.step()`, such as Keras on torch.

        `optimizer` stands in for the framework's: its parameters, learning rate and state. From now on each backward pass in
        this thread is a step; call what is returned after the update, and `updates(None)` when the training is over.
        """
        return self._shield(armed().runtime.expect_updates(optimizer))

    def _run_checkpoints(self) -> RunCheckpoints:
        if self._checkpoints is None:
            from holdfast.inside.run_checkpoints import RunCheckpoints

            self._data_positions()
            self._checkpoints = RunCheckpoints(self._scope, armed().runtime, self._watched)
            self._scope.trainer.save_run = partial(self._checkpoints.save, None, None, wait=True)
        return self._checkpoints

    def _data_positions(self) -> Positions:
        if self._positions is None:
            from holdfast.state.position import Positions

            runtime = armed().runtime
            on_batch, on_end = partial(self._shield(runtime.batch), None), partial(self._shield(runtime.loader_ended), None)
            self._positions = Positions(warn=self._warn, on_batch=on_batch, on_end=on_end)
            self._scope.positions = self._positions
        return self._positions

    def _watched(self) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        """The models and optimizers that were passed to `watch` and are alive."""
        models = [model for reference in self._models if (model := reference()) is not None]
        optimizers = [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]
        if (self._models or self._optimizers) and not models and not optimizers:
            raise UsageError("the model and optimizer passed to watch no longer exist.", fix="keep a reference to them")
        return models, optimizers

    def _warn(self, text: str) -> None:
        """Warn about the data, on the terminal and in the journal."""
        warnings.warn(f"holdfast: {text}", stacklevel=5)
        with contextlib.suppress(OSError):
            row = {"code": "resume-mismatch", "severity": "warning", "step": self._scope.first_step, "evidence": {"data": text}}
            self._scope.run.journal.write("finding", **row)

    @property
    def policy(self) -> str:
        """The policy: what Holdfast may do in this run."""
        return self._scope.policy.name

    @property
    def num_steps(self) -> int:
        """Steps made so far, with those before a resume."""
        return self._scope.num_steps

    @property
    def attempt(self) -> int:
        """1, or more if Holdfast has restarted this script."""
        restart = restarted()
        return restart.attempt if restart is not None else 1

    def close(self) -> None:
        """End the recording."""
        if not self.closed:
            self._closed.set()
            if self in _open_runs:
                _open_runs.remove(self)
            if self._checkpoints is not None:
                self._checkpoints.close()
            if self._owned:
                armed().remove(self._scope)
                with contextlib.suppress(OSError):
                    self._scope.run.update_info(ended=time.time())

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<holdfast run {self.name} in {self.folder}>"

    def _repr_html_(self) -> str | None:
        return draw(self.folder)

    def _ipython_display_(self) -> None:
        show_live(self)


def watch(
    model: nn.Module | Iterable[nn.Module] = (),
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    *,
    name: str | None = None,
    folder: str | os.PathLike[str] = "runs",
    policy: str = "observe",
    rules: Mapping[str, str] | None = None,
    budget: float = 0.01,
    control: bool = True,
    to: str | Iterable[str] = (),
) -> Run:
    """Record a training from now on. Without a model or optimizer, every optimizer that steps is recorded.

    Under `holdfast run` it returns that run. An open run on the same optimizer (a notebook cell that is executed again) is
    closed first. If the folder is not writable, the training continues unrecorded, with a warning. `control=False` disables the
    control server (`holdfast eval`, `set`, …). `to="mlflow"` sends the run to a tracker, from another process.
    """
    if policy not in POLICIES and not Path(policy).is_file():
        raise UsageError(
            f"there is no policy {policy!r}.", fix="use 'observe', 'guard', 'heal', or a file with your own policies"
        )
    chosen = Policy(policy if policy in POLICIES else str(Path(policy).absolute()), dict(rules or {}))
    for code, rule in chosen.rules.items():
        if rule not in POLICIES:
            raise UsageError(f"the rule for {code} names no policy: {rule!r}.", fix="use 'observe', 'guard' or 'heal'")
    if not 0.0 < budget <= 1.0:
        raise UsageError(f"budget {budget!r} is not a fraction of the step time.", fix="use a number such as 0.01 for 1 %")
    trackers = read_trackers([to] if isinstance(to, str) else to)
    models: list[nn.Module] = _as_list(nn.Module, model)
    optimizers: list[torch.optim.Optimizer] = _as_list(torch.optim.Optimizer, optimizer)
    launched = next((scope for scope in armed().runtime.scopes if scope.follows_children), None)
    if launched is not None:
        return Run(launched, owned=False, models=models, optimizers=optimizers)
    _close_replaced(optimizers, name)
    try:
        run_folder = _make_folder(Path(folder), name, chosen, trackers)
    except OSError as error:
        warnings.warn(f"holdfast: the training is not recorded: {error}", stacklevel=2)
        unrecorded = Scope(RunFolder(Path(folder) / (name or "run")))
        return Run(unrecorded, owned=False, models=models, optimizers=optimizers)
    scope = Scope(run_folder, budget=budget, policy=chosen, models=models, optimizers=optimizers, control=control)
    armed().add(scope)
    run = Run(scope, owned=True, models=models, optimizers=optimizers)
    _open_runs.append(run)
    if run._cell is not None:
        _save_on_interrupt()
        before_each_cell(_save_on_interrupt)
    return run


def _as_list(kind: type[Any], value: Any) -> list[Any]:
    """One object or several, as a list; anything else is a usage error."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, str | os.PathLike) or not isinstance(value, Iterable):
        raise UsageError(
            f"{value!r} is not of type {kind.__name__}.", fix="holdfast.watch(model, optimizer, name='my-run', folder='runs')"
        )
    return list(value)


def _close_replaced(optimizers: list[torch.optim.Optimizer], name: str | None) -> None:
    for run in tuple(_open_runs):
        same = not optimizers or run._scope.is_over() or any(run._scope.wants(optimizer) for optimizer in optimizers)
        if same or _is_executed_again(run, name):
            run.close()


def _is_executed_again(run: Run, name: str | None) -> bool:
    """In a notebook: whether an earlier execution of this cell, or of one that gave the same name, has opened the run."""
    cell = current_cell()
    if cell is None or run._cell is None or run._cell[1] == cell[1]:
        return False
    return run._cell[0] == cell[0] or (name is not None and run._scope.run.info().get("asked") == name)


def _save_on_interrupt() -> None:
    """In a notebook, Ctrl-C saves a checkpoint after the step, whatever the policy."""
    for run in _open_runs[-1:]:
        armed().runtime.interrupt.install(run._scope)


def _make_folder(parent: Path, name: str | None, policy: Policy, trackers: Iterable[str]) -> RunFolder:
    info = {
        "command": sys.orig_argv,
        "cwd": str(Path.cwd()),
        "started": time.time(),
        "pid": os.getpid(),
        "policy": policy.name,
        "rules": dict(policy.rules),
        "python": sys.executable,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "asked": name,
        "to": list(trackers),
    }
    for tracker in not_installed(trackers):
        warnings.warn(f"holdfast: {tracker} is not installed: pip install {tracker}, then: holdfast sync", stacklevel=3)
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is not None and info["world_size"] != 1:  # the ranks of one run share one folder
        attempt = f"{os.environ.get('MASTER_PORT', '0')}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        run = RunFolder.join(parent, f"{name or 'run'}-{run_id}-{attempt}", **info)
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return run
    else:
        run = RunFolder.create(parent, name or time.strftime("run-%m%d-%H%M%S"), **info)
    _start_side_process(run)
    return run


def _start_side_process(run: RunFolder) -> None:
    """Start the process that compacts the tables and samples the machine. Recording works without it."""
    command = [sys.executable, "-m", "holdfast.supervisor.side", str(run.path), str(os.getpid())]
    with contextlib.suppress(OSError):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        process.returncode = 0  # it outlives this process on purpose: avoids the ResourceWarning
