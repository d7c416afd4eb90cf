"""Watch every operation of a step, and follow what is not finite back to the operation that made it.

An infinity is not always a fault: masks are filled with it on purpose. So nothing is blamed when it appears. Each tensor that
holds such values is given the origin of the operand they came from, and blame is laid when they reach the loss or a gradient.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_UNINITIALISED = ("empty", "new_empty", "resize", "set_")  # what they give is whatever lay there
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_")
_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parent) + os.sep
_LIBRARIES = (str(Path(os.__file__).parent) + os.sep, str(Path(torch.__file__).parents[1]) + os.sep)  # standard, installed
_TRACED = re.compile(r'File "(.+?)", line (\d+), in (\S+)\n(?:\s*(.*))?')
_NAMED_ROWS = 64
_KEPT_LINES = 100_000  # forward operations whose place is remembered for the backward pass


@dataclass(slots=True)
class Operand:
    """A value that an operation was given, as it was before; `original` is the tensor itself."""

    value: Any
    original: Any


@dataclass(slots=True)
class Line:
    """A line of source code."""

    file: str
    number: int
    function: str

    def as_dict(self) -> dict[str, Any]:
        """The line with its text, as far as it can be read."""
        code = linecache.getline(self.file, self.number).strip()
        return {"file": self.file, "line": self.number, "function": self.function, "code": code}


@dataclass(slots=True)
class Origin:
    """Where values that are not finite came from: an operation, the batch (`input`), the `weights`, or somewhere unseen."""

    kind: str
    operation: str = ""
    stage: str = "forward"
    node: str = ""
    module: str = ""
    module_type: str = ""
    line: Line | None = None
    library_line: Line | None = None
    operands: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    at: dict[str, Any] = field(default_factory=dict)
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The origin as JSON holds it."""
        return {
            "kind": self.kind,
            "operation": self.operation,
            "stage": self.stage,
            "node": self.node,
            "module": self.module,
            "module_type": self.module_type,
            "line": self.line.as_dict() if self.line is not None else None,
            "library_line": self.library_line.as_dict() if self.library_line is not None else None,
            "operands": self.operands,
            "output": self.output,
            "at": self.at,
            "detail": self.detail,
        }


Place = tuple[tuple[str, str], Line | None, Line | None]  # module (name, type), the user's line, a library's line


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation while it is entered, in the backward pass too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules: list[tuple[str, str]] = []  # name and type of the modules that are being executed, outermost first
        self.origins: list[Origin] = []
        self._of_storage: dict[tuple[int, str], tuple[Origin, torch.Tensor]] = {}  # the tensor keeps its address taken
        self._places: dict[int, Place] = {}
        self._pid = os.getpid()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and look at what it gave."""
        kwargs = kwargs or {}
        if os.getpid() != self._pid:  # a loader's worker that was forked meanwhile
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

    def start(self) -> None:
        """Begin to see."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """See no more."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def taint(self, tensor: torch.Tensor, origin: Origin) -> None:
        """Say where the values of a tensor came from."""
        key = _storage(tensor)
        if key is not None:
            self._of_storage[key] = (origin, tensor.detach())

    def origin_of(self, tensor: torch.Tensor) -> Origin | None:
        """Where the bad values of a tensor came from, if that was seen."""
        key = _storage(tensor)
        found = self._of_storage.get(key) if key is not None else None
        return found[0] if found is not None else None

    def _trace(self, func: Any, before: list[Operand], bad: list[torch.Tensor], node: Any) -> None:
        guilty = [operand for operand in before if is_bad(operand.value)]
        origin: Origin | None = None
        kind = "operation"
        if guilty:
            origin = next((found for operand in guilty if (found := self.origin_of(operand.original)) is not None), None)
            kind = "unseen"
            if origin is not None and origin.kind == "constant" and _made_nan(guilty, bad):
                origin, kind = None, "operation"  # an infinity that was put in on purpose, in a place that cannot have it
        elif any(isinstance(operand.value, float) and not _finite(operand.value) for operand in before):
            kind = "constant"
        origin = origin or self._make(func, [operand.value for operand in before], bad[0], node, kind=kind)
        for tensor in bad:
            self.taint(tensor, origin)

    def _make(self, func: Any, before: list[Any], output: torch.Tensor, node: Any, *, kind: str) -> Origin:
        origin = Origin(kind, operation=func._schema.name)
        origin.operands = [numbers_of(value) for value in before]
        origin.output = {**numbers_of(output), "bad_rows": _bad_rows(output)}
        origin.at = _at_first_bad(before, output)
        if node is None:
            place = (self._module(), *own_line(sys._getframe(2)))
        else:
            origin.stage, origin.node = "backward", str(node.name())
            place = self._place_of(node)
        (origin.module, origin.module_type), origin.line, origin.library_line = place
        self.origins.append(origin)
        return origin

    def _remember_place(self) -> None:
        """Note the module and line of the autograd node that was just made: the backward pass has no line of its own."""
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._places and len(self._places) < _KEPT_LINES:
            self._places[number] = (self._module(), *own_line(sys._getframe(2)))

    def _module(self) -> tuple[str, str]:
        return self.modules[-1] if self.modules else ("", "")

    def _place_of(self, node: Any) -> Place:
        known = self._places.get(node._sequence_nr()) if hasattr(node, "_sequence_nr") else None
        if known is not None:
            return known
        traced = "".join(node.metadata.get("traceback_", ()))  # left by anomaly mode
        lines = [Line(file, int(number), function) for file, number, function, _ in _TRACED.findall(traced)]
        return (("", ""), *_choose(reversed(lines)))


class ModuleNames:
    """Keeps the list of modules that are being executed, by their names in the outermost one."""

    def __init__(self, operations: Operations) -> None:
        self._stack = operations.modules
        self._names: dict[int, str] = {}
        self._root: nn.Module | None = None

    def enter(self, module: nn.Module) -> bool:
        """A module is called; whether it is the outermost."""
        outermost = not self._stack
        if outermost:
            self._root = module
            self._names = {id(part): name for name, part in module.named_modules()}
        self._stack.append((self._names.get(id(module), ""), type(module).__name__))
        return outermost

    def leave(self) -> None:
        """The innermost module is done."""
        if self._stack:
            self._stack.pop()


def is_bad(value: Any) -> bool:
    """Whether it is a tensor that holds NaN or Inf."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return False
    try:
        plain = value.detach()
        if plain.layout is not torch.strided:
            plain = plain.coalesce().values() if plain.layout is torch.sparse_coo else plain.values()
        if plain.itemsize == 1:
            plain = plain.float()
        return plain.numel() > 0 and not bool(torch.isfinite(plain).all())
    except (RuntimeError, NotImplementedError, TypeError):  # a kind of tensor that cannot be asked
        return False


def numbers_of(value: Any) -> dict[str, Any]:
    """What an operand was: a number, or a tensor's shape, range, zeros, negatives and values that are not finite."""
    if not isinstance(value, torch.Tensor):
        return {"value": value if isinstance(value, (int, float, bool)) else str(value)}
    known: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if not value.is_floating_point() or value.layout is not torch.strided:
        return known
    numbers = value.detach().double() if value.device.type != "mps" else value.detach().float()
    finite = numbers[torch.isfinite(numbers)]
    if finite.numel():
        known |= {"min": finite.min().item(), "max": finite.max().item()}
        known |= {"zeros": int((finite == 0).sum()), "negative": int((finite < 0).sum())}
    known["nan"] = int(torch.isnan(numbers).sum())
    known["inf"] = int((numbers == float("inf")).sum())
    known["minus_inf"] = int((numbers == float("-inf")).sum())
    return known


def _bad_rows(output: torch.Tensor) -> list[int]:
    """Places in the first dimension that hold a bad value; in most tensors these are samples."""
    if output.layout is not torch.strided or output.dim() == 0:
        return []
    bad = ~torch.isfinite(output.detach().float())
    rows: list[int] = bad.reshape(bad.shape[0], -1).any(1).nonzero().flatten()[:_NAMED_ROWS].tolist()
    return rows


def _at_first_bad(before: list[Any], output: torch.Tensor) -> dict[str, Any]:
    """The first bad value, and the operands' values in the same place where they have one."""
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
    """The operands in order. One that the operation may change is copied first; one that it only overwrites is left out."""
    schema = func._schema
    if not schema.is_mutable:
        return [Operand(value, value) for value in tree_leaves((args, kwargs)) if isinstance(value, (torch.Tensor, float, int))]
    overwrites = schema.name.rpartition("::")[2] in _OVERWRITING
    kinds = (torch.Tensor, float, int)
    given = [*zip(schema.arguments, args, strict=False), *((a, kwargs[a.name]) for a in schema.arguments if a.name in kwargs)]
    operands = []
    for argument, value in given:
        written = argument.alias_info is not None and argument.alias_info.is_write
        if not (written and (overwrites or argument.is_out)):
            operands += [_operand(part, copied=written) for part in tree_leaves(value) if isinstance(part, kinds)]
    return operands


def _operand(value: Any, *, copied: bool) -> Operand:
    if copied and isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return Operand(value.detach().clone(), value)
    return Operand(value, value)


def _made_nan(guilty: list[Operand], bad: list[torch.Tensor]) -> bool:
    return any(bool(torch.isnan(t).any()) for t in bad) and not any(bool(torch.isnan(o.value).any()) for o in guilty)


def _storage(tensor: torch.Tensor) -> tuple[int, str] | None:
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return (address, str(tensor.device)) if address else None


def _finite(value: float) -> bool:
    return value - value == 0.0


def own_line(frame: FrameType | None) -> tuple[Line | None, Line | None]:
    """The innermost line of the user's own code, and that of a library where it is further in."""
    lines = []
    while frame is not None:
        lines.append(Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return _choose(lines)


def _choose(lines: Any) -> tuple[Line | None, Line | None]:
    library: Line | None = None
    for line in lines:
        if line.file.startswith((_TORCH, _OURS, "<frozen")):
            continue
        if line.file.startswith(_LIBRARIES):
            library = library or line
            continue
        return line, library
    return None, library
