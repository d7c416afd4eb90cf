"""Classes that nobody is of, that nearly nobody is of, or that are the only one; images with other channels than the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.problem import Problem, problem
from holdfast.data.stats.figures import Spread

# Train and validation data with other statistics (they were prepared differently), or other shares of classes.
# Justified on BCCD and the nuclei: between their splits means differ by at most 0.3 deviations, and deviations by less than 1.3
# times. A swap of two colour channels moves BCCD's by 1.7; a missing division by 255 moves anything by hundreds.


_SHIFT = 1.0  # deviations between two means
_SPREAD = 2.5  # times one deviation is the other
_SURE = 6.0  # standard errors: below, it may be chance
_FEWEST = 20
_MOVED = 0.25  # of all samples that would have to change their class for the shares to be the same


def statistics_problems(splits: Mapping[str, Mapping[str, Spread]], files: Mapping[str, list[str]]) -> Iterator[Problem]:
    """Compare every split with the first one; channels or columns are named."""
    names = list(splits)
    differences = [
        (split, column, difference)
        for split in names[1:]
        for column, spread in splits[split].items()
        if column in splits[names[0]] and (difference := _difference(splits[names[0]][column], spread))
    ]
    if differences:
        split, column, difference = differences[0]
        where = sorted({file for split, _, _ in differences for file in files.get(split, [split])})
        columns = sorted({column for _, column, _ in differences})
        yield problem(
            "preprocessing-mismatch",
            count=len(columns),
            files=where,
            example=f"{column}: {difference.format(names[0], split)}",
            columns=columns,
        )


def _difference(spread: Spread, other: Spread) -> str:
    """How two spreads differ, with places for the names of their splits; empty where they do not, or it may be chance."""
    if min(spread.number, other.number) < _FEWEST or not all(map(math.isfinite, (*spread, *other))):
        return ""
    deviation = math.sqrt((spread.deviation**2 + other.deviation**2) / 2)
    error = math.sqrt(spread.deviation**2 / spread.number + other.deviation**2 / other.number)
    shift = abs(spread.mean - other.mean)
    if shift > _SHIFT * deviation and shift > _SURE * error and shift > 1e-6 * abs(spread.mean):
        return f"mean {spread.mean:.4g} in {{}} and {other.mean:.4g} in {{}}"
    small, large = sorted((spread.deviation, other.deviation))
    sure = math.sqrt(2 / min(spread.number, other.number)) * _SURE  # of a ratio of deviations
    if small > 0 and large > _SPREAD * small * (1 + sure) and large > 1e-6 * abs(spread.mean):
        return f"standard deviation {spread.deviation:.4g} in {{}} and {other.deviation:.4g} in {{}}"
    return ""


def share_problems(splits: Mapping[str, Mapping[Any, int]], names: Mapping[Any, str]) -> Iterator[Problem]:
    """Compare the shares of classes of every split with those of the first one."""
    order = list(splits)
    differences = []
    for split in order[1:]:
        difference = _moved(splits[order[0]], splits[split], names)
        if difference:
            differences.append((split, difference.format(order[0], split)))
    if differences:
        yield problem(
            "split-classes-differ",
            count=len(differences),
            files=[split for split, _ in differences],
            example=f"{differences[0][0]}: {differences[0][1]}",
        )


def _moved(before: Mapping[Any, int], other: Mapping[Any, int], names: Mapping[Any, str]) -> str:
    total, others = sum(before.values()), sum(other.values())
    if min(total, others) < _FEWEST:
        return ""
    keys = {**before, **other}
    shares = {key: (before.get(key, 0) / total, other.get(key, 0) / others) for key in keys}
    moved = sum(abs(mine - theirs) for mine, theirs in shares.values()) / 2
    both = ((mine * total + theirs * others) / (total + others) for mine, theirs in shares.values())
    chance = sum(math.sqrt(share * (1 - share) * (1 / total + 1 / others)) for share in both) / 2
    if moved < _MOVED + 3 * chance:
        return ""
    key = max(shares, key=lambda class_: abs(shares[class_][0] - shares[class_][1]))
    return f"{names.get(key, key)} is {shares[key][0]:.0%} of {{}} and {shares[key][1]:.0%} of {{}}"


_RARER = 20  # times: of digits, a class so rare is recognised in one case of five (benchmarks/data_thresholds.py)
_RARER_OBJECTS = 50  # times, where an image has many of them: BCCD, which trains well, has 11 red cells to a platelet
_ENOUGH = 50  # samples of the most frequent class, below which a ratio is chance


def class_problems(counts: Mapping[Any, int], names: Mapping[Any, str], where: str, *, classification: bool) -> Iterator[Problem]:
    """Judge how many samples or objects each class has. Classes that are listed but were not met count as zero."""
    unused = [name for key, name in names.items() if not counts.get(key)]
    met = {key: count for key, count in counts.items() if count and (not names or key in names)}
    if unused and met:
        yield problem(
            "class-unused", count=len(unused), files=[where], example=f"{where}: {', '.join(unused[:5])}", classes=unused
        )
    if classification and len(met) == 1 and sum(met.values()) >= 10:
        (key,) = met
        yield problem("one-class", count=1, files=[where], example=f"{where}: all {met[key]:,} are {names.get(key, key)}")
    most, rarer = max(met.values(), default=0), _RARER if classification else _RARER_OBJECTS
    rare = sorted((count, str(names.get(key, key))) for key, count in met.items() if count * rarer < most)
    if rare and most >= _ENOUGH:
        most_name = next(str(names.get(key, key)) for key, count in met.items() if count == most)
        example = f"{where}: {rare[0][1]} {rare[0][0]:,} times, {most_name} {most:,} times"
        yield problem(
            "class-imbalance", count=len(rare), files=[where], example=example, counts={name: count for count, name in rare}
        )
