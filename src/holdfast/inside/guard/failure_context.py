"""The context of a bad update: which batch it was, whether inputs and weights were finite, where the bad gradients began.

On a GPU a bad update is known a step or two later; until then the batches of the steps in flight are kept.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from holdfast.inside.control.frames import all_frames, users_frames
from holdfast.inside.gradients.non_finite import is_state
from holdfast.inside.observers.batch_contents import leaves, non_finite_fields
from holdfast.inside.observers.batches import Batches
from holdfast.inside.observers.saved_batch import DrawnBatch, SavedBatches, describe, save_batches

_MAX_IN_FLIGHT, _MAX_SAVED = 8, 3  # steps
_MAX_INDICES = 64  # in the journal; the file beside the batch has them all


class FailureContext:
    """Collects the evidence about the bad updates of one training."""

    def __init__(
        self,
        batches: Batches,
        *,
        folder: Path,
        models: Callable[[], list[nn.Module]],
        run_later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._batches, self._folder, self.models, self._run_later = batches, folder, models, run_later
        self._num_saved = 0
        self._in_flight: deque[tuple[int, list[DrawnBatch]]] = deque(maxlen=_MAX_IN_FLIGHT)

    def step_sent(self, step: int) -> None:
        """Keep the batches of a step until its metrics have arrived from the device."""
        self._in_flight.append((step, self._batches.current()))

    def weight_evidence(self) -> dict[str, Any]:
        """Whether the weights were normal before the update."""
        return {"weights": weight_status(self.models())}

    def batch_evidence(self, step: int, *, save: bool) -> dict[str, Any]:
        """Which batch it was; with `save` it is also written to disk for a replay."""
        batches = next((batches for number, batches in self._in_flight if number == step), None)
        if batches is None:
            batches = self._batches.current()
        if not batches:
            return {"input": "unknown"}
        saved = self._save(step, batches) if save else describe(step, batches)
        return {"input": saved.input, "batch": _summary(saved)}

    def parameter_evidence(self, bad: list[str], *, loss_finite: bool) -> dict[str, Any]:
        """Where the bad gradients began, by the order in which the models register their parameters."""
        order = [name for model in self.models() for name, _ in model.named_parameters()]
        return first_bad(order, set(bad), loss_finite=loss_finite)

    def _save(self, step: int, batches: list[DrawnBatch]) -> SavedBatches:
        self._num_saved += 1
        if self._num_saved > _MAX_SAVED:
            saved = describe(step, batches)
            saved.not_saved.append(f"{_MAX_SAVED} batches of this run are saved already")
            return saved
        state = {str(number): model.state_dict() for number, model in enumerate(self.models())}
        return save_batches(self._folder, step, batches, state=state, run_later=self._run_later)


def _summary(saved: SavedBatches) -> dict[str, Any]:
    indices = [None if batch is None else batch[:_MAX_INDICES] for batch in saved.dataset_indices]
    summary = {
        "indices": indices[0] if len(indices) == 1 else indices,
        "dataset": saved.dataset,
        "bad_samples": saved.bad_samples[:_MAX_INDICES],
        "file": None if saved.file is None else Path(saved.file).name,
        "not_saved": saved.not_saved,
    }
    return {key: value for key, value in summary.items() if value}


def first_bad(order: Sequence[str], bad: Collection[str], *, loss_finite: bool) -> dict[str, Any]:
    """Find where non-finite gradients came from among the parameters in forward order; empty if none is bad.

    The backward pass runs from the loss to the first layer and carries NaN along. So the last bad parameter is next to the
    origin, and the first one is where it ended up.

    `parameter` is the first bad one, `began_in` the module where it began (None: in the loss), `words` the sentence.
    """
    places = [place for place, name in enumerate(order) if name in bad]
    if not places:
        return {}
    first, last = order[places[0]], order[places[-1]]
    began_in = _module_of(last) if loss_finite else None
    sentence = _describe(order, places) if loss_finite else _FROM_LOSS.format(first)
    return {"parameter": first, "module": _module_of(first), "began_in": began_in, "words": sentence}


_FROM_LOSS = "The loss is not finite: it began in the forward pass. First non-finite gradient: {}."


def _module_of(parameter: str) -> str:
    """The module that holds a parameter; empty for the model itself."""
    return parameter.rpartition(".")[0]


def _describe(names: Sequence[str], places: list[int]) -> str:
    """Where gradients became bad although the loss was finite."""
    last, count, of = names[places[-1]], len(places), len(names)
    module = _module_of(last) or "the model itself"
    if count == of:
        return f"The loss is finite and no gradient is: it began in the backward pass of the loss or of {module}."
    if count == 1:
        return f"Only the gradient of {last} is not finite: it began in the backward pass of {module}."
    if places[-1] + 1 == of:
        return f"{count} of {of} gradients are not finite, down to the last layer: it began in {module} or in the loss."
    which = f"all {count} gradients up to {last}" if places[-1] + 1 == count else f"{count} gradients, the last {last},"
    rest = f"are not finite and from {names[places[-1] + 1]} on they are"
    return f"In forward order {which} {rest}: it began in the backward pass of {module}."


_OUTLIER_RATIO, _OUTLIER_SIZE = 1e4, 1e3  # a weight that many times its tensor's median, and at least so large
_MAX_WEIGHTS = 1 << 28  # the training waits for this check


def weight_status(models: Iterable[nn.Module]) -> str:
    """`finite`, the first parameter with a non-finite or outlying weight, or `unknown` where they cannot be read."""
    num_checked = 0
    for model in models:
        for name, parameter in model.named_parameters():
            weights = parameter.detach()
            num_checked += weights.numel()
            if not _is_readable(weights) or num_checked > _MAX_WEIGHTS:
                return "unknown"
            if weights.numel() and (problem := _weight_problem(weights)):
                return f"{name}: {problem}"
    return "finite" if num_checked else "unknown"


def _is_readable(weights: torch.Tensor) -> bool:
    is_plain = type(weights) in (torch.Tensor, nn.Parameter)
    return is_plain and weights.is_cpu and weights.is_floating_point() and weights.itemsize > 1


def _weight_problem(weights: torch.Tensor) -> str:
    sizes = weights.abs().flatten().float()
    num_bad = int((~sizes.isfinite()).sum())
    if num_bad:
        return f"{num_bad} of {sizes.numel()} weights are NaN or Inf"
    largest, median = float(sizes.max()), float(sizes.median())
    if largest > _OUTLIER_SIZE and largest > _OUTLIER_RATIO * median:
        return f"a weight of {largest:.3g}, where {median:.2g} is normal"
    return ""


_MAX_FRAMES, _MAX_TENSORS, _MAX_NUMEL = 4, 64, 1 << 26
_FLOAT16_MAX = 65504.0
_BATCH_NAMES = ("batch", "inputs")


def variable_evidence(models: Iterable[nn.Module] = ()) -> dict[str, Any]:
    """Inspect the variables of the training loop for non-finite inputs and float16 overflow.

    Not for labels out of range: which integers are the loss's target cannot be told from here, and torch's losses refuse those.
    """
    evidence: dict[str, Any] = {}
    frame = sys._getframe(1)
    tensors = list(islice(_user_tensors(frame), _MAX_TENSORS)) or list(_trainer_tensors(frame))
    gradients = {id(parameter.grad) for model in models for parameter in model.parameters() if parameter.grad is not None}
    data = [(place, tensor) for place, tensor in tensors if _is_data(tensor) and id(tensor) not in gradients]
    for place, tensor in data:
        fields = non_finite_fields(tensor)
        if fields and not is_mask(tensor):
            evidence["input"] = f"{place}: {fields[0]}"
            break
    else:
        if any(tensor.numel() > 1 for _, tensor in data):
            evidence["input"] = "finite"
    if any(tensor.dtype is torch.float16 for _, tensor in tensors):
        evidence["half"] = True
        maxima = [float(tensor.detach().abs().max()) for _, tensor in data if tensor.is_floating_point() and tensor.numel()]
        largest = max((value for value in maxima if value < float("inf")), default=0.0)
        if largest > _FLOAT16_MAX:
            evidence["input_max"] = largest
    return evidence


def _user_tensors(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in the local variables of the user's innermost frames, with their place."""
    for user in users_frames(all_frames(frame))[:_MAX_FRAMES]:
        function = user.f_code.co_name
        line = f"line {user.f_lineno} of {Path(user.f_code.co_filename).name}"
        place = line if function.startswith("<") else f"{function}(), {line}"
        for name, value in list(user.f_locals.items()):
            if isinstance(value, torch.Tensor) or (type(value) in (dict, list, tuple) and not is_state(value)):
                yield from _tensors_in(name, value, place, depth=2)


def _trainer_tensors(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """The same where a trainer has the loop: the variables that it calls a batch."""
    for outer in all_frames(frame):
        for name in _BATCH_NAMES:
            if name in outer.f_locals:
                yield from _tensors_in(name, outer.f_locals[name], f"{outer.f_code.co_name}()", depth=3)


def _tensors_in(name: str, value: Any, place: str, *, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    for field, tensor in leaves(value, depth=depth):
        if isinstance(tensor, torch.Tensor) and tensor.numel() <= _MAX_NUMEL and not tensor.is_meta:
            yield f"`{name}{f'[{field}]' if field else ''}` in {place}", tensor


def _is_data(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is None and not tensor.requires_grad and tensor.dim() > 0


def is_mask(tensor: torch.Tensor) -> bool:
    """Whether it holds nothing but 0, 1 and minus infinity, as attention masks do."""
    return bool(((tensor == 0) | (tensor == 1) | (tensor == float("-inf"))).all())
