"""What a training has that a fault may need, noted while a control runs: faults that do not apply are skipped."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from holdfast.drills.injection.context import FaultContext
from holdfast.errors import CannotHappen

FACTS = {
    "loader": "a DataLoader",
    "workers": "loader workers",
    "several-workers": "several loader workers",
    "float-inputs": "floating-point inputs",
    "labels": "integer labels in its batches",
    "evaluation": "an evaluation with a DataLoader",
    "saves": "files saved with torch.save",
    "ranks": "several ranks",
    "gpu": "a GPU",
    "relu": "a ReLU",
    "recurrent": "a recurrent layer",
    "layers": "linear or convolutional layers",
    "weights": "weight matrices",
    "half": "layers that compute in float16",
    "tracker": "a server it uses over the network, such as a tracker's",
    "database": "an SQLite file, such as a tracker's",
}


class Facts:
    """Gathers the facts; `have` names those that are true."""

    def __init__(self) -> None:
        self.have: set[str] = set()
        self.steps = 0

    def listen(self) -> None:
        """Note what the process does beside torch: for the rest of its life, for there is no way to stop listening."""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            self.have.add("tracker")
        elif event == "sqlite3.connect" and str(arguments[0]) not in (":memory:", ""):
            self.have.add("database")

    def loader_made(self, arguments: dict[str, Any]) -> None:
        """A DataLoader was made."""
        self.have.add("loader")
        if arguments.get("num_workers"):
            self.have |= {"workers", "several-workers"} if arguments["num_workers"] > 1 else {"workers"}

    def precision_chosen(self, autocast: Any) -> None:
        """An `autocast` was entered; many trainers enter one that is switched off."""
        if getattr(autocast, "_enabled", False) and getattr(autocast, "fast_dtype", None) is torch.float16:
            self.have.add("half")

    def batch_seen(self, batch: Any, context: FaultContext, *, training: bool) -> None:
        """A batch was handed out."""
        if not training:
            self.have.add("evaluation")
            return
        for fact, change in (("float-inputs", context.change_inputs), ("labels", context.change_labels)):
            try:
                change(batch, lambda tensor: tensor)
                self.have.add(fact)
            except CannotHappen:
                continue

    def inputs_seen(self, inputs: tuple[Any, ...], context: FaultContext) -> None:
        """The model was called: a loader may hand out images as bytes."""
        if any(context.has_floats(part) for part in inputs):
            self.have.add("float-inputs")

    def look_at(self, context: FaultContext) -> None:
        """Look at the model and its surroundings, once."""
        kinds = {type(module) for module in context.model.modules()}
        if any(issubclass(kind, nn.ReLU) for kind in kinds):
            self.have.add("relu")
        if any(issubclass(kind, nn.RNNBase | nn.RNNCellBase) for kind in kinds):
            self.have.add("recurrent")
        if any(issubclass(kind, nn.Linear | nn.Conv1d | nn.Conv2d) for kind in kinds):
            self.have.add("layers")
        if any(parameter.dim() > 1 for parameter in context.model.parameters()):
            self.have.add("weights")
        if any(parameter.dtype is torch.float16 for parameter in context.model.parameters()):
            self.have.add("half")
        if any(parameter.is_cuda for parameter in context.model.parameters()):
            self.have.add("gpu")
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            self.have.add("ranks")
