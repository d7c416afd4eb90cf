"""What is recorded into which run folder: all of the process (`holdfast run`), or what was passed to `holdfast.watch`."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from holdfast.inside.guard.skipping import Averages
from holdfast.inside.observers.evaluations import Logged, write_logged
from holdfast.inside.policy import OBSERVE, Policy
from holdfast.inside.trainer_link import TrainerLink
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.state.background import BackgroundThread

if TYPE_CHECKING:
    from holdfast.inside.training import Training

_NO_CHANGE = ("name", "project", "policy", "workers", "cache", "save_period", "save_minutes")  # settings that change no weight
_MAX_PENDING = 1000  # metrics logged before the first step


class Scope:
    """One run folder and the optimizers whose steps go there; without optimizers, all of them."""

    def __init__(
        self,
        run: RunFolder,
        *,
        budget: float = 0.01,
        policy: Policy = OBSERVE,
        always_done: frozenset[str] = frozenset(),
        models: Iterable[nn.Module] = (),
        optimizers: Iterable[torch.optim.Optimizer] = (),
        follows_children: bool = False,
        control: bool = True,
    ) -> None:
        self.run, self.budget, self.policy, self.always_done = run, budget, policy, always_done
        self.follows_children = follows_children
        self.control = control  # whether its trainings get a control server
        self.positions: Any = None  # in the loaders that the script draws from through `run.batches`
        self.settings: dict[str, Any] = {}
        self.origin: dict[str, Any] | None = None  # what the script says about the checkpoint that it resumes from
        self.first_step = 0  # of a training that resumes from one of our checkpoints
        self.averages = Averages()  # copies of the model that the script registered
        self.micro_batches: Any = None  # the step function that the script gave to `run.step`
        self.trainer = TrainerLink(run, place=self._place, on_error=self.step_back)
        self.trainings: list[Training] = []  # replaced, never mutated: other threads iterate over it
        self.num_begun = 0  # trainings
        self._models = [weakref.ref(model) for model in models]
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._trouble = Trouble(run.journal)
        self._changing, self._ending = threading.Lock(), False
        self._closing = BackgroundThread("holdfast-closing", on_error=self.step_back)
        self._pending: deque[Logged] = deque(maxlen=_MAX_PENDING)

    def wants(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this optimizer's steps are recorded here. Those on the meta device are only played through: no numbers."""
        if any(parameter.is_meta for group in optimizer.param_groups for parameter in group["params"]):
            return False
        return not self._optimizers or any(reference() is optimizer for reference in self._optimizers)

    def is_over(self) -> bool:
        """Whether all optimizers that were passed in are gone."""
        return bool(self._optimizers) and all(reference() is None for reference in self._optimizers)

    def models(self) -> list[nn.Module]:
        """The models that were passed in and are alive."""
        return [model for reference in self._models if (model := reference()) is not None]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that were passed in and are alive."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def log(self, metric: Logged) -> None:
        """Record a metric in the newest training, or hold it until one begins."""
        if self.trainings:
            write_logged(self.trainings[-1], metric)
        else:
            self._pending.append(metric)

    @property
    def num_steps(self) -> int:
        """Steps of the newest training, with those before a resume."""
        return self.trainings[-1].step if self.trainings else self.first_step

    def _place(self) -> dict[str, Any]:
        """Where the newest training is."""
        recording = {"recording": self.trainings[-1].recorder.recording.name} if self.trainings else {}
        return {"step": self.num_steps, **recording}

    def changed(self, what: str) -> None:
        """Record that the script has changed a setting."""
        training = self.trainings[-1] if self.trainings else None
        step, rank = (training.step, training.recorder.recording.rank) if training is not None else (self.first_step, 0)
        self.run.journal.write("change", what=what, step=step, rank=rank)

    def note_settings(self, settings: Mapping[str, Any]) -> None:
        """Record the settings of the script, converted to JSON."""
        self.settings.update(json.loads(json.dumps(settings, default=str)))
        self.run.update_info(settings=self.settings)

    def resumed(self, source: Path, step: int | None = None) -> None:
        """Compare the settings with those of the checkpoint or run that the script resumes from, and count on from its step."""
        self.origin = {"path": str(source.absolute()), "by": "script"}
        before = settings_of(source)
        if step is not None and not self.trainings:
            self.first_step = step
        if before is None and step is not None:
            return
        if before is None:
            self.step_back("comparing settings", ValueError(f"{source} is not a checkpoint or run with settings"))
            return
        names = dict.fromkeys((*before, *self.settings))
        different = [name for name in names if name not in _NO_CHANGE and before.get(name) != self.settings.get(name)]
        if different:
            self.changed("; ".join(f"{name} {before.get(name)} -> {self.settings.get(name)}" for name in different))

    def begin(self, training: Training) -> None:
        """Add a new training and write the metrics that waited for it."""
        with self._changing:
            self.trainings = [*self.trainings, training]
            self.num_begun += 1
        while self._pending:
            write_logged(training, self._pending.popleft())

    def take_ended(self) -> list[Training]:
        """Remove and return the trainings that are over. The newest stays: the script may still log to it."""
        with self._changing:
            ended = [training for training in self.trainings[:-1] if not self._ending and training.is_over()]
            if ended:
                self.trainings = [training for training in self.trainings if training not in ended]
            return ended

    def close_later(self, close: Callable[[], None]) -> None:
        """Close a removed training soon, in a helper thread."""
        with self._changing:
            self._closing.submit(close)

    def finish_closing(self) -> None:
        """Remove nothing any more, and wait a little for the helper thread."""
        with self._changing:
            self._ending = True
        self._closing.close()
        self.trainer.close()

    def in_child(self) -> Scope:
        """The same scope for a forked child, with nothing recorded yet."""
        settings: dict[str, Any] = {"budget": self.budget, "policy": self.policy, "always_done": self.always_done}
        return Scope(self.run, **settings, control=self.control, follows_children=True)

    def step_back(self, what: str, error: BaseException) -> None:
        """Record that Holdfast itself failed, through a training's recorder or in the journal directly."""
        (self.trainings[-1].recorder if self.trainings else self._trouble).step_back(what, error)


def settings_of(source: Path) -> dict[str, Any] | None:
    """The settings in a checkpoint's manifest or a run's `run.json`; None if there are none."""
    for name in ("manifest.json", "run.json"):
        with contextlib.suppress(OSError, ValueError):
            settings = json.loads((source / name).read_text(encoding="utf-8")).get("settings")
            return settings if isinstance(settings, dict) else None
    return None
