"""What a pickle is made of while it is being read: names, and things that were described instead of made.

Lists, tuples, numbers and text are Python's own. The kinds here stand for the rest. None of them is ever compared, hashed or
printed as a whole: they may hold each other in circles, or be nested a million deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
class View:
    """A part of a storage that was saved as one of its own, as torch did before 0.4."""

    storage: StorageUse
    offset: int  # elements


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor: which part of a storage it is."""

    storage: StorageUse
    dtype: str
    shape: tuple[int, ...]
    offset: int
    stride: tuple[int, ...]


class CutShort(Exception):
    """The stream ends inside an instruction."""


class NotFollowed(Exception):
    """The stream does something that cannot be followed; the text says what."""
