"""What a bad update is told with: which batch it was, whether its values were finite, and where the bad gradients began.

On a GPU a bad update is known a step or so later; until then the batches of the steps that are under way are kept.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from holdfast.inside.control.frames import all_frames, users_frames
from holdfast.inside.gradients.non_finite import is_state
from holdfast.inside.guard.first_non_finite import first_bad
from holdfast.inside.observers.batch_contents import bad_fields, leaves
from holdfast.inside.observers.batches import Batches, Drawn
from holdfast.inside.observers.saved_batch import SavedBatches, describe, save_batches

_UNDER_WAY = 8  # steps
_INDICES = 64  # that are told in the journal; the file beside the batch has them all


class FailureContext:
    """Finds what is to blame for the bad updates of one training."""

    def __init__(
        self,
        batches: Batches,
        *,
        folder: Path,
        models: Callable[[], list[nn.Module]],
        run_later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._batches, self._folder, self.models, self._run_later = batches, folder, models, run_later
        self._under_way: deque[tuple[int, list[Drawn]]] = deque(maxlen=_UNDER_WAY)

    def step_sent(self, step: int) -> None:
        """The numbers of a step are on their way from the device: keep its batches until they are here."""
        self._under_way.append((step, self._batches.current()))

    def about_weights(self) -> dict[str, Any]:
        """Whether the weights were sound before the update: `finite`, or what is wrong with which."""
        return {"weights": look_at_weights(self.models())}

    def about_batch(self, step: int, in_full: bool) -> dict[str, Any]:
        """Which batch it was; saved for a replay if it is one of the first."""
        drawn = next((batches for number, batches in self._under_way if number == step), None)
        if drawn is None:
            drawn = self._batches.current()
        if not drawn:
            return {"input": "unknown"}
        saved = self._save(step, drawn) if in_full else describe(step, drawn)
        return {"input": saved.input, "batch": _told(saved)}

    def about_parameters(self, bad: list[str], loss_is_finite: bool) -> dict[str, Any]:
        """Where the bad gradients began, by the order in which the models use their parameters."""
        order = [name for model in self.models() for name, _ in model.named_parameters()]
        first_non_finite = first_bad(order, dict.fromkeys(order, 0) | dict.fromkeys(bad, 1), loss_finite=loss_is_finite)
        if first_non_finite is None:
            return {}
        return {
            "parameter": first_non_finite.parameter,
            "module": first_non_finite.module,
            "began_in": first_non_finite.began_in,
            "words": first_non_finite.words,
        }

    def _save(self, step: int, drawn: list[Drawn]) -> SavedBatches:
        state = {str(number): model.state_dict() for number, model in enumerate(self.models())}
        randomness = drawn[0].randomness
        return save_batches(self._folder, step, drawn, state=state, randomness=randomness, run_later=self._run_later)


def _told(saved: SavedBatches) -> dict[str, Any]:
    indices = [None if found is None else found[:_INDICES] for found in saved.dataset_indices]
    told = {
        "indices": indices[0] if len(indices) == 1 else indices,
        "dataset": saved.dataset,
        "bad_samples": saved.bad_samples[:_INDICES],
        "file": None if saved.file is None else Path(saved.file).name,
        "left_out": saved.left_out,
    }
    return {key: value for key, value in told.items() if value}


_FAR, _LARGE = 1e4, 1e3  # times the middle one of its tensor, and at least so large
_WEIGHTS_AT_MOST = 1 << 28  # that are looked at, at most: the check is made in the way of a step


def look_at_weights(models: Iterable[nn.Module]) -> str:
    """`finite`, or the first parameter with a weight that is not sound; `unknown` where that cannot be looked at."""
    looked_at = 0
    for model in models:
        for name, parameter in model.named_parameters():
            numbers = parameter.detach()
            looked_at += numbers.numel()
            if not _can_be_read(numbers) or looked_at > _WEIGHTS_AT_MOST:
                return "unknown"
            if numbers.numel() and (words := _wrong_with(numbers)):
                return f"{name}: {words}"
    return "finite" if looked_at else "unknown"


def _can_be_read(numbers: torch.Tensor) -> bool:
    return (
        type(numbers) in (torch.Tensor, nn.Parameter) and numbers.is_cpu and numbers.is_floating_point() and numbers.itemsize > 1
    )


def _wrong_with(numbers: torch.Tensor) -> str:
    sizes = numbers.abs().flatten().float()
    bad = int((~sizes.isfinite()).sum())
    if bad:
        return f"{bad} of {sizes.numel()} weights are NaN or Inf"
    largest, usual = float(sizes.max()), float(sizes.median())
    if largest > _LARGE and largest > _FAR * usual:
        return f"a weight of {largest:.3g}, where {usual:.2g} is usual"
    return ""


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
