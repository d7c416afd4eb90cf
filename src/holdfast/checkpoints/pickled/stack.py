"""The stack of a pickle machine: marks, memo, and the containers that are put together on it.

Lists, tuples, numbers and text are Python's own; `Named`, `Thing`, `Tensor` and the like stand for the rest, described instead
of made. None of them is ever compared, hashed or printed as a whole: they may hold each other in circles. What a machine is to
those that it asks (`known`, `legacy`) stands here too: they cannot import the one that imports them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from holdfast.checkpoints.names import Use
from holdfast.checkpoints.pickled.opcodes import NotFollowed, Source


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A class or function that the stream names; it is never looked up."""

    module: str
    name: str

    @property
    def full(self) -> str:
        """The whole name, joined by a dot."""
        return f"{self.module}.{self.name}"


class Thing:
    """An object of a class that is not plain, or the result of a call that was not made."""

    __slots__ = ("arguments", "items", "name", "pairs", "state")

    def __init__(self, name: str, arguments: Any = ()) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None
        self.items: list[Any] | None = None  # what was appended to it
        self.pairs: Pairs | None = None  # what was set in it by key


class Pairs(list[Any]):
    """A dict, as a list of (key, value): nothing is hashed while reading."""

    __slots__ = ()


class Bag(list[Any]):
    """A set, as a list."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class StorageUse:
    """A storage as the stream speaks of it. Where its bytes lie is the format's business, unless that is in the pickle itself."""

    number: int  # place in the list of storages
    key: str  # "0", or an address of the process that wrote it
    dtype: str
    count: int  # elements
    offset: int | None = None  # in the file, for one that lies inside the pickle
    size: int | None = None
    inside: bool = False  # it lies inside the pickle; with no offset its bytes cannot be had as they are


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor: which part of a storage it is."""

    storage: StorageUse
    dtype: str
    shape: tuple[int, ...]
    offset: int
    stride: tuple[int, ...]


CONTAINER, MEMO = 4, 2  # units of work, by the memory they take; everything else is one
_ROOM, _EACH = 8 << 20, 16  # bytes of text, bytes and copies that may be held, and how many more for each unit of work


class Findings:
    """What was found out while reading, shared by a stream and those inside it."""

    def __init__(self) -> None:
        self.storages: list[StorageUse] = []
        self.refused: dict[str, None] = {}  # in the order in which they were met
        self.needs_code: dict[str, None] = {}
        self.spent = 0  # units of work
        self._held = self._copied = 0  # bytes

    def keep(self, size: int) -> bool:
        """Whether so many bytes more may be held; if so, they are counted. A long stream may hold more than a short one."""
        fits = self._held + size <= _ROOM + _EACH * self.spent
        self._held += size if fits else 0
        return fits

    def copy(self, size: int) -> None:
        """Count a copy of what the stream may name again and again. Raises NotFollowed when they outgrow the stream."""
        self._copied += size
        if self._copied > _ROOM + _EACH * self.spent:
            raise NotFollowed("it copies the same values again and again, until they fill the memory")

    def refuse(self, what: str) -> None:
        """Tell what the stream wants that no checkpoint needs."""
        if len(self.refused) < 1000:
            self.refused.setdefault(ascii(what)[1:-1][:200])  # letters of other scripts may look like ours


class Stack(ABC):
    """The instructions that need nothing but the stack. Each takes the argument of its instruction."""

    def __init__(self, source: Source, findings: Findings, *, depth: int = 0) -> None:
        self.source, self.findings, self.depth = source, findings, depth  # depth: a stream in a stream
        self.problem: str | None = None
        self.cut = False  # the stream ends before its end
        self.keys: dict[str, StorageUse] = {}
        self.value: Any = None
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    @abstractmethod
    def run(self) -> Stack:
        """Read up to the end of the stream, or as far as it can be followed."""

    @abstractmethod
    def call(self, what: Any, arguments: Any, use: Use = "called") -> Any:
        """What a call would give, described."""

    @abstractmethod
    def judge_call(self, what: Any, use: Use = "called") -> None:
        """Judge something that is called, or of which an object is made."""

    def begun(self) -> Any:
        """The outermost container of a stream that broke off, with what was waiting to be put into it and into those inside."""
        levels = [*self._marks, self._stack]
        for outer, waiting in reversed(list(pairwise(levels))):
            into = outer[-1] if outer else None
            done = next((at for at, value in enumerate(waiting) if isinstance(value, Named)), len(waiting))
            if isinstance(into, Pairs | Thing):
                _put_pairs(into, paired(waiting[: done - done % 2]))
            elif isinstance(into, list):
                into.extend(waiting[:done])
        return _folded(levels[0])

    def _mark(self, _: None) -> None:
        self.findings.spent += CONTAINER
        self._marks.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        taken, self._stack = self._stack, self._marks.pop()
        return taken

    def _stop(self, _: None) -> bool:
        self.value = self._stack.pop()
        return True

    def _pop(self, _: None) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()

    def _pop_mark(self, _: None) -> None:
        self._since_mark()

    def _dup(self, _: None) -> None:
        self._stack.append(self._stack[-1])

    def _proto(self, version: int) -> None:
        if version > 5:
            raise NotFollowed(f"unknown pickle protocol {version}")

    def _put(self, place: int) -> None:
        self.findings.spent += MEMO
        self._memo[place] = self._stack[-1]

    def _memoize(self, _: None) -> None:
        self._put(len(self._memo))

    def _get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def _buffer(self, _: None) -> None:
        self._stack.append(Thing("a buffer outside the file"))

    def _push(self, container: Any) -> None:
        self.findings.spent += CONTAINER
        self._stack.append(container)

    def _last(self, count: int) -> None:
        self.findings.spent += CONTAINER
        items = tuple(self._stack[-count:])
        if len(items) < count:
            raise IndexError
        self._stack[-count:] = [items]

    def _tuple(self, _: None) -> None:
        self._push(tuple(self._since_mark()))

    def _empty_tuple(self, _: None) -> None:
        self._stack.append(())

    def _list(self, _: None) -> None:
        self._push(self._since_mark())

    def _empty_list(self, _: None) -> None:
        self._push([])

    def _dict(self, _: None) -> None:
        self._push(paired(self._since_mark()))

    def _empty_dict(self, _: None) -> None:
        self._push(Pairs())

    def _empty_set(self, _: None) -> None:
        self._push(Bag())

    def _frozenset(self, _: None) -> None:
        self._push(Bag(self._since_mark()))

    def _append(self, _: None) -> None:
        self._extend([self._stack.pop()])

    def _appends(self, _: None) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        into = self._stack[-1]
        if isinstance(into, Thing):
            into.items = [] if into.items is None else into.items
            into.items.extend(items)
        elif isinstance(into, list) and not isinstance(into, Pairs):
            into.extend(items)
        else:
            self._no_container(into)

    def _setitem(self, _: None) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _setitems(self, _: None) -> None:
        self._set(self._since_mark())

    def _set(self, items: list[Any]) -> None:
        into, pairs = self._stack[-1], paired(items)
        self.findings.spent += CONTAINER * len(pairs)
        if isinstance(into, Pairs | Thing):
            _put_pairs(into, pairs)
        else:
            self._no_container(into)

    def _no_container(self, into: Any) -> None:
        """A class or function is to be changed itself, instead of an object of it; or nothing that can be filled."""
        if not isinstance(into, Named):
            raise NotFollowed("it puts something into what cannot hold it")
        self.findings.refuse(f"a change of {into.full}")


def paired(items: Sequence[Any]) -> Pairs:
    """Keys and values that alternate, as pairs."""
    return Pairs(zip(items[::2], items[1::2], strict=False))


def printable(text: str) -> str:
    """Words from a file, without what a terminal would obey."""
    return text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode("ascii")


def _put_pairs(into: Pairs | Thing, pairs: Pairs) -> None:
    if isinstance(into, Thing):
        into.pairs = Pairs() if into.pairs is None else into.pairs
        into.pairs.extend(pairs)
    else:
        into.extend(pairs)


def _folded(open_ones: list[Any]) -> Any:
    """Containers of one item are filled without a mark: [outer, key, inner, key, innermost], each put into the one before."""
    while len(open_ones) > 2 and isinstance(open_ones[-3], Pairs | Thing) and not isinstance(open_ones[-1], Named):
        *open_ones, key, value = open_ones
        _put_pairs(open_ones[-1], Pairs([(key, value)]))
    first = next(iter(open_ones), None)
    return first if isinstance(first, list | Thing) else None
