"""NaN is saved over a good checkpoint: an average of the weights that has met one bad update, a buffer that overflowed."""

from __future__ import annotations

import atexit
import sys
from typing import Any

import torch
from torch import nn

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext
from holdfast.inside.gradients.non_finite import bad_tensors


class CheckpointNanBest(Fault):
    """The states that the script takes of its model before the next update hold a NaN; the model itself stays as it is."""

    code = "checkpoint-nan-best"
    description = "the next checkpoints are saved with NaN in them, over good ones"
    expected = Expected(findings=("checkpoint-non-finite",), causes=("copy-of-weights-damaged",), survivable=True)
    needs = ("saves",)

    def update(self, context: FaultContext) -> None:
        """From here on the next state that is taken is the one. A trainer may replace the NaN, or save another copy."""
        layer, weight = _a_layer(context.model)
        taken = False
        saved: list[bool] = []  # for each save since, whether it holds a NaN
        withdraw = context.withdraw
        write: Any = torch.serialization._save  # inside `torch.save`: Holdfast passes over a save that Holdfast calls

        def look(thing: Any, *args: Any, **kwargs: Any) -> Any:
            if taken and not any(saved):
                saved.append(bool(bad_tensors(thing)))
            return write(thing, *args, **kwargs)

        def end() -> None:
            if not taken:
                withdraw("it takes no state_dict of the model after the fault")
            elif saved and not any(saved):
                withdraw("what it saves does not hold the NaN")
            elif not saved and "safetensors.torch" not in sys.modules:
                withdraw("nothing was saved after the fault")

        def corrupt(_module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
            nonlocal taken
            name = prefix + weight
            if name not in state or not _is_taken_by_script():
                return
            taken = True
            state[name] = state[name].detach().clone()
            state[name].view(-1)[0] = float("nan")

        def over(*_: Any) -> None:
            if taken:
                taking.remove()
                updating.remove()

        hook = getattr(layer, "register_state_dict_post_hook", layer._register_state_dict_hook)
        taking = hook(corrupt)
        updating = context.optimizer.register_step_post_hook(over)
        torch.serialization._save = look  # type: ignore[assignment]
        atexit.register(end)


def _a_layer(model: nn.Module) -> tuple[Any, str]:
    """The first layer with a floating-point weight, and the weight's name: trainers save parts of a model."""
    for layer in model.modules():
        for name, weight in layer.named_parameters(recurse=False):
            if weight.is_floating_point():
                return layer, name
    raise CannotHappen("the model has no floating-point weights")


def _is_taken_by_script() -> bool:
    """Holdfast takes states for itself: those stay as they are."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("holdfast."):
            return False
        frame = frame.f_back
    return True
