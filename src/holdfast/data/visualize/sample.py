"""What is drawn: a sample with its names, its findings and a way to draw it; samples of a group are shown side by side."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.data.listing import ALL
from holdfast.data.problem import Problem, Severity
from holdfast.data.visualize.pictures import Tile

# Which samples are drawn: suspicious ones first, then some of each split and class, by a lot that only the seed decides.

_TO_KNOW = 4  # findings that are only to be known of get at most one of so many places


class Suspects(NamedTuple):
    """The samples of one finding; those that belong together (a pair of equals) are one unit."""

    code: str
    severity: Severity
    units: list[tuple[Hashable, ...]]


def lot(seed: int, *parts: object) -> bytes:
    """A number drawn for something: the same for the same seed, whatever else is there."""
    return hashlib.blake2b("\0".join(map(str, (seed, *parts))).encode("utf-8", errors="surrogatepass"), digest_size=8).digest()


def chosen(
    suspects: Sequence[Suspects],
    rest: Mapping[tuple[str, ...], Sequence[Hashable]],
    wanted: int,
    seed: int,
    *,
    only_suspects: bool = False,
) -> list[tuple[Hashable, ...]]:
    """Units to draw, in order. `rest` are the samples of each split and class, already in the order of their lots.

    Findings take turns, so that a frequent one leaves room for the others; what they got is shown together.
    """
    serious = [place for place, suspect in enumerate(suspects) if only_suspects or suspect.severity != "info"]
    to_know = [place for place in range(len(suspects)) if place not in serious]
    units = _suspicious(suspects, serious, wanted, seed, set())
    drawn = {sample for _, unit in units for sample in unit}
    room = min(wanted - _tiles(units), wanted // _TO_KNOW)
    units += _suspicious(suspects, to_know, room, seed, drawn)
    suspicious = [unit for _, unit in sorted(units, key=lambda pair: pair[0])]
    return suspicious if only_suspects else [*suspicious, *_spread(rest, drawn, wanted - _tiles(units))]


def _tiles(units: list[tuple[int, tuple[Hashable, ...]]]) -> int:
    return sum(len(unit) for _, unit in units)


def _suspicious(
    suspects: Sequence[Suspects], places: list[int], room: int, seed: int, drawn: set[Hashable]
) -> list[tuple[int, tuple[Hashable, ...]]]:
    """What findings get in turns. A pair is drawn whole, even where one of the two was drawn for another finding."""
    units: list[tuple[int, tuple[Hashable, ...]]] = []
    queues = [
        [(place, unit) for unit in sorted(suspects[place].units, key=lambda unit: lot(seed, suspects[place].code, *unit))]
        for place in places
    ]
    for place, unit in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*queues))):
        if not drawn.issuperset(unit) and len(unit) <= room:
            drawn.update(unit)
            units.append((place, unit))
            room -= len(unit)
    return units


def _spread(
    rest: Mapping[tuple[str, ...], Sequence[Hashable]], taken: Iterable[Hashable], wanted: int
) -> Iterator[tuple[Hashable, ...]]:
    """One of each split and class in turn, until there are enough."""
    done = set(taken)
    queues = [iter(rest[bucket]) for bucket in sorted(rest)]
    while queues and wanted > 0:
        for queue in list(queues):
            sample = next((sample for sample in queue if sample not in done), None)
            if sample is None:
                queues.remove(queue)
            elif wanted > 0:
                done.add(sample)
                wanted -= 1
                yield (sample,)


class Mark(NamedTuple):
    """Why a sample is suspicious: the finding, and what it says of this very sample."""

    code: str
    severity: Severity
    words: str


@dataclass(slots=True)
class Sample:
    """One sample on the page; `draw` makes its tile."""

    name: str
    split: str
    draw: Callable[[], Tile]
    classes: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()  # words and their colour, where that means something
    note: str = ""
    marks: list[Mark] = field(default_factory=list)

    @property
    def about(self) -> str:
        """Its split, where there are several, and what else is to be said."""
        return " · ".join(word for word in (self.split if self.split != ALL else "", self.note) if word)


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
        return not self.classes or any(class_ in self.classes for class_ in classes)

    def wants(self, problem: Problem) -> bool:
        """Whether samples with this problem are wanted."""
        return not self.findings or problem.code in self.findings


def kind_words(problem: Problem) -> str:
    """What a problem is, without how often it was met."""
    start, colon, count = problem.words.rpartition(": ")
    return start if colon and count.replace(",", "").isdigit() else problem.words
