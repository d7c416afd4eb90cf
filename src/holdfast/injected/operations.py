"""Watch every operation of a step, and trace non-finite values back to the operation that made them.

An infinity is not always a fault: masks are filled with it on purpose. So each non-finite tensor is only tagged with the origin
of the operand that its values came from; a fault is reported when they reach the loss or a gradient.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
from dataclasses import dataclass, field, fields
from pathlib import Path
from traceback import FrameSummary
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_UNINITIALISED = ("empty", "new_empty", "resize", "set_")  # their results hold arbitrary memory
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_")
_SKIPPED = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep, "<frozen")  # torch, and ourselves
_LIBRARIES = (str(Path(os.__file__).parent) + os.sep, str(Path(torch.__file__).parents[1]) + os.sep)  # standard, installed
_MAX_ROWS = 64
_MAX_PLACES = 100_000  # forward operations whose place is remembered for the backward pass

Operand = tuple[Any, Any]  # the value before the operation, and the tensor itself
Place = tuple[tuple[str, str], FrameSummary | None, FrameSummary | None]  # module (name, type), the user's line, a library's


@dataclass(slots=True)
class Origin:
    """Where non-finite values came from: an operation, the batch (`input`), the `weights`, or unseen."""

    kind: str
    operation: str = ""
    stage: str = "forward"
    node: str = ""
    module: str = ""
    module_type: str = ""
    line: FrameSummary | None = None
    library_line: FrameSummary | None = None
    operands: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    at: dict[str, Any] = field(default_factory=dict)
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The origin for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lines = {name: line for name, line in values.items() if isinstance(line, FrameSummary)}
        return values | {
            name: {"file": line.filename, "line": line.lineno, "function": line.name, "code": line.line or ""}
            for name, line in lines.items()
        }


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every operation while active, in the backward pass too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules: list[tuple[str, str]] = []  # name and type of the running modules, outermost first
        self.origins: list[Origin] = []
        self._module_names: dict[int, str] = {}
        self._by_storage: dict[tuple[int, str], tuple[Origin, torch.Tensor]] = {}  # holding the tensor keeps its address unique
        self._places: dict[int, Place] = {}
        self._pid = os.getpid()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and check its result."""
        kwargs = kwargs or {}
        if os.getpid() != self._pid:  # a forked loader worker
            return func(*args, **kwargs)
        node: Any = torch._C._current_autograd_node()  # None in the forward pass
        if node is None and torch.is_grad_enabled():
            self._remember_place()
        before = _operands(func, args, kwargs)
        result = func(*args, **kwargs)
        bad = [tensor for tensor in tree_leaves(result) if is_bad(tensor)]
        if bad and not str(func.overloadpacket).rpartition(".")[2].startswith(_UNINITIALISED):
            self._trace(func, before, bad, node)
        return result

    def enter_module(self, module: nn.Module) -> bool:
        """A module is called; True if it is the outermost. The others are named as in that one."""
        outermost = not self.modules
        if outermost:
            self._module_names = {id(part): name for name, part in module.named_modules()}
        self.modules.append((self._module_names.get(id(module), ""), type(module).__name__))
        return outermost

    def leave_module(self) -> None:
        """The innermost module has returned."""
        if self.modules:
            self.modules.pop()

    def taint(self, tensor: torch.Tensor, origin: Origin) -> None:
        """Tag a tensor with the origin of its values."""
        key = _storage(tensor)
        if key is not None:
            self._by_storage[key] = (origin, tensor.detach())

    def origin_of(self, tensor: torch.Tensor) -> Origin | None:
        """The origin of a tensor's bad values, if known."""
        key = _storage(tensor)
        entry = self._by_storage.get(key) if key is not None else None
        return entry[0] if entry is not None else None

    def _trace(self, func: Any, before: list[Operand], bad: list[torch.Tensor], node: Any) -> None:
        bad_operands = [operand for operand in before if is_bad(operand[0])]
        origin: Origin | None = None
        kind = "operation"
        if bad_operands:
            origins = (self.origin_of(tensor) for _, tensor in bad_operands)
            origin = next((candidate for candidate in origins if candidate is not None), None)
            kind = "unseen"
            if origin is not None and origin.kind == "constant" and _made_nan(bad_operands, bad):
                origin, kind = None, "operation"  # an intended infinity, used where it becomes NaN
        elif any(isinstance(value, float) and not math.isfinite(value) for value, _ in before):
            kind = "constant"
        origin = origin or self._make(func, [value for value, _ in before], bad[0], node, kind=kind)
        for tensor in bad:
            self.taint(tensor, origin)

    def _make(self, func: Any, before: list[Any], output: torch.Tensor, node: Any, *, kind: str) -> Origin:
        origin = Origin(kind, operation=func._schema.name)
        origin.operands = [stats_of(value) for value in before]
        origin.output = {**stats_of(output), "bad_rows": _bad_rows(output)}
        origin.at = _at_first_bad(before, output)
        place = self._place(sys._getframe(2))
        if node is not None:
            origin.stage, origin.node = "backward", str(node.name())
            place = self._places.get(node._sequence_nr(), place)  # a Function of the user's has its own line
        (origin.module, origin.module_type), origin.line, origin.library_line = place
        self.origins.append(origin)
        return origin

    def _remember_place(self) -> None:
        """Note the module and line of the newest autograd node: the backward pass has no line of its own."""
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._places and len(self._places) < _MAX_PLACES:
            self._places[number] = self._place(sys._getframe(2))

    def _place(self, frame: FrameType) -> Place:
        """The running module, the innermost line of the user's code, and the innermost library line below it."""
        module, library = self.modules[-1] if self.modules else ("", ""), None
        for outer, number in traceback.walk_stack(frame):
            file = outer.f_code.co_filename
            if file.startswith(_SKIPPED):
                continue
            line = FrameSummary(file, number, outer.f_code.co_name, lookup_line=False)
            if not file.startswith(_LIBRARIES):
                return module, line, library
            library = library or line
        return module, None, library


def is_bad(value: Any) -> bool:
    """Whether a value is a tensor with NaN or Inf."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return False
    try:
        values = value.detach()
        if values.layout is not torch.strided:
            values = values.coalesce().values() if values.layout is torch.sparse_coo else values.values()
        if values.itemsize == 1:
            values = values.float()
        return values.numel() > 0 and not bool(torch.isfinite(values).all())
    except (RuntimeError, NotImplementedError, TypeError):  # a tensor type without isfinite
        return False


def stats_of(value: Any) -> dict[str, Any]:
    """A number, or a tensor's shape, range, and counts of zero, negative and non-finite values."""
    if not isinstance(value, torch.Tensor):
        return {"value": value if isinstance(value, (int, float, bool)) else str(value)}
    stats: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if not value.is_floating_point() or value.layout is not torch.strided:
        return stats
    values = value.detach().double() if value.device.type != "mps" else value.detach().float()
    finite = values[torch.isfinite(values)]
    if finite.numel():
        stats |= {"min": finite.min().item(), "max": finite.max().item()}
        stats |= {"zeros": int((finite == 0).sum()), "negative": int((finite < 0).sum())}
    stats |= {"nan": int(values.isnan().sum()), "inf": int(values.isposinf().sum()), "minus_inf": int(values.isneginf().sum())}
    return stats


def _bad_rows(output: torch.Tensor) -> list[int]:
    """Indices along the first dimension, mostly samples, with a bad value."""
    if output.layout is not torch.strided or output.dim() == 0:
        return []
    bad = ~torch.isfinite(output.detach().float())
    rows: list[int] = bad.reshape(bad.shape[0], -1).any(1).nonzero().flatten()[:_MAX_ROWS].tolist()
    return rows


def _at_first_bad(before: list[Any], output: torch.Tensor) -> dict[str, Any]:
    """The first bad value, and the operands' values at the same index."""
    if output.layout is not torch.strided:
        return {}
    index = (~torch.isfinite(output.detach().float())).nonzero()[0].tolist()
    operands = []
    for value in before:
        single: Any = value
        if isinstance(value, torch.Tensor):
            try:
                single = value.detach().expand(output.shape)[tuple(index)].item()
            except RuntimeError:
                single = None
        operands.append(single if isinstance(single, (int, float)) else None)
    return {"index": index, "output": output.detach()[tuple(index)].item(), "operands": operands}


def _operands(func: Any, args: Any, kwargs: Any) -> list[Operand]:
    """The operands in order: those written in place are copied, those only overwritten are skipped."""
    schema, kinds = func._schema, (torch.Tensor, float, int)
    if not schema.is_mutable:
        return [(value, value) for value in tree_leaves((args, kwargs)) if isinstance(value, kinds)]
    overwrites = schema.name.rpartition("::")[2] in _OVERWRITING
    arguments = [*zip(schema.arguments, args, strict=False), *((a, kwargs[a.name]) for a in schema.arguments if a.name in kwargs)]
    operands: list[Operand] = []
    for argument, value in arguments:
        written = argument.alias_info is not None and argument.alias_info.is_write
        if not (written and (overwrites or argument.is_out)):
            parts = [part for part in tree_leaves(value) if isinstance(part, kinds)]
            operands += [(part.detach().clone() if written and isinstance(part, torch.Tensor) else part, part) for part in parts]
    return operands


def _made_nan(operands: list[Operand], results: list[torch.Tensor]) -> bool:
    return any(bool(t.isnan().any()) for t in results) and not any(bool(value.isnan().any()) for value, _ in operands)


def _storage(tensor: torch.Tensor) -> tuple[int, str] | None:
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return (address, str(tensor.device)) if address else None
