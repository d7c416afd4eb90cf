"""What a non-finite loss was computed from: the data that entered the forward pass, and the operation where it began.

Called before the backward pass, while the graph of the loss still holds the tensors that its operations have saved, and the
script's variables are those of this very batch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from holdfast.inside.guard.failure_context import is_mask, variable_evidence
from holdfast.inside.observers.batch_contents import non_finite_fields

_MAX_NODES, _MAX_NUMEL, _MAX_SECONDS = 20_000, 1 << 26, 2.0  # the training waits; checkpointed layers are computed again
_RESULTS = ("result", "output", "out")  # names under which an operation saves what it computed
_STATE = ("weight", "bias", "running", "save_", "mask", "eps")
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
            if _is_data(name, tensor):
                if is_bad and not is_mask(tensor):
                    return _of_data(node, tensor)
                found["input"] = "finite"
            elif is_bad:
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
                if isinstance(tensor, torch.Tensor) and _is_readable(tensor):
                    yield name.removeprefix("_saved_"), tensor


def _is_readable(tensor: torch.Tensor) -> bool:
    plain = tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested
    return plain and tensor.is_floating_point() and 0 < tensor.numel() <= _MAX_NUMEL


def _is_data(name: str, tensor: torch.Tensor) -> bool:
    """Whether it came into the graph from outside and is no parameter or buffer of the model."""
    is_leaf = tensor.grad_fn is None and not tensor.requires_grad and tensor.dim() > 0
    of_model = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
    return is_leaf and not of_model and not name.startswith((*_RESULTS, *_STATE))


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
