"""What a model wants: the names of its state dict, their shapes and kinds, and which are one tensor."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from holdfast.errors import UsageError
from holdfast.matching.sides import Side, Weight, is_extra


def side_of_model(model: nn.Module, name: str = "the model", settings: Mapping[str, Any] | None = None) -> Side:
    """A side made from a model, on any device, meta too. Raises UsageError for layers that have no size yet."""
    state = state_of(model)
    parameters = {id(parameter) for parameter in model.parameters()}
    return Side(
        name=name,
        weights={
            key: Weight(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), id(tensor) not in parameters, id(tensor))
            for key, tensor in state.items()
        },
        rebuilt={key: tuple(buffer.shape) for key, buffer in model.named_buffers() if key not in state},
        settings=settings or _settings(model),
        versions={"torch": torch.__version__.partition("+")[0], "python": platform.python_version()},
        holds=frozenset({"weights"}),
    )


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's own tensors under the names of its state dict; what modules keep beside them is left out."""
    for key, tensor in _tensors(model):
        if isinstance(tensor, (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)):
            raise UsageError(
                f"{key} has no size yet: the model has lazy layers, which take theirs from the first batch.",
                fix="run one batch through the model first, or build it with plain layers",
            )
    try:
        state = model.state_dict(keep_vars=True)
    except TypeError:  # a state_dict() of the user's own, which takes nothing
        state = model.state_dict()
    return {str(key): tensor for key, tensor in state.items() if isinstance(tensor, torch.Tensor) and not is_extra(key)}


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _settings(model: nn.Module) -> Mapping[str, Any]:
    """Those that the model carries: `config` of Hugging Face, `hparams` of Lightning."""
    config = getattr(model, "config", None)
    for made in (getattr(config, "to_dict", None), lambda: dict(getattr(model, "hparams", {}))):
        if callable(made):
            try:
                settings = made()
            except Exception:  # noqa: BLE001  code of the user's: without it there are no settings to compare
                continue
            if isinstance(settings, Mapping) and settings:
                return settings
    return {}
