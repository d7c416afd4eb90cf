"""The evidence about a bad update: where bad gradients began, what weights, variables and the graph of a bad loss held.

`bad_loss_evidence` is called before the backward pass, while the graph of the loss still holds the tensors that its operations
have saved, and the script's variables are those of this very batch.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from holdfast.inside.control.names import all_frames, users_frames
from holdfast.inside.gradients.non_finite import is_state
from holdfast.inside.observers.batch_contents import leaves, non_finite_fields


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


def input_evidence(order: Sequence[str], bad: Collection[str]) -> str | None:
    """What the gradients of the first layer say of its input.

    That of the weight is made of the input and what comes back, that of the bias only of what comes back.
    """
    if set(bad) != set(order[:1]) or len(order) < 2 or _module_of(order[0]) != _module_of(order[1]):
        return None
    return f"given to `{_module_of(order[0]) or order[0]}`: the gradient of its weight is not finite, that of its bias is"


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
_NO_WEIGHT = 1e18  # its square is not finite in single precision: no batch gets past it
_MAX_WEIGHTS = 1 << 28  # the training waits for this check


def weight_evidence(models: Iterable[nn.Module]) -> dict[str, Any]:
    """`weights`: finite, the first parameter with a non-finite or outlying weight, or unknown where they cannot be read.

    `damaged` where no update can be made with such a weight.
    """
    num_checked = 0
    for model in models:
        for name, parameter in model.named_parameters():
            weights = parameter.detach()
            num_checked += weights.numel()
            if not _is_readable(weights) or num_checked > _MAX_WEIGHTS:
                return {"weights": "unknown"}
            if weights.numel() and (problem := _weight_problem(weights)):
                text, is_damaged = problem
                return {"weights": f"{name}: {text}"} | ({"damaged": True} if is_damaged else {})
    return {"weights": "finite" if num_checked else "unknown"}


def _is_readable(weights: torch.Tensor) -> bool:
    is_plain = type(weights) in (torch.Tensor, nn.Parameter)
    return is_plain and weights.is_cpu and weights.is_floating_point() and weights.itemsize > 1


def _weight_problem(weights: torch.Tensor) -> tuple[str, bool] | None:
    sizes = weights.abs().flatten().float()
    num_bad = int((~sizes.isfinite()).sum())
    if num_bad:
        return f"{num_bad} of {sizes.numel()} weights are NaN or Inf", True
    largest, median = float(sizes.max()), float(sizes.median())
    if largest > _OUTLIER_SIZE and largest > _OUTLIER_RATIO * median:
        return f"a weight of {largest:.3g}, where {median:.2g} is normal", largest > _NO_WEIGHT
    return None


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


_MAX_NODES, _MAX_SECONDS = 20_000, 2.0  # the training waits; checkpointed layers are computed again
_RESULTS = ("result", "output", "out")  # names under which an operation saves what it computed
# and what it was given; other names are those of parameters, or of results beside the main one, such as a log-sum-exp
_GIVEN = re.compile(
    r"(self|other|input|mat\d?|batch\d|vec\d|tensors?\d?|query|key|value|target|src|source|grid|x\d?)\Z", re.IGNORECASE
)
_PASSED_ON = ("Relu", "Sigmoid", "Tanh", "LogSoftmax", "NativeDropout", "ToCopy", "View")  # what is bad in them came from before
_LOGARITHMS = {"Log": 0.0, "Log2": 0.0, "Log10": 0.0, "Log1P": -1.0}  # and where they end


def bad_loss_evidence(loss: Any) -> dict[str, Any]:
    """The evidence of a finding: `input`, `half`, and the `operation` that gave the first non-finite value, and why."""
    variables = variable_evidence()
    graph = _graph_evidence(loss) if isinstance(loss, torch.Tensor) and loss.grad_fn is not None else {}
    if variables.get("input", "finite") != "finite":
        graph.pop("input", None)  # the script's name for it says more
    elif "input" not in graph:
        variables.pop("input", None)  # nobody knows whether these variables were the input
    return {**variables, **graph}


def _graph_evidence(loss: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    until = time.monotonic() + _MAX_SECONDS
    for node in _forward_order(loss):
        saved = list(_saved(node))
        if hasattr(node, "_saved_indices"):  # tokens: whole numbers are finite
            found["input"] = "finite"
        for name, tensor in saved:
            is_bad = not bool(torch.isfinite(tensor).all())
            if _is_from_outside(name, tensor):
                if is_bad and not is_mask(tensor):
                    return _of_data(node, tensor)
                found["input"] = "finite"
            elif is_bad and (tensor.requires_grad or name.startswith(_RESULTS)):
                producer = node if name.startswith(_RESULTS) else tensor.grad_fn
                overflows = tensor.dtype is torch.float16 and bool(tensor.isinf().any())
                return found | ({} if producer is None else _of_operation(producer, "overflow" if overflows else ""))
        if why := _why(_name(node), dict(saved)):
            return found | _of_operation(node, why)
        if time.monotonic() > until:
            return {}
    return found


def _forward_order(loss: torch.Tensor) -> list[Any]:
    """The nodes of a graph in the order in which the forward pass made them, without those of parameters."""
    nodes, waiting = set[Any](), [loss.grad_fn]
    while waiting and len(nodes) < _MAX_NODES:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return sorted((node for node in nodes if node.next_functions), key=lambda node: node._sequence_nr())


def _saved(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name in dir(node):
        if name.startswith("_saved_"):
            try:
                value = getattr(node, name)
            except RuntimeError:  # freed, or changed in place
                continue
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and _is_readable_value(tensor):
                    yield name.removeprefix("_saved_"), tensor


def _is_readable_value(tensor: torch.Tensor) -> bool:
    plain = tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested
    return plain and tensor.is_floating_point() and 0 < tensor.numel() <= _MAX_NUMEL


def _is_from_outside(name: str, tensor: torch.Tensor) -> bool:
    """Whether it came into the graph from outside and is no parameter or buffer of the model."""
    of_model = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
    return _GIVEN.match(name) is not None and _is_data(tensor) and not of_model


def _of_data(node: Any, tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.dtype is torch.float16 and not bool(tensor.isnan().any()):  # made so on its way: autocast, `.half()`
        return {"half": True, "operation": "conversion to float16", "operation_why": "overflow"}
    return {"input": f"given to `{_name(node)}`: {non_finite_fields(tensor)[0]}"}


def _of_operation(node: Any, why: str) -> dict[str, Any]:
    """Which operation gave the first values that are not finite, and why, where its own inputs tell."""
    while _name(node) in _PASSED_ON and node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    why = why or _why(_name(node), dict(_saved(node)))
    return {"operation": _name(node), **({"operation_why": why} if why else {})}


def _why(operation: str, saved: dict[str, torch.Tensor]) -> str:
    """Why an operation gave something that is not finite, or nothing if its inputs say nothing."""
    value, divisor = saved.get("self"), saved.get("other")
    if operation in _LOGARITHMS and value is not None and bool((value <= _LOGARITHMS[operation]).any()):
        return "log-of-zero"
    return "division-by-zero" if operation == "Div" and divisor is not None and bool((divisor == 0).any()) else ""


def _name(node: Any) -> str:
    return re.sub(r"Backward\d*$", "", str(node.name())) or "an operation"
