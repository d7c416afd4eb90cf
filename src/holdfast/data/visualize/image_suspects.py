"""Which images a report is suspicious of, and what it says of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from holdfast.data.problem import Fault, Problem
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.visualize.choose import Suspects
from holdfast.data.visualize.sample import Mark, kind_words

_TOGETHER = 4  # equal samples that are shown side by side
_EXACT = frozenset({"duplicate-sample"})
_TOLD = 2
_ORPHANED = "label-orphaned"


class ImageSuspects:
    """Entries by the files that belong to them, and what was found in each file."""

    def __init__(self, data: ImageSet, faults: Iterable[Fault]) -> None:
        self._entries = data.entries
        self._of_file: dict[str, list[int]] = {}
        self._of_all = {entry.label for entry in data.entries if entry.spans}  # files with the labels of many images
        self.of_entry: dict[int, list[Mark]] = {}
        self.of_file: dict[str, list[Mark]] = {}  # labels without an image
        for number, entry in enumerate(data.entries):
            for file in files_of(entry):
                self._of_file.setdefault(file, []).append(number)
        self._faults: dict[tuple[str, str], list[Fault]] = {}
        for fault in faults:
            self._faults.setdefault((fault.code, fault.file), []).append(fault)

    def of(self, problem: Problem) -> Suspects:
        """The samples of a problem, each with its mark; none where the problem is one of the set as a whole."""
        pairs = problem.numbers.get("pairs")
        if pairs:
            return Suspects(problem.code, problem.severity, list(self._pairs(problem, pairs)))
        units: list[tuple[Hashable, ...]] = []
        for file in problem.files:
            mark = Mark(problem.code, problem.severity, self._words(problem, file))
            for number in self._of_file.get(file, ()):
                units.append((number,))
                self._mark(number, mark)
            if problem.code == _ORPHANED and file not in self._of_file and file not in self._of_all:
                units.append((file,))
                self.of_file.setdefault(file, []).append(mark)
        return Suspects(problem.code, problem.severity, list(dict.fromkeys(units)))

    def _mark(self, number: int, mark: Mark) -> None:
        marks = self.of_entry.setdefault(number, [])
        if mark not in marks:
            marks.append(mark)

    def _words(self, problem: Problem, file: str) -> str:
        said = [_detail(fault) for fault in self._faults.get((problem.code, file), ())]
        more = f" (and {len(said) - _TOLD:,} more)" if len(said) > _TOLD else ""
        return "; ".join(said[:_TOLD]) + more if any(said) else kind_words(problem)

    def _pairs(self, problem: Problem, pairs: Sequence[Sequence[str]]) -> Iterator[tuple[Hashable, ...]]:
        like = "the same as" if problem.severity == "critical" or problem.code in _EXACT else "looks like"
        for files in _clusters(pairs).values():
            numbers = list(dict.fromkeys(number for file in files for number in self._of_file.get(file, ())))[:_TOGETHER]
            for number in numbers:
                other = numbers[0] if number != numbers[0] else numbers[-1]
                entry = self._entries[other]
                self._mark(number, Mark(problem.code, problem.severity, f"{like} {entry.image} ({entry.split})"))
            if numbers:
                yield tuple(numbers)


def files_of(entry: Entry) -> list[str]:
    """The files that belong to this sample alone."""
    own = [entry.own_label] if entry.own_label else []
    return list(dict.fromkeys((entry.image, *own, *entry.masks)))


def _detail(fault: Fault) -> str:
    return f"line {fault.line}: {fault.detail}" if fault.line and fault.detail else fault.detail


def _clusters(pairs: Sequence[Sequence[str]]) -> Mapping[str, list[str]]:
    """Pairs with the same first one are shown together."""
    found: dict[str, list[str]] = {}
    for first, second in pairs:
        found.setdefault(first, [first]).append(second)
    return found
