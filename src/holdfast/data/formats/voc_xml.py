"""One annotation file of Pascal VOC, read with expat: line numbers are kept, and every entity declaration is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from holdfast.data.listing import read_bytes
from holdfast.data.samples import Corners

_LARGEST = 64 << 20
_DEEPEST = 64
_SIDES = ("xmin", "ymin", "xmax", "ymax")


class Found(NamedTuple):
    """One `<object>`: its name, its box, the line it begins on; or what is wrong with it."""

    name: str
    box: Corners
    line: int
    wrong: str = ""


class _Reader:
    """Follows the elements of one file; keeps only the texts that matter."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = _refuse
        self.path: list[str] = []
        self.found: list[Found] = []
        self.sizes: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._line = 0
        self._words = ""

    def _start(self, name: str, _: dict[str, str]) -> None:
        self.path.append(name)
        if len(self.path) > _DEEPEST:
            raise ValueError("elements are nested too deep")
        if len(self.path) == 1 and name != "annotation":
            raise ValueError(f"<{name[:40]}> where <annotation> must be")
        if self.path[1:] == ["object"]:
            self._values, self._line = {}, self.parser.CurrentLineNumber
        self._words = ""

    def _text(self, words: str) -> None:
        if len(self._words) < 1000:
            self._words += words

    def _end(self, name: str) -> None:
        inner = self.path[1:]
        self.path.pop()
        if inner[:1] == ["object"]:
            if inner == ["object"]:
                self.found.append(_object(self._values, self._line))
            elif inner == ["object", "name"] or (len(inner) == 3 and inner[1] == "bndbox"):
                self._values[name] = self._words.strip()
        elif inner[:1] == ["size"] and len(inner) == 2:
            self.sizes[name] = self._words.strip()
        self._words = ""


def _refuse(name: str, *_: object) -> None:
    raise ValueError(f"it declares the entity {name[:40]!r}, which no annotation needs; not read")


def _object(values: dict[str, str], line: int) -> Found:
    name = values.get("name", "")[:200]
    try:
        left, top, right, bottom = (float(values[side]) for side in _SIDES)
    except KeyError as error:
        return Found(name, (0, 0, 0, 0), line, f"the object has no {error.args[0]}")
    except ValueError:
        return Found(name, (0, 0, 0, 0), line, "a side of the box is no number")
    box = (left, top, right, bottom)
    wrong = "the object has no name" if not name else "" if math.isfinite(sum(box)) else "a side of the box is not finite"
    return Found(name, box, line, wrong)


def objects_of(path: Path) -> tuple[list[Found], tuple[int, int] | None]:
    """The objects of a file, and the size of the image as it states it; ValueError with the reason where it cannot be read."""
    reader = _Reader()
    try:
        reader.parser.Parse(read_bytes(path, limit=_LARGEST), True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML: {error}") from None
    width, height = (_whole(reader.sizes.get(side)) for side in ("width", "height"))
    return reader.found, (width, height) if width and height else None


def _whole(words: str | None) -> int:
    return int(words) if words and words.isdecimal() and len(words) < 10 else 0
