"""Images of a set, chosen and ready to be drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from holdfast.data.cache import Cache
from holdfast.data.checks.masks import kind_of_masks
from holdfast.data.formats.detect import Settings
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.problem import Fault, Problem, Report
from holdfast.data.samples import ClassKey, Entry, Facts, ImageSet, MaskFacts
from holdfast.data.scan import Progress, scan
from holdfast.data.visualize.image_drawing import ImageDrawing
from holdfast.data.visualize.pictures import colour_of, hexed, words_instead
from holdfast.data.visualize.sample import Group, Mark, Sample, Suspects, Wish, chosen, kind_words, lot

# Which images a report is suspicious of, and what it says of each.

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


_IGNORED = 255


def image_groups(
    data: ImageSet, cache: Cache, settings: Settings, wish: Wish, report: Report, progress: Progress | None
) -> list[Group]:
    """The samples of image data to draw. The scan is that of validation, so what it remembered is not looked at again."""
    samples = scan(data, cache, jobs=settings.jobs, quick=settings.quick, masks=not settings.quick, progress=progress)
    with contextlib.closing(samples):
        known = [_short(facts) for _, facts in samples]
    return _Choice(data, known, report, wish).groups()


def _short(facts: Facts) -> Facts:
    """Facts without what is not needed here: there may be millions."""
    return Facts(facts.width, facts.height, kinds=facts.kinds, masks=facts.masks, faults=facts.faults)


class _Choice:
    """What is drawn of a set, and how."""

    def __init__(self, data: ImageSet, known: list[Facts], report: Report, wish: Wish) -> None:
        self._data, self._known, self._report, self._wish = data, known, report, wish
        self._kinds = _kinds_of_masks(known)
        met = dict.fromkeys(kind for one in range(len(known)) for kind, _ in self._classes(one))
        keys = {**dict.fromkeys(data.classes), **dict.fromkeys(sorted(met, key=str))}
        self._places = {key: place for place, key in enumerate(keys)}
        self._suspects = ImageSuspects(data, [*data.faults, *(fault for one in known for fault in one.faults)])
        self._drawing = ImageDrawing(data, self._places, self._kinds)

    def groups(self) -> list[Group]:
        """The samples, those that belong together in one group."""
        found = [self._suspects.of(problem) for problem in self._report.problems]
        wanted = [
            Suspects(one.code, one.severity, units)
            for one, problem in zip(found, self._report.problems, strict=True)
            if self._wish.wants(problem) and (units := [unit for unit in one.units if self._of_class(unit)])
        ]
        only = bool(self._wish.findings) and bool(wanted)
        units = chosen(wanted, self._rest(), self._wish.samples, self._wish.seed, only_suspects=only)
        return [[self._sample(one) if isinstance(one, int) else self._stranger(one) for one in unit] for unit in units]

    def _of_class(self, unit: tuple[Hashable, ...]) -> bool:
        return not self._wish.classes or any(self._wish.wants_class(self._names(one)) for one in unit if isinstance(one, int))

    def _rest(self) -> dict[tuple[str, ...], list[Hashable]]:
        """All images by split and class, in the order of their lots."""
        buckets: dict[tuple[str, ...], list[Hashable]] = {}
        entries = self._data.entries
        for number in sorted(range(len(entries)), key=lambda one: lot(self._wish.seed, entries[one].split, entries[one].image)):
            names = self._names(number)
            if self._wish.wants_class(names):
                for name in names or ("",):
                    buckets.setdefault((name, entries[number].split), []).append(number)
        return buckets

    def _classes(self, number: int) -> list[tuple[ClassKey, int]]:
        """Classes with the number of their objects; those of a mask of classes have none."""
        one = self._known[number]
        found = list(one.classes.items())
        for mask in one.masks:
            if self._kinds.get(folder_of_masks(mask.file)) == "classes":
                found += [(value, 0) for value in mask.values if value not in (0, _IGNORED)]
        return found

    def _name(self, key: ClassKey) -> str:
        return str(self._data.classes.get(key, key))

    def _names(self, number: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._name(key) for key, _ in self._classes(number)))

    def _sample(self, number: int) -> Sample:
        entry, known = self._data.entries[number], self._known[number]
        legend = tuple(
            (f"{self._name(key)}: {count:,}" if count and self._data.has_boxes else self._name(key), self._colour(key))
            for key, count in self._classes(number)
        )
        size = f"{known.width} × {known.height}" if known.width else ""
        draw = partial(self._drawing.draw, entry, known.faults)
        marks = self._suspects.of_entry.get(number, [])
        return Sample(entry.image, entry.split, draw, self._names(number), legend, size, marks)

    def _colour(self, key: ClassKey) -> str:
        return hexed(colour_of(self._places[key])) if self._data.format != "image-folder" else ""

    def _stranger(self, file: Hashable) -> Sample:
        """A label without an image: there is nothing to draw, but it is told."""
        assert isinstance(file, str)
        marks = self._suspects.of_file[file]
        return Sample(file, "", partial(words_instead, "a label without an image", file), marks=marks)


def _kinds_of_masks(known: list[Facts]) -> dict[str, str]:
    folders: dict[str, list[MaskFacts]] = {}
    for one in known:
        for mask in one.masks:
            folders.setdefault(folder_of_masks(mask.file), []).append(mask)
    return {folder: kind_of_masks(some, folder) for folder, some in folders.items()}
