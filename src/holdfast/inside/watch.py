"""`holdfast.watch`: the same recording as `holdfast run`, from one line in a script or notebook.

    with holdfast.watch(model, optimizer) as run:
        for batch in run.batches(loader):
            ...

Everything on the `Run` is optional: losses, norms, learning rates and loader times are seen through the hooks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.errors import UsageError
from holdfast.inside.arm import armed
from holdfast.inside.policy import POLICIES, Policy
from holdfast.inside.scope import Logged, Scope
from holdfast.inside.shield import Shield
from holdfast.signals.run_folder import RunFolder

Batch = TypeVar("Batch")
_open_runs: list[Run] = []


class Run:
    """A watched training. Close it, or use it with `with`; at the end of the process it is closed anyway."""

    def __init__(self, scope: Scope, *, owned: bool) -> None:
        self._scope, self._owned = scope, owned
        self.closed = False
        session = armed().session
        shield = Shield(scope.step_back)
        self._log, self._epoch = shield(scope.log), shield(session.loader.set_epoch)
        self._changed, self._settings, self._resumed = shield(scope.changed), shield(scope.note_settings), shield(scope.resumed)
        self._batch, self._loader_ended = shield(session.batch), shield(session.loader_ended)

    @property
    def folder(self) -> Path:
        """Where the run is recorded."""
        return self._scope.run.path

    @property
    def name(self) -> str:
        """The run's name, as `holdfast query -t NAME` takes it."""
        return self._scope.run.name

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Draw batches from anything, and have the waiting time and the passes recorded."""
        if isinstance(loader, DataLoader):  # its iterator is already timed
            yield from loader
            return
        iterator = iter(loader)
        while True:
            begun = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                self._loader_ended(None)
                return
            self._batch(None, batch, time.perf_counter() - begun)
            yield batch

    def epoch(self, number: int) -> None:
        """Say which epoch it is, where no loader shows it."""
        self._epoch(number)

    def log(self, *, split: str = "train", step: int | None = None, **metrics: float | torch.Tensor) -> None:
        """Record metrics of your own: `run.log(accuracy=0.91, split="val")`. A tensor on a GPU is not waited for."""
        for name, value in metrics.items():
            self._log(Logged(name, value, split, step))

    def ema(self, copy: nn.Module) -> None:
        """Register an averaged copy of the model: it does not move when an update was left out, and is rolled back with it."""
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
            return functools.partial(self.step, scaler=scaler, reduction=reduction, weight=weight, split=split)
        if self._scope.micro_batches is None:
            from holdfast.inside.out_of_memory.micro_batches import MicroBatches

            self._scope.micro_batches = MicroBatches(self._scope, armed().session.losses)
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
) -> Run:
    """Record a training from now on. Without a model or optimizer, every optimizer that steps is recorded.

    Under `holdfast run` it gives that run. A run on the same optimizer that was left open (a notebook cell executed
    again) is closed first. If nothing can be written, training goes on unrecorded and a warning says so.
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
    models = [model] if isinstance(model, nn.Module) else list(model)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    started = next((scope for scope in armed().session.scopes if scope.follows_children), None)
    if started is not None:
        return Run(started, owned=False)
    _close_left_open(optimizers)
    try:
        made = _make_folder(Path(folder), name, chosen)
    except OSError as error:
        warnings.warn(f"holdfast: the training is not recorded: {error}", stacklevel=2)
        return Run(Scope(RunFolder(Path(folder) / (name or "run"))), owned=False)
    scope = Scope(made, budget=budget, policy=chosen, models=models, optimizers=optimizers)
    armed().add(scope)
    run = Run(scope, owned=True)
    _open_runs.append(run)
    return run


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
