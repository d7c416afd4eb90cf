"""What the loop's own variables hold at a bad update: data that a loader gave finite may have become bad on its way.

Looked at only then, in the frames of the user's code, so it costs nothing before. Of tensors that are data: no parameter and no
gradient of one, no state of a model that was saved, nothing that was computed with gradients, and no single number such as the
norm that `clip_grad_norm_` returned or a loss that was summed up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from holdfast.inside.control.frames import all_frames, users_frames
from holdfast.inside.gradients.non_finite import is_state
from holdfast.inside.observers.batch_contents import bad_fields, leaves

_FRAMES, _TENSORS, _NUMBERS = 4, 64, 1 << 26  # that are looked at, at most
_LARGEST_HALF = 65504.0
_BATCH = ("batch", "inputs")


def about_variables(models: Iterable[nn.Module] = ()) -> dict[str, Any]:
    """Evidence: `input` if a variable is not finite, `labels` if some are beyond the classes, `half` and `input_max`."""
    found: dict[str, Any] = {}
    tensors = list(_tensors(sys._getframe(1))) or list(_of_trainer(sys._getframe(1)))
    gradients = {id(one.grad) for model in models for one in model.parameters() if one.grad is not None}
    data = [(place, tensor) for place, tensor in tensors if _is_data(tensor) and id(tensor) not in gradients]
    for place, tensor in data:
        bad = bad_fields(tensor)
        if bad and not _is_mask(tensor):
            found["input"] = f"{place}: {bad[0].words}"
            break
    else:
        if any(tensor.numel() > 1 for _, tensor in data):
            found["input"] = "finite"
    if any(tensor.dtype is torch.float16 for _, tensor in tensors):
        found["half"] = True
        sizes = [float(tensor.detach().abs().max()) for _, tensor in data if tensor.is_floating_point() and tensor.numel()]
        largest = max((size for size in sizes if size < float("inf")), default=0.0)
        found |= {"input_max": largest} if largest > _LARGEST_HALF else {}
    labels = _labels_beyond([one for _, one in tensors if one.grad_fn is not None], data)
    return found | ({"labels": labels} if labels else {})


def _tensors(frame: FrameType | None) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that the innermost frames of the user's code name, with where they are."""
    count = 0
    for one in users_frames(all_frames(frame))[:_FRAMES]:
        function = one.f_code.co_name
        where = f"line {one.f_lineno} of {Path(one.f_code.co_filename).name}"
        place = where if function.startswith("<") else f"{function}(), {where}"
        for name, value in list(one.f_locals.items()):
            if isinstance(value, torch.Tensor) or (type(value) in (dict, list, tuple) and not is_state(value)):
                for part, tensor in leaves(value, depth=2):
                    if isinstance(tensor, torch.Tensor) and tensor.numel() <= _NUMBERS and not tensor.is_meta:
                        yield f"`{name}{f'[{part}]' if part else ''}` in {place}", tensor
                        count += 1
                        if count == _TENSORS:
                            return


def _of_trainer(frame: FrameType | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Where a trainer has the loop: what it calls a batch."""
    for one in all_frames(frame):
        for name in _BATCH:
            for part, tensor in leaves(one.f_locals.get(name), depth=3) if name in one.f_locals else ():
                if isinstance(tensor, torch.Tensor) and tensor.numel() <= _NUMBERS and not tensor.is_meta:
                    yield f"`{name}{f'[{part}]' if part else ''}` in {one.f_code.co_name}()", tensor


def _is_data(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is None and not tensor.requires_grad and tensor.dim() > 0


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether it holds nothing but 0, 1 and minus infinity, as masks of attention do."""
    return bool(((tensor == 0) | (tensor == 1) | (tensor == float("-inf"))).all())


def _labels_beyond(computed: list[torch.Tensor], data: list[tuple[str, torch.Tensor]]) -> str | None:
    """Whole numbers in the shape of labels of an output, of which some are no class of it."""
    for output in (one for one in computed if one.dim() >= 2):
        for place, labels in data:
            whole = labels.dtype in (torch.int64, torch.int32, torch.uint8) and labels.numel() > 0
            classes = output.shape[-1] if labels.shape == output.shape[:-1] else output.shape[1]
            fits = labels.shape in (output.shape[:-1], (output.shape[0], *output.shape[2:]))
            if whole and fits and labels.dim() > 0:
                beyond = (labels >= classes) | ((labels < 0) & (labels != -100))
                if bool(beyond.any()):
                    first = int(labels[beyond].flatten()[0])
                    return f"{place}: {int(beyond.sum())} of {labels.numel()} are beyond the {classes} classes, such as {first}"
    return None
