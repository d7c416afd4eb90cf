"""Classes that nobody is of, that nearly nobody is of, or that are the only one; images with other channels than the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.problem import Kind, Problem, problem

UNUSED = Kind(
    "class-unused", "warning", "classes without a sample: {count}", "label some, or remove them from the list of classes"
)
IMBALANCE = Kind(
    "class-imbalance", "warning", "classes far rarer than the most frequent one: {count}",
    "gather more of them, weight the loss or the sampler, or judge by metrics per class",
)  # fmt: skip
ONE_CLASS = Kind(
    "one-class", "critical", "all samples are of one class", "there is nothing to learn: add the others, or look at the labels"
)
KINDS = (UNUSED, IMBALANCE, ONE_CLASS)

_RARER = 20  # times: of digits, a class so rare is recognised in one case of five (benchmarks/data_thresholds.py)
_RARER_OBJECTS = 50  # times, where an image has many of them: BCCD, which trains well, has 11 red cells to a platelet
_ENOUGH = 50  # samples of the most frequent class, below which a ratio is chance


def class_problems(counts: Mapping[Any, int], names: Mapping[Any, str], where: str, *, classification: bool) -> Iterator[Problem]:
    """Judge how many samples or objects each class has. Classes that are listed but were not met count as zero."""
    unused = [name for key, name in names.items() if not counts.get(key)]
    met = {key: count for key, count in counts.items() if count and (not names or key in names)}
    if unused and met:
        yield problem(UNUSED, count=len(unused), files=[where], example=f"{where}: {', '.join(unused[:5])}", classes=unused)
    if classification and len(met) == 1 and sum(met.values()) >= 10:
        (key,) = met
        yield problem(ONE_CLASS, count=1, files=[where], example=f"{where}: all {met[key]:,} are {names.get(key, key)}")
    most, rarer = max(met.values(), default=0), _RARER if classification else _RARER_OBJECTS
    rare = sorted((count, str(names.get(key, key))) for key, count in met.items() if count * rarer < most)
    if rare and most >= _ENOUGH:
        most_name = next(str(names.get(key, key)) for key, count in met.items() if count == most)
        example = f"{where}: {rare[0][1]} {rare[0][0]:,} times, {most_name} {most:,} times"
        yield problem(IMBALANCE, count=len(rare), files=[where], example=example, counts={name: count for count, name in rare})
