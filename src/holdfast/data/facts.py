"""What is known of a sample of image data once it was looked at: small, plain values, without its pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey


class MaskFacts(NamedTuple):
    """One mask: its file, size, Pillow's mode, the values in it (at most 300 of them), and whether different ones touch."""

    file: str
    width: int
    height: int
    mode: str
    values: tuple[int, ...]
    touching: bool = False


class Facts(NamedTuple):
    """One sample. `means` and `deviations` are per channel, of a picture 32 pixels wide and high; empty if nothing was decoded.

    `look` is a 64-bit perceptual hash, `thumbnail` 16 × 16 grey values in hexadecimal: two images that look alike have nearly
    the same. Both are empty for an image of one colour.
    """

    width: int = 0
    height: int = 0
    channels: int = 0
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 0.0
    look: int = 0
    thumbnail: str = ""
    sharpness: float = 0.0  # edges against contrast; 0 where there is nothing to see
    blank: str = ""  # black, white or one colour
    classes: tuple[tuple[ClassKey, int], ...] = ()  # each class with its number of objects
    masks: tuple[MaskFacts, ...] = ()
    faults: tuple[Fault, ...] = ()


def facts_from(row: list[Any]) -> Facts:
    """Facts from what JSON made of them."""
    made = dict(zip(Facts._fields, row, strict=True))
    made["means"], made["deviations"] = tuple(made["means"]), tuple(made["deviations"])
    made["classes"] = tuple((kind, count) for kind, count in made["classes"])
    made["masks"] = tuple(MaskFacts._make(mask)._replace(values=tuple(mask[4])) for mask in made["masks"])
    made["faults"] = tuple(Fault._make(fault) for fault in made["faults"])
    return Facts(**made)
