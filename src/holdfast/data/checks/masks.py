"""Masks of another size than their image, with values that mean nothing, or objects that overlap or touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.data.problem import Problem, problem
from holdfast.data.samples import MaskFacts

_BINARY = ({0, 1}, {0, 255})
_MOSTLY = 0.9  # of a folder's masks that must be of one kind for the others to be faults
_IGNORED = 255


def kind_of_masks(masks: Sequence[MaskFacts], folder: str) -> str:
    """binary, instance, classes or colours: what most masks of a folder are."""
    if not masks:
        return "binary"
    in_colours = sum(mask.mode not in ("1", "L", "P", "I", "I;16", "I;16B") for mask in masks)
    if in_colours > _MOSTLY * len(masks):
        return "colours"
    binary = max(sum(set(mask.values) <= allowed for mask in masks) for allowed in _BINARY)
    if binary >= _MOSTLY * len(masks):
        return "binary"
    deep = Counter(mask.mode for mask in masks).most_common(1)[0][0].startswith("I")
    return "instance" if deep or "instance" in folder.lower() else "classes"


def folder_problems(masks: Sequence[MaskFacts], folder: str, classes: int) -> Iterator[Problem]:
    """Judge all masks of one folder together. `classes` is how many there are, 0 where that is not known."""
    kind = kind_of_masks(masks, folder)
    if kind == "colours":
        yield problem(
            "mask-colours", count=len(masks), files=[mask.file for mask in masks], example=f"{masks[0].file}: {masks[0].mode}"
        )
        return
    bad = [(mask, wrong) for mask in masks if (wrong := _unknown(mask, kind, masks, classes))]
    if bad:
        example = f"{bad[0][0].file}: {', '.join(map(str, bad[0][1][:8]))}"
        yield problem("mask-values", count=len(bad), files=[mask.file for mask, _ in bad], example=example)
    empty = [mask.file for mask in masks if mask.values == (0,)]
    if empty:
        yield problem("mask-empty", count=len(empty), files=empty, example=empty[0])
    touching = [mask.file for mask in masks if mask.touching] if kind == "instance" else []
    if touching:
        yield problem("instances-touch", count=len(touching), files=touching, example=touching[0])


def _unknown(mask: MaskFacts, kind: str, masks: Sequence[MaskFacts], classes: int) -> list[int]:
    """The values of a mask that do not belong there."""
    if not mask.values:
        return [-1]
    if kind == "binary":
        allowed = max(_BINARY, key=lambda some: sum(set(other.values) <= some for other in masks))
        return [value for value in mask.values if value not in allowed]
    if kind == "classes" and classes:
        return [value for value in mask.values if value >= classes and value != _IGNORED]
    return []
