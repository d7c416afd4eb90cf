"""What happens in this process: which trainings there are, which optimizer belongs to which, and who gets an event.

    backward            -> losses
    clip_grad_norm_     -> the training whose gradients they are
    optimizer.step      -> before_update, the update, after_update: one row
    DataLoader          -> loader
    model.eval/train    -> evaluation

Which optimizer belongs to which training is found once, at its first step: training_setup.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.utils.data import get_worker_info

from holdfast.inside.common_step import CommonStep
from holdfast.inside.control.interrupt import Interrupt
from holdfast.inside.control.restarted import ELASTIC, restarted
from holdfast.inside.manual_updates import LOOK_AFTER_STEPS, PACKAGES
from holdfast.inside.observers.evaluations import EvaluationPhase, write_logged
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.process import Process
from holdfast.inside.scope import Scope
from holdfast.inside.taps.imports import when_imported
from holdfast.inside.training import Training
from holdfast.inside.training_setup import assign, settle
from holdfast.signals.pulse import ENDING
from holdfast.state import fast_forward

if TYPE_CHECKING:
    from holdfast.inside.control.fast_forward import FastForwards
    from holdfast.inside.control.server import ControlServers
    from holdfast.inside.guard.protected_checkpoints import ProtectedCheckpoints

Optimizer = torch.optim.Optimizer


class Runtime(Process):
    """What happens in this process; the rest is there for those who only need to know."""

    def __init__(self) -> None:
        super().__init__()
        self.samples_modules = False  # whether modules are being timed in this step
        self._closes_with = os.getpid()  # the process that wrote down to close with it; this one has `atexit`
        self.servers: ControlServers | None = None
        self.interrupt = Interrupt(self)
        self.fast_forwarding: FastForwards | None = None  # after a restart of a script that does not resume by itself
        self._protected: tuple[Scope, ProtectedCheckpoints] | None = None  # of the attempts before
        self.saves.fast_forwarding = lambda: self.fast_forwarding is not None
        self.when_begun.append(self._training_begins)
        self.when_over.append(self._close_server)
        when_imported({**dict.fromkeys(PACKAGES, self._look_soon), "torchft.manager": self._torchft_imported})

    def _torchft_imported(self, _torchft: object) -> None:
        from holdfast.inside.observers.replicas import Replicas

        def write(kind: str, **values: Any) -> None:
            for scope in self.scopes[:1]:
                scope.run.journal.write(kind, **values)

        Replicas(write).attach()

    # Events of the optimizer

    def before_update(self, optimizer: Optimizer, scaler: Any) -> None:
        """The gradients of an optimizer are complete."""
        begun, thread = time.perf_counter(), self.threads.here
        thread.common = None  # this is not one
        if thread.evaluation is not None:
            self.end_evaluation()
        entry = self.of_optimizer.get(id(optimizer))
        training = entry[1] if entry is not None and entry[0]() is optimizer else self._training_of(optimizer)
        if training is not None and training.losses is not thread.losses:  # it was begun by another thread
            training.losses = thread.losses
        if training is not None and (self.fast_forwarding is None or not self.fast_forwarding.before(training, optimizer)):
            training.before_update(optimizer, scaler)
        thread.cost += time.perf_counter() - begun

    def update_unchecked(self, optimizer: Optimizer, scaler: Any) -> None:
        """Holdfast has failed before an update, or is off there: no other rank may wait for it. With a scaler none does."""
        _, training = self.of_optimizer.get(id(optimizer), (None, None))
        if training is not None and training.guard is not None and scaler is None:
            with contextlib.suppress(Exception):  # the ranks are gone: the training finds out itself
                training.guard.failed(optimizer)

    def after_update(self, optimizer: Optimizer, *, skipped: bool = False) -> None:
        """An optimizer has stepped, or its scaler skipped the step."""
        begun, thread = time.perf_counter(), self.threads.here
        thread.losses.end_step()
        if optimizer is not thread.manual:
            thread.backwards, thread.look_at, thread.manual = 0, LOOK_AFTER_STEPS, None
        entry = self.of_optimizer.get(id(optimizer))
        training = entry[1] if entry is not None and entry[0]() is optimizer else self._training_of(optimizer)
        if training is None:
            return
        if self.fast_forwarding is not None:
            was_skipped = self.fast_forwarding.after(training, optimizer)
            if not self.fast_forwarding.is_under_way():
                self.fast_forwarding = None
            if was_skipped:
                return
        training.cost += thread.cost
        thread.cost = 0.0
        training.after_update(optimizer, skipped=skipped)
        HEARTBEAT.stepped(training.step)
        if thread.feed is not None and thread.feed.batches is not None:
            thread.feed.batches.end_step()
        self.samples_modules = training.sampler.running or (
            len(self.of_optimizer) > 1 and any(t.sampler.running for t in self.trainings)
        )
        if len(training.members) > 1:
            member = training.members[id(optimizer)]
            if member.steps_alone >= member.steps_alone_at_most:
                settle(self, training, optimizer)
        training.cost += time.perf_counter() - begun
        if self.stopping is not None:
            self.stopping(training)
        if self.on_step_boundary is not None and training.main_optimizer() is optimizer:
            self.on_step_boundary(training)
        if thread.manual is None and self.fast_forwarding is None and training.may_be_common(optimizer):
            thread.common = CommonStep(self, training, training.members[id(optimizer)])

    def clipping_begins(self, parameters: list[torch.Tensor], norm_type: float) -> None:
        """The script is about to clip gradients."""
        begun = time.perf_counter()
        for training in self.trainings:
            training.before_clipping(parameters, norm_type)
        self.thread.cost += time.perf_counter() - begun

    def clipping_ended(self, parameters: list[torch.Tensor], norm: Any, limit: Any, norm_type: float) -> None:
        """The script has clipped gradients and knows their norm. Before the first step, the training is not known yet."""
        begun = time.perf_counter()
        clipped = [training for training in self.trainings if training.after_clipping(norm, limit, parameters)]
        self.thread.first_clipping = (norm, limit, parameters) if not clipped and norm_type == 2.0 else None
        self.thread.cost += time.perf_counter() - begun

    # Events of the backward pass

    def backward_begins(self, outputs: Any) -> None:
        """`backward` was called on something."""
        begun, thread = time.perf_counter(), self.threads.here
        if thread.evaluation is not None:
            self.end_evaluation()
        if thread.manual is not None:
            self._end_manual_update()
        thread.losses.note(outputs)
        thread.first_clipping = None
        HEARTBEAT.beat()
        thread.cost += time.perf_counter() - begun

    def backward_ended(self) -> None:
        """All gradients of a `backward` call are there."""
        for training in self.trainings:
            training.sampler.end_backward()
        thread = self.thread
        if thread.manual is None and thread.backwards >= thread.look_at:
            thread.look_at *= 2
            if self.scopes and torch.is_grad_enabled():
                thread.manual = thread.manual_search.look()
            if thread.manual is not None and (of := self._training_of(cast(Optimizer, thread.manual))) is not None:
                thread.look_at = 0  # from now on each backward pass is a step
                if thread.backwards > 1:
                    thread.losses.forget_sum()
                is_new = of.main is None or not of.main.steps  # it may count on from a checkpoint
                of.begin_at(of.step + thread.backwards - 1 if is_new else max(of.step, thread.backwards - 1))
        if thread.manual is not None:
            thread.in_manual_update = True
            self.before_update(cast(Optimizer, thread.manual), None)

    def expect_updates(self, optimizer: Optimizer | None) -> Callable[[], None]:
        """From now on each backward pass of this thread is a step of this optimizer; what is returned ends the update."""
        self._end_manual_update()
        self.thread.common = None
        self.thread.manual, self.thread.look_at = optimizer, LOOK_AFTER_STEPS if optimizer is None else 0
        return self._end_manual_update

    def _look_soon(self, _module: ModuleType) -> None:
        """A package is imported whose optimizers are not torch's."""
        self.thread.look_at = min(self.thread.look_at, 1)

    def _end_manual_update(self) -> None:
        """The script has made the update of its last backward pass by now."""
        if self.thread.manual is not None and self.thread.in_manual_update:
            self.thread.in_manual_update = False
            self.after_update(cast(Optimizer, self.thread.manual))

    def gradients_computed(self) -> None:
        """The script, or `torch.func`, has called `torch.autograd.grad`."""
        self.gradient_calls += 1

    def stop_sampling_modules(self) -> None:
        """Take the hooks off the modules before the step is over: TorchScript would compile them in."""
        for training in self.trainings:
            training.sampler.stop()

    # Events of the loader

    def begins_to_draw(self) -> None:
        """A loader is asked for a batch before the first step: that is where a training can hang first."""
        if self.scopes and get_worker_info() is None:
            HEARTBEAT.show_start(self.scopes[-1].run)

    def batch(self, iterator: Any, batch: Any, seconds: float) -> None:
        """A loader gave a batch."""
        if fast_forward.active:
            return
        begun, thread = time.perf_counter(), self.threads.here
        feed = thread.feed
        if feed is None:
            feed = thread.feed = self.feeds.for_drawing(iterator)
        loader, evaluating = feed.loader, thread.evaluation is not None and thread.evaluation.of is not None
        to_learn = torch.is_grad_enabled() and (not evaluating or loader.is_main(iterator))
        if torch.is_grad_enabled():
            if to_learn:  # trainers draw before they call `model.train()`
                self.end_evaluation()
            loader.note_batch(iterator, batch, seconds, evaluating=evaluating and not to_learn)
            if feed.batches is not None and to_learn:
                feed.batches.note(iterator, batch)
        else:
            self._evaluation(since=begun - seconds)
        training = next((other for other in reversed(self.trainings) if other.loader is loader), None)
        if training is not None and self.fast_forwarding is None:  # then one batch stands for many
            (training.inputs.batch if to_learn else training.inputs.held_out)(training, iterator, batch)
        thread.cost += time.perf_counter() - begun

    def loader_ended(self, iterator: Any) -> None:
        """A loader was drawn to its end."""
        if torch.is_grad_enabled() and self.thread.feed is not None:
            self.thread.feed.loader.note_end(iterator)

    def set_epoch(self, number: int) -> None:
        """The script says which epoch it is; an evaluation in progress was of the one before."""
        if number != self.loader.epoch:
            self.end_evaluation()
        self.loader.set_epoch(number)

    # Events of evaluation

    def mode_set(self, module: nn.Module, training_mode: bool) -> None:
        """`train()` or `eval()` was called on some module; only that of a whole model counts."""
        entry = self.whole_models.get(id(module))
        if entry is None or entry[0]() is not module:
            return
        entry[1].sampler.paused = not training_mode
        if training_mode:
            self.end_evaluation()
        else:
            self._evaluation(since=time.perf_counter()).observe(entry[1])

    def _evaluation(self, since: float) -> EvaluationPhase:
        """The evaluation that is in progress in this thread; begins one if there is none."""
        if self.thread.evaluation is None:
            self.thread.evaluation = EvaluationPhase(since, self.trouble)
            HEARTBEAT.evaluation_begins()
            for training in self.trainings:
                if training.losses is self.thread.losses:
                    training.evaluation_begins()
        return self.thread.evaluation

    def end_evaluation(self) -> None:
        """Training continues: write the recorded losses, and keep the evaluation's time out of the step."""
        phase, self.thread.evaluation = self.thread.evaluation, None
        if phase is None:
            return
        HEARTBEAT.evaluation_ends()
        for training in self.trainings:
            if training.losses is self.thread.losses:
                training.evaluated += time.perf_counter() - phase.since
        for loss in phase.close():
            write_logged(phase.of, loss)

    # Events that only a guarded training listens to

    def state_loaded(self) -> None:
        """The script loads weights: statistics that were kept are not to be put back."""
        for training in self.trainings:
            if training.guard is not None:
                training.guard.statistics.forget()

    def was_skipped(self, model: nn.Module) -> bool:
        """Whether the last update of this model was skipped, so that its average must not move either."""
        parameters = list(model.parameters())[:1]
        guards = [training.guard for training in self.trainings if training.guard is not None and training.trains(parameters)]
        return any(guard.last_was_skipped() for guard in guards)

    # Beginning and end

    def trouble(self, what: str, error: BaseException) -> None:
        """Holdfast made a mistake: tell the journal of every run it concerns."""
        for scope in self.scopes:
            scope.step_back(what, error)

    def close(self, scope: Scope) -> None:
        """End the recording of one scope."""
        self.end_evaluation()
        self._end_manual_update()
        self._settle_rest(scope)
        if self.fast_forwarding is not None and scope.follows_children:
            with contextlib.suppress(OSError):
                self.fast_forwarding.tell_stopped_early()
        self.saves.rows.flush(everything=True)
        if scope in self.scopes:
            self.scopes.remove(scope)
        if not self.scopes:
            self.interrupt.uninstall()
            HEARTBEAT.enter(ENDING)
        scope.finish_closing()
        for training in scope.trainings:
            self._close_server(training)
            training.close()
        gone = {id(training) for training in scope.trainings}
        self.of_optimizer = {k: v for k, v in self.of_optimizer.items() if v[1] is not None and id(v[1]) not in gone}
        for key in [key for key, (_, training) in self.whole_models.items() if id(training) in gone]:
            del self.whole_models[key]
        if not self.scopes:  # a backward pass without a step: the next run begins without it
            self.losses.__init__()  # type: ignore[misc]

    def write_rows(self) -> None:
        """The process ends at once, without `atexit`: write the last steps, and send the answers that are under way."""
        for training in self.trainings:
            training.write()
        if self.servers is not None:
            self.servers.finish_responses()

    def _settle_rest(self, scope: Scope) -> None:
        """What stepped a few times after another training was no inner loop of it, as it turns out."""
        for training in list(scope.trainings):
            for member in list(training.members.values()):
                if member.rows and (optimizer := member.optimizer()) is not None:
                    settle(self, training, optimizer)

    def after_fork(self) -> None:
        """In a forked child: the parent's tables are not ours to write, its helper thread does not exist here."""
        if self.thread.evaluation is not None:
            self.thread.evaluation.close()
        self.stop_sampling_modules()
        self.scopes = [scope.in_child() for scope in self.scopes if scope.follows_children]
        self.saves.after_fork()
        HEARTBEAT.after_fork()
        if self.servers is not None:
            self.servers.after_fork()
            self.on_step_boundary = self.servers = None
        self.memory.__init__()  # type: ignore[misc]
        self.thread.__init__()  # type: ignore[misc]
        self.feeds.clear()
        self.of_optimizer.clear()
        self.whole_models.clear()

    def _training_begins(self, scope: Scope, training: Training, optimizer: Optimizer) -> None:
        self._close_with_the_process()
        self._open_server(scope, training)
        if scope.follows_children and scope.policy.acts:
            self.interrupt.install(scope)
        restart = restarted()
        if ELASTIC in os.environ and scope.follows_children:
            from holdfast.inside.run_checkpoints import restarted_in

            restart = restarted_in(scope.run)
        if restart is not None and isinstance(optimizer, Optimizer) and self.thread.manual is None:
            from holdfast.inside.control.fast_forward import FastForwards, start_fast_forward

            uses_grad = self.gradient_calls > 0
            begun = start_fast_forward(self.loads, scope, training, optimizer, restart, uses_grad=uses_grad)
            if begun is not None:
                if self._protected is None or self._protected[0] is not scope:  # once: what is saved next is this attempt's
                    folders = {Path(row["path"]).parent for row in scope.run.journal if row.get("event") == "saved"}
                    self._protected = scope, self.saves.protect_earlier(folders, restart.attempt)
                begun.protected = self._protected[1]
                self.fast_forwarding = self.fast_forwarding or FastForwards(scope)
                self.fast_forwarding.add(training, begun)

    def _open_server(self, scope: Scope, training: Training) -> None:
        """Let a training be asked from outside, unless that was switched off."""
        if not scope.control or os.environ.get("HOLDFAST_CONTROL") == "0":
            return
        try:
            if self.servers is None:
                from holdfast.inside.control.server import ControlServers

                self.servers = ControlServers(self)
            self.servers.open(training, scope)
        except Exception as error:  # noqa: BLE001 - the training is recorded without it
            scope.step_back("opening the control server", error)

    def _close_server(self, training: Training) -> None:
        if self.servers is not None:
            self.servers.close(training)

    def _close_with_the_process(self) -> None:
        """Have a forked child write what is under way: `multiprocessing` ends it without `atexit`, but calls this."""
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None and os.getpid() != self._closes_with:
            self._closes_with = os.getpid()
            util.Finalize(None, self._close_all, exitpriority=0)

    def _close_all(self) -> None:
        for scope in list(self.scopes):
            with contextlib.suppress(Exception):
                self.close(scope)

    # Who belongs to which training

    def _training_of(self, optimizer: Optimizer) -> Training | None:
        entry = self.of_optimizer.get(id(optimizer))
        if entry is not None and entry[0]() is optimizer:
            return entry[1]
        training = assign(self, optimizer)
        self.of_optimizer[id(optimizer)] = (weakref.ref(optimizer), training)
        return training
