"""NaN is saved over a good checkpoint: an average of the weights that has met one bad update, a buffer that overflowed."""

from __future__ import annotations

import sys
from typing import Any

import torch

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext


class CheckpointNanBest(Fault):
    """The states that the script takes of its model before the next update hold a NaN; the model itself stays as it is."""

    code = "checkpoint-nan-best"
    description = "the next checkpoints are saved with NaN in them, over good ones"
    expected = Expected(findings=("checkpoint-non-finite",), causes=("copy-of-weights-damaged",), survivable=True)
    needs = ("saves",)

    def update(self, context: FaultContext) -> None:
        """From here on the next state that is taken is the one."""
        if not any(value.is_floating_point() for value in context.model.state_dict().values() if isinstance(value, torch.Tensor)):
            raise CannotHappen("the model has no floating-point weights")
        taken = False

        def corrupt(_module: Any, state: dict[str, Any], *_: Any) -> None:
            nonlocal taken
            if not _is_taken_by_script():
                return
            taken = True
            name = next(name for name, one in state.items() if isinstance(one, torch.Tensor) and one.is_floating_point())
            state[name] = state[name].detach().clone()
            state[name].view(-1)[0] = float("nan")

        def over(*_: Any) -> None:
            if taken:
                taking.remove()
                updating.remove()

        model: Any = context.model
        taking = getattr(model, "register_state_dict_post_hook", model._register_state_dict_hook)(corrupt)
        updating = context.optimizer.register_step_post_hook(over)


def _is_taken_by_script() -> bool:
    """Holdfast takes states for itself: those stay as they are."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("holdfast."):
            return False
        frame = frame.f_back
    return True
