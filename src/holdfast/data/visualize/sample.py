"""What is drawn: a sample with its names, its findings and a way to draw it; samples of a group are shown side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from holdfast.data.formats.splits import ALL
from holdfast.data.problem import Problem, Severity

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int]
PICTURE: Size = (320, 250)  # pixels of a tile's picture, at most


class Mark(NamedTuple):
    """Why a sample is suspicious: the finding, and what it says of this very sample."""

    code: str
    severity: Severity
    words: str


@dataclass(slots=True)
class Sample:
    """One tile. `draw` makes a picture of at most the size it is given; `tokens` is text for the page instead of a picture."""

    name: str
    split: str
    draw: Callable[[Size], Image.Image]
    classes: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()  # words and their colour, where that means something
    said: str = ""
    marks: list[Mark] = field(default_factory=list)
    tokens: tuple[tuple[str, str], ...] = ()  # text, and the kind of token: "", "known", "unknown", "shared"

    @property
    def about(self) -> str:
        """Its split, where there are several, and what else is to be said."""
        return " · ".join(word for word in (self.split if self.split != ALL else "", self.said) if word)


Group = list[Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user wants to see. No classes or findings: all of them."""

    samples: int = 50
    seed: int = 0
    classes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    def wants_class(self, classes: tuple[str, ...]) -> bool:
        """Whether a sample with these classes is wanted."""
        return not self.classes or any(one in self.classes for one in classes)

    def wants(self, problem: Problem) -> bool:
        """Whether samples with this problem are wanted."""
        return not self.findings or problem.code in self.findings


def kind_words(problem: Problem) -> str:
    """What a problem is, without how often it was met."""
    start, colon, count = problem.words.rpartition(": ")
    return start if colon and count.replace(",", "").isdigit() else problem.words
