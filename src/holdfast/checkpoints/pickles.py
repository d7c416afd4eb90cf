"""Read a pickle without running anything that is in it: what it holds, which names it asks for, and where it breaks off.

Python's unpickler imports what a stream names and calls it; that is how a checkpoint can run a program. Here the stream is
followed by a machine of our own (`pickled/`), which knows what tensors and plain containers look like and describes the rest.

The plain tree that comes out is one that anybody may walk: it has no circles, is at most 64 levels deep, and what stands at many
places is listed at each of them only as long as that stays in proportion. A tensor is named for its path; the parts of a pickled
nn.Module that only torch knows ("_modules", "_parameters") are left out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any

from holdfast.checkpoints.contents import Opaque, TensorInfo
from holdfast.checkpoints.pickled.legacy import Legacy, read_legacy
from holdfast.checkpoints.pickled.machine import Findings, Machine
from holdfast.checkpoints.pickled.opcodes import Blob, LongText, Source
from holdfast.checkpoints.pickled.stack import Bag, Named, Pairs, StorageUse, Tensor, Thing, printable
from holdfast.checkpoints.pickled.values import describe

DEEPEST = 64  # levels; a level takes several calls, of which Python allows 1,000
_PART, _NAME = 300, 3000  # characters of a path's part, and of a whole name
_SHARED = 200_000  # nodes that are listed more than once, at least
_BIG_KEY, _TUPLE_KEYS = 1 << 60, 10_000  # numbers and tuples can be chosen so that a dict of them takes forever
_SCALAR = (bool, int, float, str, type(None))
_HIDDEN = ("_modules", "_parameters", "_buffers")


class Listing:
    """Makes the tree; `tensors` are all that were met, `complete` says whether everything is in it."""

    def __init__(self, spent: int) -> None:
        self.tensors: list[TensorInfo] = []
        self.complete = True
        self.getattr_named = False
        self._room = spent + _SHARED
        self._path: list[str] = []
        self._above: set[int] = set()
        self._names: dict[str, int] = {}
        self._tuple_keys = _TUPLE_KEYS
        self._counted: dict[tuple[int, str], Any] = {}

    def tree(self, node: Any) -> Any:
        """The plain form of a node."""
        if node is None or isinstance(node, bool | int | float | complex | str):
            return node
        self._room -= 1
        if isinstance(node, Tensor):
            return self._tensor(node, node.dtype, node.shape, node.offset, node.stride)
        if isinstance(node, StorageUse):
            return self._tensor(node, node.dtype, (node.count,), 0, (1,))
        if isinstance(node, Named):
            self.getattr_named |= node.full == "builtins.getattr"
            return Opaque(node.full)
        if isinstance(node, Blob):
            return Opaque("bytes", (node.size,)) if node.data is None else node.data
        if isinstance(node, LongText):
            return Opaque("str", (node.size,))
        return self._container(node)

    def _container(self, node: Any) -> Any:
        if id(node) in self._above:
            return Opaque("an object that holds it")
        if self._room < 0 or len(self._above) >= DEEPEST:
            self.complete = False
            return Opaque("not listed")
        self._above.add(id(node))
        try:
            if isinstance(node, Thing):
                return self._thing(node)
            if isinstance(node, Pairs):
                return self._table(node)
            row = self._row(node)
            return tuple(row) if isinstance(node, tuple) else _sorted(row) if isinstance(node, Bag) else row
        finally:
            self._above.discard(id(node))

    def _row(self, items: Any) -> list[Any]:
        self._room -= len(items)
        if self._room < 0:
            self.complete = False
            return []
        return [self._at(str(at), value) for at, value in enumerate(items)]

    def _table(self, pairs: Pairs, *, module: bool = False) -> dict[Any, Any]:
        self._room -= len(pairs)
        if self._room < 0:
            self.complete = False
            return {}
        table: dict[Any, Any] = {}
        for raw, value in pairs:
            key = self._key(raw)
            if key in table and isinstance(raw, Thing):  # two objects that the same words stand for
                key = f"{key} ({len(table)})"
            hidden = module and isinstance(raw, str) and raw in _HIDDEN
            table[key] = self.tree(value) if hidden else self._at(str(key), value)
        return table

    def _at(self, part: str, value: Any) -> Any:
        """The plain form of what stands at a part of the path."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        self._path.append(printable(part if len(part) <= _PART else f"{part[:_PART]}…"))
        try:
            return self.tree(value)
        finally:
            self._path.pop()

    def _key(self, raw: Any) -> Any:
        """A key of a dict: a plain value, or words for it."""
        if raw is None or isinstance(raw, bool | float | str) or (isinstance(raw, int) and -_BIG_KEY < raw < _BIG_KEY):
            return raw
        plain = self._at("key", raw)
        if isinstance(plain, bytes):
            return plain
        if isinstance(plain, tuple) and self._tuple_keys > 0 and all(isinstance(part, _SCALAR) for part in plain):
            self._tuple_keys -= 1
            return plain
        return _as_words(plain)

    def _thing(self, node: Thing) -> Any:
        if node.name.endswith(("core.multiarray._reconstruct", "numpy.ndarray")):
            return self._array(node)
        return Opaque(node.name, self._arguments(node), self._state(node))

    def _arguments(self, node: Thing) -> tuple[Any, ...]:
        arguments = node.arguments if isinstance(node.arguments, tuple) else (node.arguments,)
        return tuple(self._row(arguments)) if arguments else ()

    def _state(self, node: Thing) -> Any:
        """The attributes of an object; of a kind of dict or list also what it holds."""
        plain = self._attributes(node.state)
        if node.pairs is not None:
            table = self._table(node.pairs)
            plain = {**plain, **table} if isinstance(plain, dict) else table
        if node.items is not None:
            row = self._row(node.items)
            plain = {**plain, "items": row} if isinstance(plain, dict) and plain else row
        return plain

    def _attributes(self, state: Any) -> Any:
        if isinstance(state, Pairs):
            return self._table(state, module=True)
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], Pairs) and isinstance(state[0], Pairs | None):
            return {**self._table(state[0] or Pairs(), module=True), **self._table(state[1])}  # those with slots of their own
        return self.tree(state)

    def _array(self, node: Thing) -> Opaque:
        try:
            array = describe(node, self._counted)
        except (TypeError, ValueError, LookupError):
            return Opaque("numpy.ndarray")
        values = self._row(array.values) if array.values is not None else None
        return Opaque("numpy.ndarray", (array.kind, array.shape), values, array.bad.nan, array.bad.inf)

    def _tensor(self, node: Any, dtype: str, shape: tuple[int, ...], offset: int, stride: tuple[int, ...]) -> TensorInfo | Opaque:
        storage = node.storage if isinstance(node, Tensor) else node
        if storage.inside and storage.offset is None:  # written as text: its bytes cannot be had as they are
            return Opaque("torch.Tensor", (dtype, shape))
        name = ".".join(self._path)[:_NAME] or "tensor"
        self._room -= len(name) >> 5
        seen = self._names[name] = self._names.get(name, 0) + 1
        steps = None if _is_contiguous(shape, stride) else stride
        info = TensorInfo(name if seen == 1 else f"{name} ({seen})", dtype, shape, storage.number, offset, steps)
        self.tensors.append(info)
        return info


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the numbers of a tensor lie one after the other; a dimension of one has no stride to speak of."""
    expected = 1
    for length, step in zip(reversed(shape), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= max(length, 1)
    return True


def _sorted(row: list[Any]) -> list[Any]:
    """What was a set, in an order that does not change from one time to the next."""
    return sorted(row) if all(isinstance(value, str) for value in row) else row


def _as_words(plain: Any) -> str:
    if isinstance(plain, Opaque):
        if isinstance(plain.state, dict) and isinstance(plain.state.get("name"), str):  # the keys of some trainers
            return str(plain.state["name"])
        arguments = [str(part)[:100] for part in plain.arguments[:3] if isinstance(part, _SCALAR)]
        return f"{plain.name}({', '.join(arguments)})"
    return f"{plain:#x}" if isinstance(plain, int) else f"a {type(plain).__name__}"


TOO_MUCH = "it is nested too deeply, or refers to itself too often, to be listed in full"


@dataclass(slots=True, kw_only=True)
class Unpickled:
    """What a pickle holds. With a `problem` the tree is what was understood up to there."""

    tree: Any = None
    tensors: list[TensorInfo] = field(default_factory=list)
    storages: list[StorageUse] = field(default_factory=list)  # `TensorInfo.storage` is a place in here
    refused: list[str] = field(default_factory=list)
    needs_code: list[str] = field(default_factory=list)
    problem: str | None = None  # after "the pickle cannot be parsed: "
    cut: bool = False  # the stream ends before its end
    end: int = 0  # offset behind it


def read_pickle(
    stream: IO[bytes],
    *,
    start: int = 0,
    end: int | None = None,
    located: bool = True,
    findings: Findings | None = None,
) -> Unpickled:
    """Read one pickle from `start`, not beyond `end`. Nothing in it is executed, ever.

    `located` says that offsets in the stream are those of the checkpoint's file. Pickles that share `findings` share its limits.
    Raises OSError only.
    """
    findings = Findings() if findings is None else findings
    machine = Machine(Source(stream, start, end, located=located), findings).run()
    unpickled = list_tree(machine.value, findings)
    unpickled.problem, unpickled.cut, unpickled.end = machine.problem or unpickled.problem, machine.cut, machine.source.offset
    return unpickled


def read_old(stream: IO[bytes], size: int) -> tuple[Unpickled, Legacy]:
    """Read a file of the older form, or a bare pickle: what it holds, and where its storages lie."""
    findings = Findings()
    legacy = read_legacy(Source(stream, 0, size), findings, Machine, size=size)
    unpickled = list_tree(legacy.value, findings)
    unpickled.problem, unpickled.cut, unpickled.end = legacy.problem or unpickled.problem, legacy.cut, legacy.end
    return unpickled, legacy


def list_tree(value: Any, findings: Findings) -> Unpickled:
    """The plain tree of what a machine has read."""
    listing = Listing(findings.spent)
    tree = listing.tree(value)
    if listing.getattr_named:
        findings.refuse("builtins.getattr")
    problem = None if listing.complete else TOO_MUCH
    return Unpickled(
        tree=tree,
        tensors=listing.tensors,
        storages=findings.storages,
        refused=list(findings.refused),
        needs_code=_without(findings.needs_code, findings.refused),
        problem=problem,
    )


def _without(names: Iterable[str], others: Iterable[str]) -> list[str]:
    excluded = set(others)
    return [name for name in names if name not in excluded]
