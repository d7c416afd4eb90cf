"""Fast-forward a restarted script that cannot resume by itself: its own loop runs, with its own counters, but learns nothing.

Each training of the script to its own newest state: see which_training.py.

The saved state is restored at the first step, but for the schedulers, which the script advances itself. Up to the step of that
state there is no backward pass and no update; then it is restored again, with schedulers and random generators, and training
continues as if nothing had happened.

A forward pass in training mode returns the output of an earlier batch of the same shape, and a loader without workers returns an
earlier batch of the same size: nobody learns from them. Evaluations compute real metrics of the saved state, once for each input.
A forward pass that draws random numbers on the host or counts in a module's attribute runs for real, and so does a data set that
draws random numbers: the order of the data and the counters stay those of the script. So do all passes of a model with hooks.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from holdfast.checkpoints.manifest import kept_in
from holdfast.errors import HoldfastError, OptimizersMissing
from holdfast.inside.control.restarted import resumes_by_itself
from holdfast.inside.guard.skipping import SkippedUpdate
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.observers.modules import has_hooks
from holdfast.inside.ranks import world_size
from holdfast.signals.pulse import CATCHING_UP, TRAINING
from holdfast.state.parameters import parameters_of

if TYPE_CHECKING:
    from holdfast.inside.control.control import Control
    from holdfast.inside.control.restarted import Restarted
    from holdfast.inside.guard.protected_checkpoints import ProtectedCheckpoints
    from holdfast.inside.scope import Scope
    from holdfast.inside.taps.loads import Loads
    from holdfast.inside.training import Training

Optimizer = torch.optim.Optimizer
_OUTPUT_BYTES = 256 << 20  # of the outputs that are kept, all together
_OUTPUTS = 64  # in training mode: each is for another shape of the input
_DRAWN_AHEAD = 8  # steps; Accelerate and Lightning draw one batch ahead
_PLAIN = (int, float, bool, str, type(None))


def start_fast_forward(
    loads: Loads, scope: Scope, training: Training, optimizer: Optimizer, restart: Restarted, *, uses_grad: bool
) -> FastForward | None:
    """Begin, if the script was restarted, has loaded nothing itself, and there is a saved state.

    `uses_grad`: the script calls `torch.autograd.grad`, which needs the graph of a real forward pass.
    """
    control, which, folder = training.control, training.which, training.recorder.checkpoints
    newest = _newest_kept(folder, restart)
    if control is None or which is None or restart.catch_up == "never":
        return None
    resumes = which.is_from_pickle or resumes_by_itself(loads, optimizer, training.steps_before)
    if not which.is_known and len(which.others) > which.place and not resumes:
        _say("this training starts from scratch: no training before the restart had its first loss (are all seeds set?)")
    if newest <= training.steps_before:
        return None
    if resumes:
        _say(f"the script resumes by itself{f', at step {training.step:,}' if training.step else ''}")
        return None
    is_first = which.place == 0
    if training.step or scope.origin is not None or (is_first and restart.loaded_by_script(loads.paths)):
        return None
    all_kept = all(kept_in(scope.run.path / other) for other in which.others)  # else the next batch may be one to learn from
    skips = all_kept and restart.catch_up != "slowly"
    name = "" if is_first else f"training {which.place + 1} of the script, "
    fast_forward = FastForward(control, folder, newest, skips=skips, caches=not uses_grad, made=training.steps_before, name=name)
    if not fast_forward.begin(others=training.expects_others):
        return None
    training.begin_at(fast_forward.to)
    return fast_forward


def _newest_kept(folder: Path, restart: Restarted) -> int:
    """The step to fast-forward to; of the training that was under way, the supervisor has chosen it."""
    if restart.kept_in is not None and Path(restart.kept_in) == folder:
        return restart.kept_step or 0
    kept = kept_in(folder) if world_size() == 1 else []  # ranks would not agree
    return kept[-1].step if kept else 0


class FastForwards:
    """Those of all trainings of this process. What belongs to no training yet is skipped only if all are under way."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._of: dict[Training, FastForward] = {}

    def add(self, training: Training, one: FastForward) -> None:
        """One more begins."""
        self._of[training] = one

    def is_under_way(self) -> bool:
        """Whether one is not at its end."""
        return bool(self._of)

    def before(self, training: Training, optimizer: Optimizer) -> bool:
        """An update comes; True if it is skipped."""
        one = self._of.get(training)
        if one is None:
            return False
        if training.members[id(optimizer)].is_inner:  # nothing of it is kept; or it is a training of its own, as will turn out
            one.is_alone = False
            return False
        if not one.before(training, optimizer):
            del self._of[training]
            return False
        return True

    def after(self, training: Training, optimizer: Optimizer) -> bool:
        """The step is over; True if its update was skipped."""
        one = self._of.get(training)
        if one is None or training.members[id(optimizer)].is_inner:
            return False
        if one.after(training, optimizer):
            del self._of[training]
        return True

    def tell_stopped_early(self) -> None:
        """The script ends, and not all are where they were: it stopped early, as its evaluations do not get better meanwhile."""
        self._scope.run.journal.write("checkpoint", event="stopped-early", step=max(one.to for one in self._of.values()))

    def skips_backward(self) -> bool:
        """Whether the backward pass can be skipped."""
        (one, *others) = self._all() or [None]
        return one is not None and not others and one.skips_backward()

    def next_batch(self, iterator: Any) -> Any:
        """The next batch of a training loader; None: draw it normally."""
        all_of_them = self._all()
        if not all(one is not None and one.is_far() for one in all_of_them):
            return None
        training = next((one for one in self._scope.trainings if one.loader.is_main(iterator)), None)
        if training is None or not any(root.training for root in training.roots()):  # an evaluation may come without `no_grad`
            return None
        one = self._of.get(training)
        return one.next_batch(iterator) if one is not None else None

    def _all(self) -> list[FastForward | None]:
        """Of all trainings whose optimizer may still step; None for one that is where it was, or has nothing to go to."""
        return [self._of.get(training) for training in self._scope.trainings if training.main_optimizer() is not None]


class FastForward:
    """Counts the steps of the main optimizer up to `to`; all updates before it are skipped."""

    def __init__(
        self, control: Control, folder: Path, to: int, *, skips: bool, caches: bool, made: int = 0, name: str = ""
    ) -> None:
        """`skips`: backward passes and batches may be skipped; `caches`: also forward passes. `made`: steps made already."""
        self._control, self._folder, self.to, self._name = control, folder, to, name
        self._made, self._beginning = made, 0
        self._steps = made  # of the main optimizer, or of several that took over from each other
        self.is_alone = True  # no other optimizer steps in between
        self._fits, self._why, self._may_fit_later, self._stepped_again = False, "", False, False
        self._seen: set[int] = set()
        self._skipped: SkippedUpdate | None = None
        self._trained: dict[int, list[torch.Tensor]] = {}  # by optimizer: what got gradients in its first step
        self._zeros: list[torch.Tensor] = []  # their gradients, as long as there is no backward pass
        self._alone = world_size() == 1  # several ranks reduce their gradients in the backward pass, and wait for each other
        self.protected: ProtectedCheckpoints | None = None  # the checkpoints that the earlier attempt saved
        self._skips = skips and self._alone
        self._caches = caches and self._skips
        self._outputs, self._drawn = CachedOutputs(), CachedBatches()
        HEARTBEAT.enter(CATCHING_UP)

    def begin(self, *, others: bool) -> bool:
        """Put the kept state back; False, with nothing changed, if it does not fit. It may yet, if `others` are still to come."""
        if self._restore() or (self._why and (others or self._may_fit_later)):
            _say(f"{self._name}fast-forwarding to step {self.to:,}: the script's loop runs without updates")
            return True
        self._give_up()
        return False

    def _restore(self, *, is_last: bool = False) -> bool:
        try:
            found = self._control.snapshots.restore_from_disk(
                self._folder, at_or_before=self.to, randomness=is_last and self._alone, schedulers=is_last
            )  # what is on disk is rank 0's; the generators of the others have drawn as before on the way here
        except HoldfastError as error:
            self._why, self._may_fit_later = error.problem, isinstance(error, OptimizersMissing)
            return False
        if found:
            self.to, self._fits = found, True
        return bool(found)

    def _give_up(self) -> None:
        self._outputs.remove()
        HEARTBEAT.enter(TRAINING)
        _say(f"saved state {f'cannot be used ({self._why})' if self._why else 'not found'}; starting from scratch")

    def skips_backward(self) -> bool:
        """Whether the backward pass can be skipped; whoever reads the gradients finds zeros where there were some.

        Only with one optimizer: of several it is not known whose gradients a backward pass makes.
        """
        if not (self._skips and self.is_alone) or len(self._trained) != 1 or not self._stepped_again:
            return False
        trained = next(iter(self._trained.values()))
        self._zeros = self._zeros or [torch.zeros_like(parameter) for parameter in trained]
        for parameter, zero in zip(trained, self._zeros, strict=True):
            if parameter.grad is None:
                parameter.grad = zero
        return True

    def next_batch(self, iterator: Any) -> Any:
        """The next batch of a training loader without workers, by its sampler alone where possible; None: draw it normally.

        The last ones are drawn normally: trainers that draw ahead learn from them.
        """
        return self._drawn.next(iterator) if self._caches and torch.is_grad_enabled() else None

    def is_far(self) -> bool:
        """Whether the last steps, whose batches trainers may have drawn before, are still to come."""
        return self._steps < self.to - _DRAWN_AHEAD

    def before(self, training: Training, optimizer: Optimizer) -> bool:
        """An update comes: skip it. An optimizer that is new here brings its own part of the state.

        False if all have come and the saved state still does not fit: training starts from scratch, here.
        """
        if id(optimizer) not in self._seen:
            if self._seen:
                self._restore()
            elif self._skips and has_hooks(training.roots()):  # as Opacus has, which needs what they note at each step
                self._skips = self._caches = False
            self._seen.add(id(optimizer))
        elif not self._fits:
            self._give_up()
            training.begin_at(0)
            return False
        elif self._caches and self.is_alone and len(self._seen) == 1:
            self._outputs.stand_in_for(training.roots())
        self._stepped_again = id(optimizer) in self._trained
        if not self._stepped_again:
            self._trained[id(optimizer)] = [p for p in parameters_of(optimizer) if p.grad is not None]
        self._skipped = SkippedUpdate(parameters_of(optimizer))
        return True

    def after(self, training: Training, optimizer: Optimizer) -> bool:
        """The step is over; True if that was the last one, and the training continues."""
        if self._skipped is not None:
            self._skipped.give_back()
            self._skipped = None
        training.members[id(optimizer)].steps += 1
        HEARTBEAT.beat()
        if training.main_optimizer() is not optimizer:
            return False
        if training.beginning != self._beginning:  # it is larger than the first one, whose steps were not the training's
            self._steps, self._beginning = self._made, training.beginning
        self._steps += 1
        training.main_has_stepped()
        if not self._fits or self._steps < self.to:
            return False
        self._outputs.remove()
        why = "" if self._restore(is_last=True) else self._why or "its checkpoint is gone"
        rest = f"; schedulers and random numbers are not those of that step: {why}" if why else ""
        HEARTBEAT.enter(TRAINING)
        skipped = self.protected.num_skipped if self.protected is not None else 0
        left = f"; skipped {skipped} save{'s' * (skipped > 1)} over earlier checkpoints" if skipped else ""
        _say(f"{self._name}training continues at step {self.to:,}{left}{rest}")
        return True


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"holdfast: {text}", file=sys.stderr, flush=True)


class CachedOutputs:
    """Stands in for the forward pass of models whose weights do not change.

    Where the script never calls the whole model (a LightningModule), its children are the models.
    """

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._outputs: dict[Any, tuple[list[Any], Any]] = {}
        self._bytes, self._called, self._must_run = 0, False, False

    def stand_in_for(self, roots: list[nn.Module]) -> None:
        """Replace the forward pass of these models, or that of their children once a step has not called them."""
        if self._called or self._must_run:
            return
        models = [child for root in roots for child in root.children()] if self._models == roots else roots
        self.remove()
        self._models = models
        for model in models:
            if "forward" not in vars(model) and not isinstance(model, torch.jit.ScriptModule):
                vars(model)["forward"] = _Forward(self, model, model.forward)

    def remove(self) -> None:
        """Give the models their forward pass back."""
        for model in self._models:
            if isinstance(vars(model).get("forward"), _Forward):
                del vars(model)["forward"]
        self._models, self._called = [], False

    def output(self, model: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the forward pass returned for such an input, or returns now."""
        self._called = True
        key = None if self._must_run else _key(model, args, kwargs)
        if key in self._outputs:
            leaves, structure = self._outputs[key]
            return pytree.tree_unflatten([_fresh(leaf) for leaf in leaves], structure)
        before = _host_randomness(), _attributes(model)
        output = forward(*args, **kwargs)
        if before != (_host_randomness(), _attributes(model)):
            self._must_run = True  # dropout on the host decides which samples come next, a counter what the model does
        elif key is not None:
            self._keep(key, output)
        return output

    def _keep(self, key: Any, output: Any) -> None:
        leaves, structure = pytree.tree_flatten(output)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        size = self._bytes + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size > _OUTPUT_BYTES or (key[1] and len(self._outputs) >= _OUTPUTS):
            return
        if all(type(leaf) in (torch.Tensor, *_PLAIN) for leaf in leaves):
            self._bytes = size
            self._outputs[key] = [_fresh(leaf) for leaf in leaves], structure


class _Forward:
    """In the place of a model's `forward`. A model that is copied or pickled meanwhile goes without it."""

    is_holdfast = True

    def __init__(self, outputs: CachedOutputs, model: nn.Module, forward: Callable[..., Any]) -> None:
        self._outputs, self._model, self._forward = outputs, model, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._outputs.output(self._model, self._forward, args, kwargs)


def _key(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """What an output depends on while the weights stay the same; in training mode only shapes matter. None if it is not known."""
    parts: list[Any] = []
    with contextlib.suppress(Exception):  # an input of a rare kind: the forward pass runs
        leaves, structure = pytree.tree_flatten((args, kwargs))
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                parts.append((leaf.shape, leaf.dtype, leaf.device, None if model.training else _checksum(leaf)))
            elif isinstance(leaf, _PLAIN):
                parts.append(leaf)
            else:
                return None
        autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
        return id(model), model.training, torch.is_grad_enabled(), autocast, repr(structure), tuple(parts)
    return None


def _checksum(tensor: torch.Tensor) -> tuple[float, float]:
    values = tensor.detach().reshape(-1)
    values = (values.cpu() if values.device.type == "mps" else values).double()
    places = torch.arange(1, values.numel() + 1, dtype=torch.float64, device=values.device)
    first, second = torch.stack([values.sum(), (values * places.remainder(8191)).sum()]).tolist()
    return first, second


def _fresh(leaf: Any) -> Any:
    """A tensor of its own: the script may change it in place."""
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _attributes(model: nn.Module) -> list[Any]:
    """The plain attributes of all modules: no checkpoint holds them, so a forward pass that changes one has to run."""
    return [(name, value) for module in model.modules() for name, value in vars(module).items() if isinstance(value, _PLAIN)]


def _host_randomness() -> tuple[bytes, Any, Any]:
    numpys: Any = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (numpys[1].tobytes(), *numpys[2:])


class CachedBatches:
    """Batches of loaders without workers, whose samples need not be read to be counted."""

    def __init__(self) -> None:
        self._batches: dict[tuple[int, int], Any] = {}  # by data set and size
        self._draws: set[int] = set()  # data sets that draw random numbers on the host

    def next(self, iterator: Any) -> Any:
        """The next batch; None if this loader cannot be moved by its sampler alone."""
        if type(iterator) is not _SingleProcessDataLoaderIter or iterator._dataset_kind != _DatasetKind.Map:
            return None
        data = id(iterator._dataset)
        if data in self._draws or not iterator._auto_collation:
            return None
        index = iterator._next_index()  # type: ignore[no-untyped-call]
        batch = self._batches.get((data, len(index)))
        if batch is None:
            before = _host_randomness()
            batch = iterator._dataset_fetcher.fetch(index)
            if before != _host_randomness():
                self._draws.add(data)
            else:
                self._batches[data, len(index)] = batch
        iterator._num_yielded += 1
        return pytree.tree_map(_fresh, batch)
