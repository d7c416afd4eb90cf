"""What a script hands over to be saved or restored: a model, an optimizer and so on, each one thing or a list of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from holdfast.errors import UsageError
from holdfast.inside.snapshots.companions import innermost
from holdfast.inside.snapshots.plain import left_out
from holdfast.inside.snapshots.reading import Optimizer
from holdfast.inside.snapshots.state import TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The parts of a training, as they were handed over."""

    model: Any
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    ema: Any = None
    loader: Any = None

    def state(self) -> TrainingState:
        """The state of these, and of nothing else. Raises UsageError for what cannot be saved."""
        models, optimizers = each(self.model), [innermost(optimizer) for optimizer in each(self.optimizer)]
        if not models:
            raise UsageError("there is no model to save.", fix="store.save(step, model=model, optimizer=optimizer)")
        for model in models:
            if not isinstance(model, nn.Module):
                raise UsageError(f"{type(model).__name__} is no nn.Module.", fix="give the model itself, not its state_dict()")
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                raise UsageError(f"{type(optimizer).__name__} is no optimizer of torch's kind.", fix="give the optimizer itself")
        for thing in (*each(self.scheduler), *each(self.scaler), *each(self.ema), *each(self.loader)):
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                name = type(thing).__name__
                fix = f"give {name} state_dict() and load_state_dict()"
                if any(thing is loader for loader in each(self.loader)):
                    fix = "batches = holdfast.Position(loader); iterate over that, and give loader=batches"
                raise UsageError(f"{name} has no state that can be kept.", fix=fix)
        return TrainingState(
            models,
            optimizers,
            schedulers=each(self.scheduler),
            scalers=each(self.scaler),
            averages=each(self.ema),
            whole=True,
        )

    def not_kept(self) -> list[str]:
        """In words, what of the states cannot be kept: it is not plain. Asks all but torch's own for their state."""
        others = [thing for name in ("scheduler", "scaler", "ema", "loader") for thing in each(getattr(self, name))]
        return [
            f"the state of {type(thing).__name__} holds what cannot be kept without running code later: {', '.join(found[:3])}"
            for thing in others
            if not isinstance(thing, (nn.Module, LRScheduler)) and (found := left_out(thing.state_dict()))
        ]

    def position(self) -> dict[str, Any]:
        """The state of the loader, if there is one, as it goes beside the rest."""
        if self.loader is None:
            return {}
        if isinstance(self.loader, (list, tuple)):
            return {"loader": [loader.state_dict() for loader in self.loader]}
        return {"loader": self.loader.state_dict()}


def each(things: Any) -> list[Any]:
    """One thing or many as a list; an nn.ModuleList is one."""
    if things is None:
        return []
    return list(things) if isinstance(things, (list, tuple)) else [things]
