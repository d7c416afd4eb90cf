"""One training: a main optimizer, the others that work beside it, and the row that each step becomes.

Called around every `optimizer.step()`. Nothing of the user's is kept alive: models and optimizers are held by weak
references, parameters only for the length of a call.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from holdfast.inside.budget import Budget
from holdfast.inside.discovery import Models
from holdfast.inside.gradients.device_reader import DeviceReader, own_values
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.members import Member, Members
from holdfast.inside.observers import step_columns as at
from holdfast.inside.observers.inputs import Inputs
from holdfast.inside.observers.loader import Loader
from holdfast.inside.observers.losses import Losses
from holdfast.inside.observers.memory import ProcessMemory, gpu_memory
from holdfast.inside.observers.modules import FORWARD, ModuleSampler, ModuleTime
from holdfast.inside.observers.parameters import (
    NO_GRADIENT,
    WeightSample,
    ZeroGradCheck,
    plain_weights,
    report_not_zeroed,
    weight_norms,
)
from holdfast.inside.observers.step_table import StepTable
from holdfast.inside.shield import Shield
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING, MISSING_INT
from holdfast.state.parameters import parameters_of

if TYPE_CHECKING:  # loaded under a policy that acts
    from holdfast.inside.control.control import Control
    from holdfast.inside.control.settings import Settings
    from holdfast.inside.control.which_training import WhichTraining
    from holdfast.inside.guard.first_failure import FirstFailure
    from holdfast.inside.guard.guard import Guard

_WRITE_EVERY = 0.05  # seconds; the rows of shorter steps wait so long for each other
_UNWRITTEN_AT_MOST = 64
LOOK_AT_RATES = 16  # steps, whether the weight decay of one group has changed alone
_MEMORY_EVERY = 0.1  # seconds; and after an evaluation
Optimizer = torch.optim.Optimizer


class Training(Members):
    """Puts the rows of one training together."""

    def __init__(
        self, recorder: Recorder, *, losses: Losses, loader: Loader, memory: ProcessMemory, budget: Budget, first: int = 0
    ) -> None:
        super().__init__(loader, Models(recorder), first)
        self.recorder, self.losses, self.memory, self.budget = recorder, losses, memory, budget
        self.guard: Guard | None = None  # under a policy that acts; see compose.py
        self.first_failure: FirstFailure | None = None  # under one that does not
        self.control: Control | None = None  # under one that repairs
        self.settings: Settings | None = None  # once someone has changed a setting from outside
        self.which: WhichTraining | None = None  # of those that its script begins
        self.steps_before = 0  # that its optimizer made when it was taken for an inner loop of another training
        self.step_table = StepTable(recorder)
        self.cost = 0.0  # seconds that Holdfast took since the last row was finished
        self.evaluated = 0.0  # seconds of evaluation since the last step
        self.sampler = ModuleSampler(memory, recorder.step_back)
        self.inputs = Inputs()
        self.reader: DeviceReader | None = None  # once there are gradients on a GPU; that of the main optimizer, if it has some
        self._readers: dict[torch.device, DeviceReader] = {}
        self._metrics: StepMetrics | None = None
        self._inner: StepMetrics | None = None  # the update of an inner loop that is under way
        self.read_early: StepMetrics | None = None
        self._early_at = 0
        self.clip_norm: float | None = None
        self._norm_is_shared = False  # whether the norm that the script computes takes several ranks to tell
        self._sample: WeightSample | None = None
        self._ran: set[str] = set()  # modules of which a forward pass was seen
        self._zero_grad_check = ZeroGradCheck()
        self._sampled_cost, self._sampling_cost = 0.0, 0.0
        self._ended_at: float | None = None
        self._memory_at = 0.0
        self._newest_row: list[float | int] | None = None  # of the last step, perhaps not written yet
        self._workers_rss: int | None = None
        self._written_at = 0.0
        self._writing = threading.Lock()
        metric = Shield(recorder.step_back)  # its own: what is sampled may fail without ending what is done at every step
        self._read_each, self._take_sample = metric(self._read_each_one), metric(self._sample_weights)
        self._compare, self._times = metric(self._compare_weights), metric(self._module_times)
        self._read_weights = metric(self._read_norm_of_weights)
        self._start_times = metric(self.sampler.start)
        recorder.every_second(self._each_second)

    def use_models(self, roots: Iterable[nn.Module]) -> None:
        """Learn the models whose parameters are trained here, for names and module times."""
        roots = list(roots)
        self.sampler.stop()  # it may be timing the modules that were known so far
        self.models.learn(roots)
        if self.guard is not None:
            self.guard.learn_models(roots)

    # Around one step

    def before_clipping(self, parameters: list[torch.Tensor], norm_type: float) -> None:
        """The script is about to clip: read the gradients first, if more is wanted than the norm it will compute."""
        optimizer = self.main.optimizer() if self.main is not None else None
        if self.main is None or optimizer is None or self.has_read_early():
            return
        some, all_of_them = self.main.share_in(parameters)
        each = some and self.budget.due("parameters", self.step)
        if some and (each or not all_of_them or norm_type != 2.0 or self.guard is not None or self._norm_is_shared):
            self._keep_early(self._read(parameters_of(optimizer), self.main, each=each))

    def after_clipping(self, norm: Any, limit: Any, parameters: list[torch.Tensor]) -> bool:
        """Take the norm that the script computed anyway; False if these parameters are not the main optimizer's."""
        some, all_of_them = self.main.share_in(parameters) if self.main is not None else (False, False)
        if not some:
            return False
        self.clip_norm = float(limit) if isinstance(limit, (int, float)) else None
        if isinstance(norm, torch.Tensor) and own_values(norm) is None:
            self._norm_is_shared = True  # from the next step on the gradients are read before they are clipped
        elif all_of_them and not self.has_read_early():
            metrics = StepMetrics(self.reader_for(parameters[0].device))
            metrics.add("norm", norm)
            self._keep_early(metrics)
        return True

    def before_update(self, optimizer: Optimizer, scaler: Any = None) -> None:
        """The gradients are complete and the update comes next: read them."""
        member = self.members[id(optimizer)]
        if member.is_inner:
            if self.guard is not None or member.rows is not None:
                self._before_beside(optimizer, member)
            return
        if self.settings is not None:
            self.settings.apply(optimizer)
        if member is not self.main:
            self._before_beside(optimizer, member)
            return
        metrics, self.read_early = self.read_early, None
        if metrics is not None and self._early_at != self.losses.calls:
            metrics = None  # left behind by a step that raised
        something_due = self.step >= self.budget.next_step
        each = metrics is None and something_due and self.budget.due("parameters", self.step)
        norm_due = something_due and not each and self.budget.due("weight-norm", self.step)
        self._measure(optimizer, member, metrics, scaler, each=each)
        if norm_due:
            self._read_weights(parameters_of(optimizer))
        if something_due and self.budget.due("weights", self.step):
            self._take_sample(parameters_of(optimizer))

    def _measure(self, optimizer: Optimizer, member: Member, early: StepMetrics | None, scaler: Any, *, each: bool) -> None:
        """Read the gradients, the loss and the learning rate of a step of the main optimizer; the guard checks them."""
        parameters, metrics, losses = parameters_of(optimizer), early, self.losses
        if metrics is None:
            metrics = self._read(parameters, member, each=True) if each else member.read(parameters, self, each=False)
        if metrics.reader is not None:
            self.reader = metrics.reader
        loss, rate = losses.total(), optimizer.param_groups[0].get("lr")
        if type(loss) is float and type(rate) is float:
            metrics.loss, metrics.lr = loss, rate
        else:
            metrics.add_loss(loss)
            if type(rate) is float:
                metrics.lr = rate
            else:
                metrics.add("lr", rate)
        if losses.count > 1:
            metrics.backwards = losses.count
        if losses.evidence is not None:
            metrics.evidence = losses.evidence
        if not self._zero_grad_check.is_decided:
            self._zero_grad_check.before(parameters, losses.calls, clipped=self.clip_norm is not None, scaled=scaler is not None)
        if scaler is not None:
            metrics.add("scale", scaler._scale)
            metrics.add("grad_scale", getattr(optimizer, "grad_scale", None))
            metrics.add("found_inf", getattr(optimizer, "found_inf", None))
        self._metrics = metrics
        if self.guard is not None:
            self.guard.before(optimizer, metrics, self.step, is_main=True, clipped_at=self.clip_norm)
        elif self.first_failure is not None:
            loss, norm = metrics.loss, metrics.norm  # a number less itself is 0.0, unless it is not finite
            sound = (loss is None or loss - loss == 0.0) and (norm is None or norm - norm == 0.0)
            if not sound or metrics.stats is not None:
                self.first_failure.saw(self.step, metrics, at_once=True)
        if metrics.reader is not None:
            metrics.start()
        if self.settings is not None:
            self.clip_norm = self.settings.clip(optimizer, self.clip_norm)

    def after_update(self, optimizer: Optimizer, *, skipped: bool = False) -> None:
        """The update is done, or was skipped by the scaler: finish the row."""
        member = self.members[id(optimizer)]
        member.steps += 1
        if member.is_inner:
            member.steps_alone += 1
            if self.guard is not None and self.guard.after(optimizer, None, skipped=skipped, is_main=False, inner=True):
                skipped = True
            if self._inner is not None:
                member.keep_row(self._inner, self.losses.count, skipped=skipped)
            return
        metrics, self._metrics = (self._metrics, None) if member is self.main else (None, self._metrics)
        if self.guard is not None and self.guard.after(optimizer, metrics, skipped=skipped, is_main=member is self.main):
            skipped = True
        rate = metrics.lr if metrics is not None else None
        if rate is None or rate != member.rate or len(optimizer.param_groups) > 1 or member.steps % LOOK_AT_RATES == 0:
            self.note_rates(optimizer, member, rate)
        if self.settings is not None:
            self.settings.revert()
        if member is not self.main or metrics is None:
            member.steps_alone += 1
            return
        if len(self.members) > 1:
            self.main_has_stepped()
        if self._sample is not None:
            self._compare(metrics, optimizer)
        if not self._zero_grad_check.is_decided and self._zero_grad_check.after(parameters_of(optimizer), self.losses.calls):
            self.recorder.run_later(partial(report_not_zeroed, self.recorder, self.step))
        self.end_step(member, metrics, self._times() if self.sampler.running else None, skipped=skipped)
        if self.step >= self.budget.next_step and self.budget.due("modules", self.step):
            self._start_times(self.roots(), self.reader.device if self.reader is not None else torch.device("cpu"))
        if self.control is not None:
            self.control.between_steps(self.step, good=not skipped)

    def may_be_common(self, optimizer: Optimizer) -> bool:
        """Whether the next step of this optimizer may be a common one, as far as this one tells: see common_step.py."""
        return (
            len(self.members) == 1
            and self.main_optimizer() is optimizer
            and isinstance(optimizer, Optimizer)
            and self.settings is None
            and not self._holding
            and not self.sampler.running
            and self._zero_grad_check.is_decided
        )

    def note_rates(self, optimizer: Optimizer, member: Member, rate: float | None) -> None:
        """Write the learning rates and weight decays that have changed, or may have: those of several groups, or on a GPU."""
        if not self._holding:
            member.rate = rate
            self.step_table.rates(self.step, 0 if member is self.main else self._number_of(member), optimizer.param_groups)

    def end_step(self, member: Member, metrics: StepMetrics, times: list[ModuleTime] | None, *, skipped: bool) -> None:
        """Open the next step, and put the row of this one together as far as the host knows it. On the way of every step."""
        now, clock = time.perf_counter(), time.time()  # one moment: a pause between two steps shows in their difference
        epoch, workers = self.loader.epoch, self._workers_rss
        waited, samples = (MISSING, MISSING_INT) if epoch is None else self.loader.take()
        clip_norm = MISSING if self.clip_norm is None else self.clip_norm
        cost, seconds = self.cost, MISSING if self._ended_at is None else now - self._ended_at - self.evaluated
        self.budget.end_step(self.step, seconds, cost - self._sampled_cost, metrics.loss, metrics.lr)
        row = self._newest_row = [  # in the order of the schema: one expression is much cheaper than one assignment a column
            self.step, MISSING_INT if epoch is None else epoch, clock, MISSING, MISSING, MISSING, MISSING, MISSING,
            seconds, waited, samples, int(skipped), MISSING, MISSING_INT, MISSING_INT, self.memory.latest, MISSING_INT,
            MISSING_INT if workers is None else workers, MISSING_INT, metrics.backwards, clip_norm, cost,
        ]  # fmt: skip
        if now - self._memory_at > _MEMORY_EVERY or self.evaluated:
            self._read_memory(row, now)
        self.clip_norm, self._ended_at, self.evaluated, self._sampled_cost, self.cost = None, now, 0.0, 0.0, 0.0
        self.step += 1
        if self._holding:
            self._hold(member, row, now)
        if self.reader is None:
            self._unwritten.append((row, metrics, times))
            if now - self._written_at > _WRITE_EVERY or times or len(self._unwritten) >= _UNWRITTEN_AT_MOST:
                self._read_memory(row, now)  # what an evaluation that begins now finds cannot be put into a row that is written
                self.write()
        else:
            if self.guard is not None:
                self.guard.report.step_sent(self.step - 1)
            metrics.finish(partial(self._arrived, self.beginning, row, times))
            if now - self._written_at > _WRITE_EVERY or times or self.reader.is_urgent():
                self._collect()

    def _before_beside(self, optimizer: Optimizer, member: Member) -> None:
        """The update of another optimizer than the main one comes next."""
        metrics = self._read(parameters_of(optimizer), member, each=False)
        if member.is_inner:
            self._inner, loss = metrics, self.losses.total()
            metrics.add("loss", loss if loss is None or isinstance(loss, float) or not loss.is_cuda else None)
            metrics.add("lr", optimizer.param_groups[0].get("lr"))
        if self.guard is not None:
            self.guard.before(optimizer, metrics, self.step, is_main=False)
        if not member.is_inner:
            metrics.finish(self.step_table.other_step)
            if self.settings is not None:
                self.settings.clip(optimizer, None)

    def begin_with(self, rows: Sequence[tuple[list[float | int], StepMetrics]]) -> None:
        """What was an inner loop so far has become this training: these are its first steps."""
        self._unwritten.extend((row, metrics, None) for row, metrics in rows)
        self.begin_at(self.step + len(rows))
        self.write()

    def write(self) -> None:
        """Write the rows of the last steps. Short steps are written several at a time: together they cost far less.

        The helper thread calls it too, for a training that hangs: who comes second, leaves.
        """
        if self._holding or not self._writing.acquire(blocking=False):
            return
        try:
            finished = []
            while self._unwritten:  # one by one: the training thread may append at any time
                finished.append(self._unwritten.popleft())
            self._written_at = time.perf_counter()
            self.step_table.steps(finished)
            for row, metrics, _ in finished:
                if metrics.weights is not None:
                    self.budget.note_weights(self.step, row[at.WEIGHT_NORM])
        finally:
            self._writing.release()

    def _arrived(self, beginning: int, row: list[float | int], times: list[ModuleTime] | None, metrics: StepMetrics) -> None:
        """The numbers of a step have come from the device; too late if another optimizer has become the main one since."""
        if self.guard is not None:
            self.guard.arrived(int(row[at.STEP]), metrics)
        elif self.first_failure is not None:
            self.first_failure.saw(int(row[at.STEP]), metrics, at_once=False)
        if beginning == self.beginning:
            self._unwritten.append((row, metrics, times))

    def _collect(self) -> None:
        """Take in what has come from the devices; several short steps at a time: together they cost far less."""
        self._written_at = time.perf_counter()
        for reader in self._readers.values():
            reader.collect()
        self.write()

    def close(self) -> None:
        """Write what is still under way and seal the tables."""
        self.sampler.stop()
        if self.guard is not None:  # an error that nobody caught, or `sys.exit` after a look at the loss
            self.guard.report.ended(self.step, getattr(sys, "last_value", None))
        if self.control is not None:
            self.control.close()
        self._holding = False
        self.write()
        for reader in self._readers.values():
            reader.wait()
        self.write()
        self.step_table.close()
        self.recorder.close()

    def evaluation_begins(self) -> None:
        """What memory the steps until now have taken is in the row of the last one; the rest is the evaluation's."""
        if self._newest_row is not None:
            self._newest_row[at.HOST_RSS] = self.memory.read()

    def forget_clipping(self) -> None:
        """Code that is evaluated between two steps must leave nothing for the step to come."""
        self.read_early, self.clip_norm = None, None

    # Parts of a step

    def has_read_early(self) -> bool:
        """Whether the gradients of this step were read when the script clipped them; a step that raised may have left some."""
        return self.read_early is not None and self._early_at == self.losses.calls

    def _keep_early(self, metrics: StepMetrics) -> None:
        metrics.start(alone=True)
        self.read_early, self._early_at = metrics, self.losses.calls

    def reader_for(self, device: torch.device) -> DeviceReader | None:
        """Who brings numbers from this device; None for the host."""
        if device.type != "cuda":
            return None
        reader = self._readers.get(device)
        if reader is None:
            reader = self._readers[device] = DeviceReader(device)
            self.reader = self.reader or reader
        return reader

    def _read(self, parameters: list[torch.Tensor], member: Member, *, each: bool) -> StepMetrics:
        """Read the gradients of these parameters, all together or each."""
        metrics = self._read_each(parameters, member) if each else None
        return member.read(parameters, self, each=False) if metrics is None else metrics

    def _read_each_one(self, parameters: list[torch.Tensor], member: Member) -> StepMetrics:
        begun = time.perf_counter()
        metrics = member.read(parameters, self, each=True)
        with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
        if with_gradient:
            rest = [parameter for parameter in parameters if parameter.grad is None]  # frozen for now: they count in the whole
            metrics.add("weights", weight_norms(plain_weights(with_gradient + rest)))
            metrics.has_each_weight = True
        others = [held for other in self.members.values() if other is not member and (held := other.optimizer()) is not None]
        of_others = [parameter for held in others for parameter in parameters_of(held)]
        metrics.untrained = self.models.newly_untrained(parameters, of_others, self.losses.calls, self._ran)
        if any(change.why == NO_GRADIENT for change in metrics.untrained):
            self.budget.look_again(self.step)
        self.charge("parameters", begun)
        return metrics

    def _read_norm_of_weights(self, parameters: list[torch.Tensor]) -> None:
        """Only the norm: it costs so little that it shows within a few steps when weights were overwritten."""
        begun = time.perf_counter()
        if self._metrics is not None:
            self._metrics.add("weights", weight_norms(plain_weights(parameters)))
        self.charge("weight-norm", begun)

    def _sample_weights(self, parameters: list[torch.Tensor]) -> None:
        begun = time.perf_counter()
        self._sample = WeightSample(plain_weights(parameters))
        self._sampling_cost = time.perf_counter() - begun

    def _compare_weights(self, metrics: StepMetrics, optimizer: Optimizer) -> None:
        sample, self._sample = self._sample, None
        if sample is not None:
            begun = time.perf_counter()
            metrics.add("update_ratio", sample.compare(plain_weights(parameters_of(optimizer))))
            self.charge("weights", begun - self._sampling_cost)

    def _read_memory(self, row: list[float | int], now: float) -> None:
        self._memory_at = now
        row[at.HOST_RSS] = self.memory.read()
        if self.reader is not None:
            row[at.GPU_ALLOCATED], row[at.GPU_RESERVED], row[at.GPU_PEAK] = gpu_memory(self.reader.device)

    def _module_times(self) -> list[ModuleTime]:
        """Times of the modules in this step, which was sampled; hooks come off unless every step is."""
        begun = time.perf_counter()
        times = self.sampler.take() if "modules" in self.budget.always_done else self.sampler.stop()
        self._ran.update(name for name, stage, *_ in times if stage == FORWARD)
        hooks, self.sampler.cost = self.sampler.cost, 0.0
        self.cost += hooks  # the session has not seen it
        self.charge("modules", begun - hooks)
        return times

    def charge(self, metric: str, begun: float) -> None:
        """What was done since `begun` is not part of every step."""
        seconds = time.perf_counter() - begun
        self.budget.charge(metric, seconds)
        self._sampled_cost += seconds

    def _each_second(self) -> None:
        if self._unwritten and time.perf_counter() - self._written_at > 1.0:
            self.write()
        self._workers_rss = self.loader.workers_resident()
        self.loader.record(self.recorder, self.step)
