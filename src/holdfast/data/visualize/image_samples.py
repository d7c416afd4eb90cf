"""Images of a set, chosen and ready to be drawn."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial

from holdfast.data.cache import Cache
from holdfast.data.checks.masks import kind_of_masks
from holdfast.data.formats.detect import Settings
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.problem import Fault, Problem, Report
from holdfast.data.samples import ClassKey, Facts, ImageSet, MaskFacts
from holdfast.data.scan import Progress, scan
from holdfast.data.visualize.image_drawing import ImageDrawing
from holdfast.data.visualize.pictures import colour_of, hexed, words_instead
from holdfast.data.visualize.sample import Group, Mark, Sample, Suspects, Wish, chosen, kind_words, lot

_TOGETHER = 4  # equal samples that are shown side by side
_MOST_DETAILS = 2
_IGNORED = 255


def image_groups(
    data: ImageSet, cache: Cache, settings: Settings, wish: Wish, report: Report, progress: Progress | None
) -> list[Group]:
    """The samples of image data to draw. The scan is that of validation, so what it remembered is not looked at again."""
    samples = scan(data, cache, jobs=settings.jobs, quick=settings.quick, masks=not settings.quick, progress=progress)
    facts = [Facts(seen.width, seen.height, kinds=seen.kinds, masks=seen.masks, faults=seen.faults) for _, seen in samples]
    return _Choice(data, facts, report, wish).groups()


class _Choice:
    """What is drawn of a set, and how. A sample is its number in the set, or the file of a label that has no image."""

    def __init__(self, data: ImageSet, facts: list[Facts], report: Report, wish: Wish) -> None:
        self._data, self._facts, self._report, self._wish = data, facts, report, wish
        masks: dict[str, list[MaskFacts]] = {}
        for mask in (mask for fact in facts for mask in fact.masks):
            masks.setdefault(folder_of_masks(mask.file), []).append(mask)
        self._kinds = {folder: kind_of_masks(some, folder) for folder, some in masks.items()}
        met = dict.fromkeys(kind for number in range(len(facts)) for kind, _ in self._classes(number))
        keys = {**dict.fromkeys(data.classes), **dict.fromkeys(sorted(met, key=str))}
        self._places = {key: place for place, key in enumerate(keys)}
        self._drawing = ImageDrawing(data, self._places, self._kinds)
        self._marks: dict[Hashable, list[Mark]] = {}
        self._of_file: dict[str, list[int]] = {}
        for number, entry in enumerate(data.entries):
            for file in dict.fromkeys((entry.image, entry.own_label, *entry.masks)):
                self._of_file.setdefault(file or "", []).append(number)
        self._faults: dict[tuple[str, str], list[Fault]] = {}
        for fault in (*data.faults, *(fault for fact in facts for fault in fact.faults)):
            self._faults.setdefault((fault.code, fault.file), []).append(fault)

    def groups(self) -> list[Group]:
        """The samples, those that belong together in one group."""
        wanted = []
        for problem in self._report.problems:
            units = [unit for unit in self._units(problem) if self._of_class(unit)]
            if units and self._wish.wants(problem):
                wanted.append(Suspects(problem.code, problem.severity, units))
        only = bool(self._wish.findings) and bool(wanted)
        units = chosen(wanted, self._rest(), self._wish.samples, self._wish.seed, only_suspects=only)
        return [[self._sample(number) for number in unit] for unit in units]

    def _units(self, problem: Problem) -> list[tuple[Hashable, ...]]:
        """The samples of a problem, each with its mark; none where the problem is one of the set as a whole."""
        pairs = problem.evidence.get("pairs")
        if pairs:
            return list(self._pairs(problem, pairs))
        of_all = {entry.label for entry in self._data.entries if entry.spans}  # files with the labels of many images
        units: dict[tuple[Hashable, ...], None] = {}
        for file in problem.files:
            mark = Mark(problem.code, problem.severity, self._words(problem, file))
            alone: list[Hashable] = [file] if problem.code == "label-orphaned" and file not in of_all else []
            for number in self._of_file.get(file) or alone:
                units[number,] = None
                self._mark(number, mark)
        return list(units)

    def _mark(self, which: Hashable, mark: Mark) -> None:
        marks = self._marks.setdefault(which, [])
        if mark not in marks:
            marks.append(mark)

    def _words(self, problem: Problem, file: str) -> str:
        faults = self._faults.get((problem.code, file), ())
        details = [f"line {fault.line}: {fault.detail}" if fault.line and fault.detail else fault.detail for fault in faults]
        more = f" (and {len(details) - _MOST_DETAILS:,} more)" if len(details) > _MOST_DETAILS else ""
        return "; ".join(details[:_MOST_DETAILS]) + more if any(details) else kind_words(problem)

    def _pairs(self, problem: Problem, pairs: Sequence[Sequence[str]]) -> Iterator[tuple[Hashable, ...]]:
        """Pairs with the same first one are shown together."""
        like = "the same as" if problem.severity == "critical" or problem.code == "duplicate-sample" else "looks like"
        clusters: dict[str, list[str]] = {}
        for first, second in pairs:
            clusters.setdefault(first, [first]).append(second)
        for files in clusters.values():
            indices = list(dict.fromkeys(number for file in files for number in self._of_file.get(file, ())))[:_TOGETHER]
            for number in indices:
                entry = self._data.entries[indices[0] if number != indices[0] else indices[-1]]
                self._mark(number, Mark(problem.code, problem.severity, f"{like} {entry.image} ({entry.split})"))
            if indices:
                yield tuple(indices)

    def _of_class(self, unit: tuple[Hashable, ...]) -> bool:
        return not self._wish.classes or any(
            self._wish.wants_class(self._names(number)) for number in unit if isinstance(number, int)
        )

    def _rest(self) -> dict[tuple[str, ...], list[Hashable]]:
        """All images by split and class, in the order of their lots."""
        buckets: dict[tuple[str, ...], list[Hashable]] = {}
        entries = self._data.entries
        for number in sorted(
            range(len(entries)), key=lambda place: lot(self._wish.seed, entries[place].split, entries[place].image)
        ):
            names = self._names(number)
            if self._wish.wants_class(names):
                for name in names or ("",):
                    buckets.setdefault((name, entries[number].split), []).append(number)
        return buckets

    def _classes(self, number: int) -> list[tuple[ClassKey, int]]:
        """Classes with the number of their objects; those of a mask of classes have none."""
        facts = self._facts[number]
        classes = list(facts.classes.items())
        for mask in facts.masks:
            if self._kinds.get(folder_of_masks(mask.file)) == "classes":
                classes += [(value, 0) for value in mask.values if value not in (0, _IGNORED)]
        return classes

    def _names(self, number: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._data.class_name(key) for key, _ in self._classes(number)))

    def _sample(self, which: Hashable) -> Sample:
        marks = self._marks.get(which, [])
        if isinstance(which, str):  # nothing to draw, but it is reported
            return Sample(which, "", partial(words_instead, "a label without an image", which), marks=marks)
        assert isinstance(which, int)
        entry, facts = self._data.entries[which], self._facts[which]
        legend = []
        for key, count in self._classes(which):
            name = self._data.class_name(key)
            colour = hexed(colour_of(self._places[key])) if self._data.format != "image-folder" else ""
            legend.append((f"{name}: {count:,}" if count and self._data.has_boxes else name, colour))
        size = f"{facts.width} × {facts.height}" if facts.width else ""
        draw = partial(self._drawing.tile, entry, facts.faults)
        return Sample(entry.image, entry.split, draw, self._names(which), tuple(legend), size, marks)
