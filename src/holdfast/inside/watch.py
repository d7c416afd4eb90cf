"""`holdfast.watch`: the same recording as `holdfast run`, from one line in a script or notebook.

    with holdfast.watch(model, optimizer) as run:
        for batch in run.batches(loader):
            ...

Everything on the `Run` is optional: losses, norms, learning rates and loader times are seen through the hooks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
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
from holdfast.inside.observers.metrics import Logged
from holdfast.inside.policy import POLICIES, Policy
from holdfast.inside.scope import Scope
from holdfast.inside.shield import Shield
from holdfast.signals.run_folder import RunFolder

if TYPE_CHECKING:
    from holdfast.inside.run_checkpoints import RunCheckpoints
    from holdfast.state.position import Pass, Positions
    from holdfast.state.restore import Restored

Batch = TypeVar("Batch")
_open_runs: list[Run] = []


class Run:
    """A watched training. Close it, or use it with `with`; at the end of the process it is closed anyway."""

    def __init__(self, scope: Scope, *, owned: bool, parts: tuple[list[Any], list[Any]] = ([], [])) -> None:
        self._scope, self._owned = scope, owned
        self.closed = False
        self._store: RunCheckpoints | None = None
        self._positions: Positions | None = None
        self._parts: tuple[list[Any], list[Any]] = _weakly(parts[0]), _weakly(parts[1])
        runtime = armed().runtime
        shield = Shield(scope.step_back)
        self._log, self._epoch = shield(scope.log), shield(runtime.set_epoch)
        self._changed, self._settings, self._resumed = shield(scope.changed), shield(scope.note_settings), shield(scope.resumed)
        self._batch, self._loader_ended = shield(runtime.batch), shield(runtime.loader_ended)

    @property
    def folder(self) -> Path:
        """Where the run is recorded."""
        return self._scope.run.path

    @property
    def name(self) -> str:
        """The run's name, as `holdfast query -t NAME` takes it."""
        return self._scope.run.name

    def batches(self, loader: Iterable[Batch], *, fast: bool = False) -> Pass[Batch]:
        """Draw batches from anything, and have the waiting time, the passes and the place in the data recorded.

        After `restore` the first pass goes on with the next batch: those that were used are drawn once more and thrown away.
        With `fast` they are skipped in the sampler and not loaded; say so where no sample depends on those before it.
        """
        timed = not isinstance(loader, DataLoader)  # its iterator is timed already
        return iter(self._places().of(loader, fast=fast, timed=timed))

    def epoch(self, number: int) -> None:
        """Say which epoch it is, where no loader shows it."""
        self._epoch(number)

    def log(self, *, split: str = "train", step: int | None = None, **metrics: float | torch.Tensor) -> None:
        """Record metrics of your own: `run.log(accuracy=0.91, split="val")`. A tensor on a GPU is not waited for."""
        for name, value in metrics.items():
            self._log(Logged(name, value, split, step))

    def ema(self, copy: Any) -> None:
        """Register an averaged copy of the model: it does not move when an update was left out, and is rolled back with it.

        A module, or anything with `state_dict()` and `load_state_dict()`.
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
        """Make a function from batch to loss a training step that survives running out of memory.

        The step runs forward and backward, and gives the detached loss. If memory runs out and the policy heals, it is done
        again in more and smaller parts, with the same gradient up to rounding. `weight` says what the mean is over, if not
        samples; `split(batch, parts)` gives pairs of part and samples, for batches of a kind of their own.
        """
        if function is None:
            return partial(self.step, scaler=scaler, reduction=reduction, weight=weight, split=split)
        if self._scope.micro_batches is None:
            from holdfast.inside.oom.micro_batches import MicroBatches

            self._scope.micro_batches = MicroBatches(self._scope, armed().runtime.losses)
            if (told := restarted()) is not None and told.parts > 1 and not self._owned:
                self._scope.micro_batches.shrink(told.parts)
        return self._scope.micro_batches.step(function, scaler=scaler, reduction=reduction, weight=weight, split=split)

    def changed(self, what: str) -> None:
        """Say that a setting was changed on purpose: `run.changed("deep supervision")`.

        The gradients before and after it are compared, and the learning rate that goes with it is proposed; `heal` applies it.
        """
        self._changed(what)

    def settings(self, **settings: Any) -> None:
        """Record the settings of this training: `run.settings(batch=32, augmentation="strong")`; checkpoints keep them too."""
        self._settings(settings)

    def resumed(self, source: str | os.PathLike[str]) -> None:
        """Say from which of Holdfast's checkpoints or runs this training goes on.

        Settings that differ are treated as `changed`: they may ask for another learning rate. Call `settings` first.
        """
        self._resumed(Path(source))

    def save(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        metrics: Mapping[str, float | torch.Tensor] | None = None,
        wait: bool = False,
    ) -> Path | None:
        """Save the training's state as a checkpoint, into `checkpoints/` of the run or the folder `path`; where it will be.

        Models, optimizers, schedulers, scalers and averages are found. The training is held for a copy in memory only; what fails
        is told in the journal and never raised. With `wait` it is on disk when this returns, or None is returned.
        """
        if not self._owned:
            armed().runtime.interrupt.install(self._scope)
        return self._saving().save(path, metrics, wait=wait)

    def restore(self, path: str | os.PathLike[str] | None = None, *, data: bool = True) -> Restored | None:
        """Go on from a checkpoint that `save` wrote: a checkpoint, a folder of them, or a run; None if there is nothing yet.

        Without a path it is the newest clean one of this run, or of the newest earlier run of the same name. Everything is put
        back, steps are counted on, and the first pass of `batches` goes on where it was; with `data=False` it begins anew.
        Call it before the first step, when models, optimizers, schedulers, scalers and averages are made.
        Raises CannotRestore, with nothing changed, if it does not fit.
        """
        return self._saving().restore(path, data=data)

    def _saving(self) -> RunCheckpoints:
        if self._store is None:
            from holdfast.inside.run_checkpoints import RunCheckpoints

            self._store = RunCheckpoints(self._scope, armed().runtime, self._places(), self._named)
        return self._store

    def _places(self) -> Positions:
        if self._positions is None:
            from holdfast.state.position import Positions

            self._positions = Positions(
                warn=self._say, on_batch=partial(self._batch, None), on_end=partial(self._loader_ended, None)
            )
            self._scope.positions = self._positions
        return self._positions

    def _named(self) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        """The models and optimizers that the script has named, as far as they are alive."""
        models, optimizers = ([thing for one in references if (thing := one()) is not None] for references in self._parts)
        if any(self._parts) and not models and not optimizers:
            raise UsageError("what was given to watch is gone.", fix="keep the model and the optimizer")
        return models, optimizers

    def _say(self, words: str) -> None:
        """Say something about the data to whoever runs the script, and in the journal."""
        warnings.warn(f"holdfast: {words}", stacklevel=5)
        with contextlib.suppress(OSError):
            row = {"code": "resume-mismatch", "severity": "warning", "step": self._scope.first_step, "evidence": {"data": words}}
            self._scope.run.journal.write("finding", **row)

    @property
    def policy(self) -> str:
        """What Holdfast may do in this run."""
        return self._scope.policy.name

    def close(self) -> None:
        """End the recording."""
        if not self.closed:
            self.closed = True
            if self in _open_runs:
                _open_runs.remove(self)
            if self._store is not None:
                self._store.close()
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


def watch(
    model: nn.Module | Iterable[nn.Module] = (),
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    *,
    name: str | None = None,
    folder: str | os.PathLike[str] = "runs",
    policy: str = "observe",
    rules: Mapping[str, str] | None = None,
    budget: float = 0.01,
    door: bool = True,
) -> Run:
    """Record a training from now on. Without a model or optimizer, every optimizer that steps is recorded.

    Under `holdfast run` it gives that run. A run on the same optimizer that was left open (a notebook cell executed
    again) is closed first. If nothing can be written, training goes on unrecorded and a warning says so. With `door=False` the
    process cannot be asked from outside (`holdfast eval`, `set`, …).
    """
    if policy not in POLICIES and not Path(policy).is_file():
        raise UsageError(
            f"there is no policy {policy!r}.", fix="use 'observe', 'guard', 'heal', or a file with policies of your own"
        )
    chosen = Policy(policy if policy in POLICIES else str(Path(policy).absolute()), dict(rules or {}))
    for code, rule in chosen.rules.items():
        if rule not in POLICIES:
            raise UsageError(f"the rule for {code} names no policy: {rule!r}.", fix="use 'observe', 'guard' or 'heal'")
    if not 0.0 < budget <= 1.0:
        raise UsageError(f"budget {budget!r} is not a share of the step.", fix="use a number such as 0.01 for one per cent")
    models: list[nn.Module] = _all_of(nn.Module, model)
    optimizers: list[torch.optim.Optimizer] = _all_of(torch.optim.Optimizer, optimizer)
    started = next((scope for scope in armed().runtime.scopes if scope.follows_children), None)
    if started is not None:
        return Run(started, owned=False, parts=(models, optimizers))
    _close_left_open(optimizers)
    try:
        made = _make_folder(Path(folder), name, chosen)
    except OSError as error:
        warnings.warn(f"holdfast: the training is not recorded: {error}", stacklevel=2)
        return Run(Scope(RunFolder(Path(folder) / (name or "run"))), owned=False, parts=(models, optimizers))
    scope = Scope(made, budget=budget, policy=chosen, models=models, optimizers=optimizers, door=door)
    armed().add(scope)
    run = Run(scope, owned=True, parts=(models, optimizers))
    _open_runs.append(run)
    return run


def _all_of(kind: type[Any], given: Any) -> list[Any]:
    """One thing or several, as a list; everything else is a mistake in the call."""
    if isinstance(given, kind):
        return [given]
    if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable):
        raise UsageError(
            f"{given!r} is no {kind.__name__}.", fix="holdfast.watch(model, optimizer, name='my-run', folder='runs')"
        )
    return list(given)


def _weakly(things: Iterable[Any]) -> list[Any]:
    return [weakref.ref(thing) for thing in things]


def _close_left_open(optimizers: list[torch.optim.Optimizer]) -> None:
    for run in tuple(_open_runs):
        if not optimizers or run._scope.is_over() or any(run._scope.wants(optimizer) for optimizer in optimizers):
            run.close()


def _make_folder(parent: Path, name: str | None, policy: Policy) -> RunFolder:
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
    }
    shared = os.environ.get("TORCHELASTIC_RUN_ID")
    if shared is not None and info["world_size"] != 1:  # the ranks of one run meet in one folder
        ours = (
            f"{name or 'run'}-{shared}-{os.environ.get('MASTER_PORT', '0')}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        )
        run = RunFolder.join(parent, ours, **info)
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return run
    else:
        run = RunFolder.create(parent, name or time.strftime("run-%m%d-%H%M%S"), **info)
    _start_outside(run)
    return run


def _start_outside(run: RunFolder) -> None:
    """Start the side process that keeps the tables small and samples the machine. Recording works without it."""
    command = [sys.executable, "-m", "holdfast.supervisor.side", str(run.path), str(os.getpid())]
    with contextlib.suppress(OSError):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        process.returncode = 0  # it outlives this process on purpose: no warning when this object goes
