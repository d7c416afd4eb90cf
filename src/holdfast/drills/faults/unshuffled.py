"""Training data is not shuffled, and lies there class after class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import RandomSampler, Subset, TensorDataset

from holdfast.drills.fault import Expected, Fault, NotHere
from holdfast.drills.injection.context import FaultContext

_NAMES = ("labels", "label", "targets", "target", "y")
_READ_AT_MOST = 20_000  # samples that are read only to know their labels


class Unshuffled(Fault):
    """Take the shuffling out of the loader that has it; where the data set gives labels, its samples come sorted by them."""

    code = "unshuffled"
    description = "the training data is not shuffled, but sorted by label"
    expected = Expected(findings=("unshuffled-data",), causes=("not-shuffled",), info_is_enough=True)
    needs = ("loader",)
    lasting = True
    from_start = True

    def loader(self, arguments: dict[str, Any], context: FaultContext) -> None:
        """Loaders that do not shuffle stay as they are."""
        if arguments.get("shuffle"):
            arguments["shuffle"] = False
        elif isinstance(arguments.get("sampler"), RandomSampler):
            arguments["sampler"] = None
        else:
            raise NotHere("no loader shuffles by itself or by a RandomSampler")
        labels = _labels(arguments["dataset"])
        if labels is not None:
            arguments["sampler"] = sorted(range(len(labels)), key=labels.__getitem__)


def _labels(dataset: Any) -> list[int] | None:
    """One whole number for each sample, if the data set has such."""
    if isinstance(dataset, Subset):
        under = _labels(dataset.dataset)
        return None if under is None else [under[index] for index in dataset.indices]
    if isinstance(dataset, TensorDataset):
        return _whole(dataset.tensors[-1])
    for name in _NAMES:
        if (attribute := getattr(dataset, name, None)) is not None and (labels := _whole(attribute)) is not None:
            return labels
    try:
        return _whole([_label(dataset[index]) for index in range(len(dataset))]) if len(dataset) <= _READ_AT_MOST else None
    except (TypeError, KeyError, IndexError, StopIteration):
        return None


def _label(sample: Any) -> Any:
    """The last part of a sample; of one with names, the one that is called so."""
    if isinstance(sample, Mapping):
        return sample[next(name for name in _NAMES if name in sample)]
    return sample[-1]


def _whole(attribute: Any) -> list[int] | None:
    try:
        labels = torch.as_tensor(attribute)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if labels.dim() != 1 or labels.is_floating_point() else [int(label) for label in labels.tolist()]
