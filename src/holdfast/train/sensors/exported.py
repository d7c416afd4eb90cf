"""A trained model of a sensor array for `holdfast export`: from values as in the files to all heads, in their own units."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from holdfast.errors import HoldfastError, UsageError
from holdfast.train.export import Exportable, Outputs
from holdfast.train.sensors.array import SensorArray, Target, read_array, read_targets
from holdfast.train.sensors.dataset import SensorData
from holdfast.train.sensors.model import FILLED, SensorModel
from holdfast.train.sensors.opening import open_events
from holdfast.train.sensors.task import MODEL
from holdfast.train.settings import SensorsSettings

_EVENTS = 3  # with which the file is checked


class Predictions(nn.Module):
    """A model as a function of values B×channels×sensors: every target, or all channels with the invalid ones filled."""

    def __init__(self, model: SensorModel, targets: Sequence[Target]) -> None:
        super().__init__()
        self.model, self.targets = model, tuple(targets)

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs in their own units."""
        outputs = self.model(values)
        if self.targets:
            return tuple(outputs[target.name] * (target.scale or 1.0) + (target.offset or 0.0) for target in self.targets)
        return (torch.where(outputs["valid"], values, self.model.normalise.invert(outputs[FILLED])),)


def load_model(path: Path) -> tuple[SensorModel, SensorArray, tuple[Target, ...]]:
    """The model in a `model.pt` of a run, on the CPU, ready to predict, with its array and targets."""
    kept = torch.load(path, map_location="cpu", weights_only=True)
    settings, sizes = kept["settings"], kept["sizes"]
    array = read_array(settings["array"])
    read = read_targets(settings["targets"], "smooth_l1", None) if sizes else ()
    targets = tuple(replace(target, size=sizes[target.name]) for target in read)
    model = SensorModel(array, targets, width=settings["width"], depth=settings["depth"])
    model.load_state_dict(kept["state_dict"])
    return model.eval(), array, targets


def exportable(run: Path, settings: SensorsSettings) -> Exportable:
    """The best model of a run."""
    if not (run / MODEL).exists():
        raise UsageError(f"{run} has no finished model yet.", fix=f"holdfast resume {run}, then export it")
    model, array, targets = load_model(run / MODEL)
    return predictions(model, array, targets, _validation_events(settings))


def predictions(
    model: SensorModel, array: SensorArray, targets: Sequence[Target], events: torch.Tensor | None = None
) -> Exportable:
    """A model as it is exported."""
    names = [channel.name for channel in array.channels]
    spreads = [target.scale or 1.0 for target in targets] or [1.0]

    def difference(outputs: Outputs, results: Outputs) -> torch.Tensor:
        """The largest difference in spreads of a target; that of channels relative to their size."""
        if targets:
            pairs = zip(outputs, results, spreads, strict=True)
            return torch.stack([((expected - actual).abs() / scale).max() for expected, actual, scale in pairs])
        expected, actual = outputs[0], results[0]
        return ((expected - actual).abs() / (1 + expected.abs())).nan_to_num(0.0).max()

    return Exportable(
        model=Predictions(model, targets),
        name="values",
        shape=(len(array.channels), array.sensors),
        outputs=tuple(target.name for target in targets) or (FILLED,),
        described=", ".join(f"{target.name} ({target.size})" for target in targets)
        or f"{FILLED}, the values with invalid channels filled",
        metadata={"channels": json.dumps(names), "faces": json.dumps([face.name for face in array.faces])},
        images=events,
        difference=difference,
    )


def _validation_events(settings: SensorsSettings) -> torch.Tensor | None:
    """Events that the model was made for; None where the files are not there any more."""
    try:
        opened = open_events(settings)
        data = SensorData(opened.files, opened.val, opened.array, opened.targets)
        return data.__getitems__([place % len(data) for place in range(_EVENTS)])["values"]
    except HoldfastError:
        return None
