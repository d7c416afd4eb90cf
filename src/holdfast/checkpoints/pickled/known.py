"""What the known names make. Each is described by our own code; the name itself is never used.

A call whose arguments are not as torch, numpy or Python write them stays a `Thing`: the name, and what it was given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from holdfast.checkpoints.harmless import ITEM_SIZES
from holdfast.checkpoints.pickled.legacy import read_inside
from holdfast.checkpoints.pickled.opcodes import Blob, LongText, made_again
from holdfast.checkpoints.pickled.stack import Named, Pairs, Stack, StorageUse, Tensor, Thing
from holdfast.checkpoints.pickled.values import VALUES, fixed_row, text_of

_DIMENSIONS = 64
_ENCODINGS = ("latin1", "latin-1", "utf-8", "utf8", "ascii")
_LONGEST = 1 << 62
_ODD = (TypeError, ValueError, LookupError, OverflowError, AttributeError, struct.error)  # not what this name is given


def make(machine: Stack, what: Named, args: tuple[Any, ...]) -> Any:
    """What a call of a known name gives; a description of the call otherwise."""
    name = what.full
    try:
        if name in VALUES or name in _MAKERS:
            machine.findings.copy(sum(map(_weight, args)))
        if name in VALUES:
            return VALUES[name](*args)
        if name in _MAKERS:
            return _MAKERS[name](machine, *args)
    except _ODD:
        pass
    return Thing(name, args)


def _weight(value: Any) -> int:
    """Bytes that a copy of it takes; runs of bytes are not copied."""
    return 8 * len(value) if isinstance(value, list | tuple) else len(value) if isinstance(value, str) else 0


def _encoded(machine: Stack, text: Any, encoding: Any = "utf-8") -> Blob:
    """Bytes that were written as text: they lie nowhere in the file as they are."""
    if encoding not in _ENCODINGS:
        raise ValueError
    latin = encoding.startswith("latin")
    if isinstance(text, LongText):
        return text.latin1() if latin else text.utf8 or Blob(None, text.size)
    size = len(text) if latin else len(text_of(text).encode(encoding))
    machine.findings.spent += size >> 10
    if machine.findings.keep(size):
        return Blob(text_of(text).encode(encoding), size)
    return made_again(lambda: iter((text.encode(encoding),)), size)


def _bytes(machine: Stack, data: Any = "", encoding: Any = "latin-1") -> Blob:
    """Bytes of bytes, or of text with its encoding."""
    return data if isinstance(data, Blob) else _encoded(machine, data, encoding)


def _tensor(_: Stack, storage: Any, offset: Any, shape: Any, stride: Any, *_rest: Any, dtype: str = "") -> Tensor:
    """A tensor of a storage. Raises TypeError or ValueError for what no tensor has."""
    if not isinstance(storage, StorageUse):
        raise TypeError
    (start,), sizes, steps = _lengths((offset,)), _lengths(shape), _lengths(stride)
    if len(sizes) != len(steps) or len(sizes) > _DIMENSIONS:
        raise ValueError
    return Tensor(storage, dtype or storage.dtype, sizes, start, steps)


def _tensor_v3(machine: Stack, *args: Any) -> Tensor:
    """A tensor of a storage without a kind: its own comes seventh."""
    dtype = args[6]
    if not isinstance(dtype, Named) or dtype.module != "torch" or dtype.name not in ITEM_SIZES:
        raise ValueError
    return _tensor(machine, *args[:4], dtype=dtype.name)


def _quantized(machine: Stack, storage: Any, *args: Any) -> Tensor:
    if storage.dtype not in ("qint8", "quint8", "qint32"):
        raise ValueError  # several numbers in a byte
    return _tensor(machine, storage, *args)


def _lengths(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError
    for value in values:
        if type(value) is not int or not 0 <= value < _LONGEST:
            raise ValueError
    return tuple(values)


def _parameter(_: Stack, value: Any, *_rest: Any) -> Any:
    if not isinstance(value, Tensor | Thing):
        raise TypeError
    return value


def _same(_: Stack, value: Any, *_rest: Any) -> Any:
    return value


def _of_type(machine: Stack, function: Any, kind: Any, args: Any, state: Any = None) -> Any:
    """A tensor of a class of its own: the function is called, so it is judged as called."""
    machine.judge_call(kind, "made")
    made = machine.call(function, args)
    if isinstance(made, Thing) and made.state is None:
        made.state = state
    return made


def _made_the_old_way(machine: Stack, kind: Any, _base: Any, content: Any = None) -> Any:
    """Protocols 0 and 1: an object of a class, with what it holds of the class that it inherits from."""
    made = machine.call(kind, (content,) if isinstance(content, str | tuple) else (), "made")
    if isinstance(made, Thing) and isinstance(content, Pairs):
        made.pairs = content
    elif isinstance(made, Thing) and isinstance(content, list):
        made.items = content
    return made


def _made(machine: Stack, kind: Any, *args: Any) -> Any:
    return machine.call(kind, args, "made")


def _made_with_names(machine: Stack, kind: Any, args: Any, named: Any) -> Any:
    return machine.call(kind, (*args, named), "made")


def _item(machine: Stack, of: Any, which: Any) -> Thing:
    """`Union[int, str]`. An item of anything else may be the way to a function, or call one."""
    if not isinstance(of, Named) or of.module not in ("typing", "builtins", "collections", "types"):
        machine.findings.refuse("operator.getitem")
    return Thing(f"{of.full}[]" if isinstance(of, Named) else "operator.getitem", (which,))


_MAKERS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encoded,
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _parameter,
    "torch._tensor._rebuild_from_type": _of_type,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.nn.parameter.Buffer": _parameter,
    "torch.storage._load_from_bytes": read_inside,
    "torch.Size": lambda _, items=(): fixed_row(items),
    "torch.serialization._get_layout": lambda _, text: text_of(text),
    "torch.torch_version.TorchVersion": lambda _, text: text_of(text),
    **{f"torch.jit._pickle.build_{kind}list": _same for kind in ("int", "double", "bool", "tensor")},
    "torch.jit._pickle.restore_type_tag": _same,
    "copyreg._reconstructor": _made_the_old_way,
    "copyreg.__newobj__": _made,
    "copyreg.__newobj_ex__": _made_with_names,
    "operator.getitem": _item,
    "_operator.getitem": _item,
}
