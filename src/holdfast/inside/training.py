"""One training: a main optimizer, the others that work beside it, and the row that each step becomes.

Called around every `optimizer.step()`. Nothing of the user's is kept alive: models and optimizers are held by weak
references, parameters only for the length of a call.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from holdfast.inside import step_row as at
from holdfast.inside.budget import Budget
from holdfast.inside.capture.device import Courier
from holdfast.inside.capture.gradients import HostPlan, read_each_on_host
from holdfast.inside.capture.loader import Loader
from holdfast.inside.capture.losses import Losses
from holdfast.inside.capture.memory import ProcessMemory, gpu_memory
from holdfast.inside.capture.modules import ModuleSampler, ModuleTime
from holdfast.inside.capture.quick import quick_norm
from holdfast.inside.capture.untrained import Untrained
from holdfast.inside.capture.weights import WeightSample, plain_weights, weight_norms
from holdfast.inside.discovery import named
from holdfast.inside.gathering import Gathering
from holdfast.inside.member import Member, parameters_of
from holdfast.inside.publishing import Publisher
from holdfast.inside.scope import Logged
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING, MISSING_INT

if TYPE_CHECKING:  # loaded under a policy that acts
    from holdfast.inside.control import Control
    from holdfast.inside.door.settings import Settings
    from holdfast.inside.reflexes.guard import Guard

_WRITE_EVERY = 0.05  # seconds; the rows of shorter steps wait so long for each other
_UNWRITTEN_AT_MOST = 64
_BEGINNING_STEPS, _BEGINNING_SECONDS = 16, 30.0  # in which a second optimizer may show that it works beside the first
_MEMORY_EVERY = 0.02  # seconds; between two readings of the GPU's memory it is missing, not repeated
Optimizer = torch.optim.Optimizer


class Training:
    """Puts the rows of one training together."""

    def __init__(
        self, recorder: Recorder, *, losses: Losses, loader: Loader, memory: ProcessMemory, budget: Budget, first: int = 0
    ) -> None:
        self.recorder, self.losses, self.loader, self.memory, self.budget = recorder, losses, loader, memory, budget
        self.guard: Guard | None = None  # under a policy that acts; see guarding.py
        self.control: Control | None = None  # under one that repairs
        self.changes: Settings | None = None  # once someone has changed a setting from outside
        self.publisher = Publisher(recorder)
        self.members: dict[int, Member] = {}
        self.main: Member | None = None
        self.step = self._first = first
        self.cost = 0.0  # seconds that Holdfast took since the last row was finished
        self.evaluated = 0.0  # seconds of evaluation since the last step
        self.sampler = ModuleSampler(memory, recorder.step_back)
        self._roots: list[weakref.ref[nn.Module]] = []
        self._names: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._trained: dict[int, weakref.ref[torch.Tensor]] = {}
        self._untrained = Untrained()
        self._courier: Courier | None = None
        self._gathering: Gathering | None = None
        self._read_early: Gathering | None = None
        self._early_at = 0
        self._clip_norm: float | None = None
        self._backwards = 0
        self._sample: WeightSample | None = None
        self._luxury_cost, self._sampling_cost = 0.0, 0.0
        self._ended_at: float | None = None
        self._memory_at = 0.0
        self._workers_rss: int | None = None
        self._unwritten: deque[tuple[list[float | int], Gathering, list[ModuleTime] | None]] = deque()
        self._written_at = 0.0
        self._began_at = time.perf_counter()
        self._expected: list[weakref.ref[Optimizer]] = []
        self._holding, self._beginning = False, 0
        self._held = (0.0, 0)  # seconds waited and samples drawn in the steps that are held back
        self._writing = threading.Lock()
        recorder.every_second(self._each_second)

    # Who belongs here

    def join(self, optimizer: Optimizer) -> Member:
        """Take an optimizer in. The largest is the main one, as long as no row was written of another's steps."""
        member = self.members[id(optimizer)] = Member(optimizer)
        self._trained.update({id(parameter): weakref.ref(parameter) for parameter in parameters_of(optimizer)})
        main = self.main
        if main is None or main.optimizer() is None:
            self.main = member
        elif self._holding and member.size > main.size:
            self.main, self.step, self._holding = member, self._first, False
            self._unwritten.clear()
            self._beginning += 1
            self.loader.give_back(*self._held)
        return member

    def expect(self, others: Iterable[Optimizer]) -> None:
        """Learn which optimizers were there when the training began: one that steps soon works beside the first.

        While one of them is larger, and so may be the main one, the rows of the first steps are held back.
        """
        others = list(others)
        self._expected = [weakref.ref(other) for other in others]
        self._holding = self.main is not None and any(Member(other).size > self.main.size for other in others)

    @property
    def expects_others(self) -> bool:
        """Whether other optimizers were there when the training began."""
        return any(reference() is not None for reference in self._expected)

    def expects(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer was there when the training began, and the training is still at its beginning."""
        early = self.main is not None and self.main.steps < _BEGINNING_STEPS
        return early and any(reference() is optimizer for reference in self._expected)

    def begin_at(self, step: int) -> None:
        """Count from this step on: the training goes on from there."""
        self.step = self._first = step

    def use_models(self, roots: Iterable[nn.Module]) -> None:
        """Learn the models whose parameters are trained here, for names and module times."""
        roots = list(roots)
        self.sampler.stop()  # it may be timing the modules that were known so far
        self._roots = [weakref.ref(root) for root in roots]
        pairs = list(named(roots, "parameters"))
        codes = self.recorder.strings.codes([name for name, _ in pairs])
        self._names = {id(parameter): code for (_, parameter), code in zip(pairs, codes, strict=True)}
        self._texts = {code: name for (name, _), code in zip(pairs, codes, strict=True)}
        self._trained.update({id(parameter): weakref.ref(parameter) for _, parameter in pairs})
        if self.guard is not None:
            self.guard.learn_models(roots)

    def name_of(self, code: int) -> str:
        """The name of a parameter by its code."""
        return self._texts.get(code, "?")

    def roots(self) -> list[nn.Module]:
        """The models, as far as they are alive."""
        return [root for reference in self._roots if (root := reference()) is not None]

    def trains(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of these parameters is trained here."""
        known = self._trained  # by reference: a dead parameter's id is soon another one's
        return any((found := known.get(id(parameter))) is not None and found() is parameter for parameter in parameters)

    # Around one step

    def before_clipping(self, parameters: list[torch.Tensor], norm_type: float) -> None:
        """The script is about to clip: read the gradients first, if more is wanted than the norm it will compute."""
        optimizer = self.main.optimizer() if self.main is not None else None
        if self.main is None or optimizer is None or self._has_read_early():
            return
        some, all_of_them = self.main.share_in(parameters)
        each = some and self.budget.due("parameters", self.step)
        if some and (each or not all_of_them or norm_type != 2.0 or self.guard is not None):
            self._keep_early(self._read(parameters_of(optimizer), self.main, each=each))

    def after_clipping(self, norm: Any, limit: Any, parameters: list[torch.Tensor]) -> None:
        """Take the norm that the script computed anyway."""
        some, all_of_them = self.main.share_in(parameters) if self.main is not None else (False, False)
        if some:
            self._clip_norm = float(limit) if isinstance(limit, (int, float)) else None
        if all_of_them and not self._has_read_early():
            gathering = Gathering(self._courier_for(parameters[0].device))
            gathering.add("norm", norm)
            self._keep_early(gathering)

    def before_update(self, optimizer: Optimizer, scaler: Any = None) -> None:
        """The gradients are complete and the update comes next: read them."""
        member = self.members[id(optimizer)]
        parameters = parameters_of(optimizer)
        if self.changes is not None:
            self.changes.put_on(optimizer)
        if self.control is not None:
            self.control.before_update(optimizer, self.step)
        if member is not self.main:
            other = self._read(parameters, member, each=False)
            if self.guard is not None:
                self.guard.before(optimizer, other, self.step, is_main=False)
            other.finish(self.publisher.other_step)
            if self.changes is not None:
                self.changes.clip(optimizer, None)
            return
        gathering, self._read_early = self._read_early, None
        if gathering is not None and self._early_at != self.losses.calls:
            gathering = None  # left behind by a step that raised
        something_due = self.step >= self.budget.next_step
        if gathering is None:
            gathering = self._read(parameters, member, each=something_due and self.budget.due("parameters", self.step))
        loss, rate = self.losses.total(), optimizer.param_groups[0].get("lr")
        if type(loss) is float and type(rate) is float:
            gathering.loss, gathering.lr = loss, rate
        else:
            gathering.add("loss", loss)
            gathering.add("lr", rate)
        self._backwards = self.losses.count
        if scaler is not None:
            gathering.add("scale", scaler._scale)
            gathering.add("grad_scale", getattr(optimizer, "grad_scale", None))
            gathering.add("found_inf", getattr(optimizer, "found_inf", None))
        self._gathering = gathering
        if self.guard is not None:
            self.guard.before(optimizer, gathering, self.step, is_main=True, clipped_at=self._clip_norm)
        if self.changes is not None:
            self._clip_norm = self.changes.clip(optimizer, self._clip_norm)
        if something_due and self.budget.due("weights", self.step):
            begun = time.perf_counter()
            self._sample = WeightSample(plain_weights(parameters))
            self._sampling_cost = time.perf_counter() - begun

    def after_update(self, optimizer: Optimizer, *, skipped: bool = False) -> None:
        """The update is done, or was left out by the scaler: finish the row."""
        member = self.members[id(optimizer)]
        member.steps += 1
        if self.control is not None:
            self.control.after_update()
        gathering, self._gathering = (self._gathering, None) if member is self.main else (None, self._gathering)
        if self.guard is not None and self.guard.after(optimizer, gathering, skipped=skipped, is_main=member is self.main):
            skipped = True
        if not self._holding and self._rates_may_have_changed(member, optimizer, gathering):
            self.publisher.rates(self.step, 0 if member is self.main else self._number_of(member), optimizer.param_groups)
        if self.changes is not None:
            self.changes.take_off()
        if member is not self.main or gathering is None:
            member.steps_alone += 1
            return
        if len(self.members) > 1:
            for other in self.members.values():
                other.steps_alone = 0
        if self._sample is not None:
            self._compare_weights(gathering, optimizer)
        times = self._module_times() if self.sampler.running else None
        now = time.perf_counter()
        row = self._row(now, skipped)
        if self._holding:
            self._hold(member, row, now)
        if self._courier is None:
            self._unwritten.append((row, gathering, times))
            if now - self._written_at > _WRITE_EVERY or times or len(self._unwritten) >= _UNWRITTEN_AT_MOST:
                self.write()
        else:
            if self.guard is not None:
                self.guard.blame.step_sent(self.step - 1)
            gathering.finish(partial(self._arrived, self._beginning, row, times))
            self._courier.collect()
        if self.step >= self.budget.next_step and self.budget.due("modules", self.step):
            self._sample_modules()
        if self.control is not None:
            self.control.between_steps(self.step, good=not skipped)

    def _rates_may_have_changed(self, member: Member, optimizer: Optimizer, gathering: Gathering | None) -> bool:
        """Quick to say no: one group, the same rate as before. A weight decay that changes alone is seen a little later."""
        rate = gathering.lr if gathering is not None else None
        if rate is not None and rate == member.rate and member.steps % 16 and len(optimizer.param_groups) == 1:
            return False
        member.rate = rate
        return True

    def _hold(self, member: Member, row: list[float | int], now: float) -> None:
        """Keep a row back, or not any longer; what it took from the loader may have to be given back."""
        self._holding = member.steps < _BEGINNING_STEPS and now - self._began_at < _BEGINNING_SECONDS
        if self.loader.epoch is not None:
            self._held = (self._held[0] + row[at.DATA_SECONDS], self._held[1] + int(row[at.SAMPLES]))

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
            for row, gathering, times in finished:
                self.publisher.step(row, gathering, times)
        finally:
            self._writing.release()

    def _arrived(self, beginning: int, row: list[float | int], times: list[ModuleTime] | None, numbers: Gathering) -> None:
        """The numbers of a step have come from the device; too late if another optimizer has become the main one since."""
        if self.guard is not None:
            self.guard.arrived(int(row[at.STEP]), numbers)
        if beginning == self._beginning:
            self._unwritten.append((row, numbers, times))
            self.write()

    def evaluated_loss(self, sums: dict[str, Any]) -> None:
        """Write the losses of an evaluation that has ended; those on a GPU when they have arrived."""
        step, epoch = self.step, self.loader.epoch
        for name, total in sums.items():
            if isinstance(total.total, torch.Tensor) and self._courier is not None:
                self._carry_metric(step, name, "val", total.total, total.samples, total.samples)
            else:
                self.publisher.losses(step, epoch, {name: total})

    def log(self, metric: Logged) -> None:
        """Write a metric that the script gave."""
        step = self.step if metric.step is None else metric.step
        if isinstance(metric.value, torch.Tensor) and metric.value.device.type != "cpu" and self._courier is not None:
            self._carry_metric(step, metric.name, metric.split, metric.value.detach(), 1, None)
        else:
            self.publisher.evaluation(step, self.loader.epoch, metric.name, metric.split, float(_plain(metric.value)), None)

    def close(self) -> None:
        """Write what is still under way and seal the tables."""
        self.sampler.stop()
        if self.control is not None:
            self.control.close()
        self._holding = False
        self.write()
        if self._courier is not None:
            self._courier.wait()
        self.recorder.close()

    def noted(self) -> tuple[Any, ...]:
        """What was noted for the step to come; code that is evaluated between two steps must not leave anything there."""
        return self._read_early, self._early_at, self._clip_norm

    def put_back(self, noted: tuple[Any, ...]) -> None:
        """Note what was noted."""
        self._read_early, self._early_at, self._clip_norm = noted

    def main_optimizer(self) -> Optimizer | None:
        """The main optimizer, as long as it lives."""
        return self.main.optimizer() if self.main is not None else None

    # Parts of a step

    def _number_of(self, member: Member) -> int:
        """Number of an optimizer; 0 is the main one."""
        return 1 + [other for other in self.members.values() if other is not self.main].index(member)

    def _has_read_early(self) -> bool:
        """Whether the gradients of this step were read when the script clipped them; a step that raised may have left some."""
        return self._read_early is not None and self._early_at == self.losses.calls

    def _keep_early(self, gathering: Gathering) -> None:
        self._read_early, self._early_at = gathering, self.losses.calls

    def _courier_for(self, device: torch.device) -> Courier | None:
        """Who brings numbers from this device; None for the host."""
        if device.type != "cuda":
            return None
        if self._courier is None or self._courier.device != device:
            self._courier = Courier(device)
        return self._courier

    def _read(self, parameters: list[torch.Tensor], member: Member, *, each: bool) -> Gathering:
        """Read the gradients of these parameters, all together or each."""
        gathering = self._read_gradients(parameters, member, each=each)
        if each:
            others = (
                p for one in self.members.values() if one is not member and (held := one.optimizer()) for p in parameters_of(held)
            )
            changes = self._untrained.changes(self._trained, self._names, main=parameters, others=others)
            gathering.untrained = tuple(changes)
        return gathering

    def _read_gradients(self, parameters: list[torch.Tensor], member: Member, *, each: bool) -> Gathering:
        if member.quick and not each:
            norm = quick_norm(parameters)
            if norm is not None and 0.0 <= norm < math.inf:
                gathering = Gathering(None)
                gathering.norm = norm
                return gathering
            member.quick = norm is not None
        begun = time.perf_counter() if each else 0.0
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        if not gradients:
            return Gathering(None)
        if gradients[0].is_cpu and not each:  # the common step of a training on the host
            gathering = Gathering(None)
            if not member.knows(parameters, gradients) or member.plan is None:
                member.names = self._names_of(parameters)
                member.plan = HostPlan(gradients)
            gathering.norm = member.plan.norm(gradients)
            if not math.isfinite(gathering.norm):
                gathering.reading = read_each_on_host(gradients, member.names).only_bad()
            return gathering
        gathering = Gathering(self._courier_for(gradients[0].device))
        if gathering.carries:
            if not member.knows(parameters, gradients):
                member.names = self._names_of(parameters)
            member.kernel = gathering.read_on_device(gradients, member.names, each=each, kernel=member.kernel)
        else:
            gathering.reading = read_each_on_host(gradients, self._names_of(parameters))
        if each:
            gathering.add("weights", weight_norms(plain_weights([p for p in parameters if p.grad is not None])))
            self._charge("parameters", begun)
        return gathering

    def _names_of(self, parameters: list[torch.Tensor]) -> list[int]:
        return [self._names.get(id(parameter), MISSING_INT) for parameter in parameters if parameter.grad is not None]

    def _compare_weights(self, gathering: Gathering, optimizer: Optimizer) -> None:
        sample, self._sample = self._sample, None
        if sample is not None:
            begun = time.perf_counter()
            gathering.add("update_ratio", sample.compare(plain_weights(parameters_of(optimizer))))
            self._charge("weights", begun - self._sampling_cost)

    def _row(self, now: float, skipped: bool) -> list[float | int]:
        """The row of this step, as far as the host knows it; opens the next step."""
        epoch, workers = self.loader.epoch, self._workers_rss
        waited, samples = (MISSING, MISSING_INT) if epoch is None else self.loader.take()
        clip_norm = MISSING if self._clip_norm is None else self._clip_norm
        cost, seconds = self.cost, MISSING
        if self._ended_at is not None:
            seconds = now - self._ended_at - self.evaluated
            self.budget.charge_step(seconds, cost - self._luxury_cost)
        row = [  # in the order of the schema: one expression is much cheaper than one assignment a column
            self.step, MISSING_INT if epoch is None else epoch, time.time(), MISSING, MISSING, MISSING, MISSING, MISSING,
            seconds, waited, samples, int(skipped), MISSING, MISSING_INT, MISSING_INT, self.memory.latest, MISSING_INT,
            MISSING_INT if workers is None else workers, MISSING_INT, self._backwards, clip_norm, cost,
        ]  # fmt: skip
        if now - self._memory_at > _MEMORY_EVERY:
            self._memory_at = now
            self._read_memory(row)
        self._clip_norm, self._ended_at, self.evaluated, self._luxury_cost, self.cost = None, now, 0.0, 0.0, 0.0
        self.step += 1
        return row

    def _read_memory(self, row: list[float | int]) -> None:
        row[at.HOST_RSS] = self.memory.read()
        if self._courier is not None:
            row[at.GPU_ALLOCATED], row[at.GPU_RESERVED], row[at.GPU_PEAK] = gpu_memory(self._courier.device)

    def _module_times(self) -> list[ModuleTime]:
        """Times of the modules in this step, which was sampled; hooks come off unless every step is."""
        begun = time.perf_counter()
        times = self.sampler.take() if "modules" in self.budget.always_done else self.sampler.stop()
        hooks = self.sampler.take_cost()
        self.cost += hooks  # the session has not seen it
        self._charge("modules", begun - hooks)
        return times

    def _sample_modules(self) -> None:
        """Put hooks on the modules for the step that comes now."""
        if not self.sampler.running:
            self.sampler.start(self.roots(), self._courier.device if self._courier is not None else torch.device("cpu"))

    def _carry_metric(self, step: int, name: str, split: str, total: torch.Tensor, divisor: int, samples: int | None) -> None:
        epoch = self.loader.epoch

        def arrived(values: Any) -> None:
            if values is not None:
                self.publisher.evaluation(step, epoch, name, split, float(values[0]) / max(divisor, 1), samples)

        if self._courier is not None:
            self._courier.send([total], arrived)

    def _charge(self, luxury: str, begun: float) -> None:
        seconds = time.perf_counter() - begun
        self.budget.charge(luxury, seconds)
        self._luxury_cost += seconds

    def _each_second(self) -> None:
        if self._unwritten and time.perf_counter() - self._written_at > 1.0:
            self.write()
        self._workers_rss = self.loader.workers_resident()
        self.loader.record(self.recorder, self.step)


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
