"""The common model of image data: whatever the format, a set is a list of entries, and a label is a list of things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from holdfast.data.cache import fingerprint
from holdfast.data.listing import Listing, read_text
from holdfast.data.problem import Fault

# What is known of a sample of image data once it was looked at: small, plain values, without its pixels.


class MaskFacts(NamedTuple):
    """One mask: its file, size, Pillow's mode, the values in it (at most 300 of them), and whether different ones touch.

    `pixels` are counted by value; `cover` is how much of 16 × 16 fields is not 0, in hexadecimal bytes.
    """

    file: str
    width: int
    height: int
    mode: str
    values: tuple[int, ...]
    touching: bool = False
    pixels: tuple[int, ...] = ()
    cover: str = ""


class Channel(NamedTuple):
    """The values of one channel: its name, how far they may reach, those that are met, and how often each is."""

    name: str
    top: int  # 256, or 65,536
    values: tuple[int, ...]
    counts: tuple[int, ...]


class Facts(NamedTuple):
    """One sample. `means` and `deviations` are per channel, of a picture 32 pixels wide and high; empty if nothing was decoded.

    `look` is a 64-bit perceptual hash, `thumbnail` 16 × 16 grey values in hexadecimal: two images that look alike have nearly
    the same. Both are empty for an image of one colour. `boxes` has four numbers for each of `kinds`: middle, width and height as
    fractions of the image, or NaN where nothing says how large the image is.
    """

    width: int = 0
    height: int = 0
    channels: int = 0
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    look: int = 0
    thumbnail: str = ""
    sharpness: float = 0.0  # edges against contrast; 0 where there is nothing to see
    blank: str = ""  # black, white or one colour
    kinds: tuple[ClassKey, ...] = ()  # the class of each object, or that of the image
    boxes: tuple[float, ...] = ()
    masks: tuple[MaskFacts, ...] = ()
    histograms: tuple[Channel, ...] = ()  # of all pixels, where those were asked for
    faults: tuple[Fault, ...] = ()
    levels: str = ""  # 32 × 32 pixels as Latin-1 until they are summed up, then empty: facts are plain for the cache

    @property
    def classes(self) -> dict[ClassKey, int]:
        """Each class with its number of objects."""
        return Counter(self.kinds)


def facts_from(row: list[Any]) -> Facts:
    """Facts from what JSON made of them."""
    facts = Facts._make(tuple(value) if isinstance(value, list) else value for value in row)
    return facts._replace(
        masks=tuple(MaskFacts(*mask[:4], tuple(mask[4]), mask[5], tuple(mask[6]), mask[7]) for mask in facts.masks),
        histograms=tuple(Channel(*histogram[:2], tuple(histogram[2]), tuple(histogram[3])) for histogram in facts.histograms),
        faults=tuple(Fault._make(fault) for fault in facts.faults),
    )


LARGEST_LABEL = 16 << 20  # bytes of the label of one image
MOST_OBJECTS = 100_000  # of one image
Corners = tuple[float, float, float, float]
ClassKey = int | str  # a class as the format writes it: its number, or its name
FormatName = Literal[
    "yolo", "coco", "voc", "image-folder", "masks", "webdataset", "table", "array", "arrow", "ts", "root", "text", "dataset",
]  # fmt: skip
FORMATS: tuple[str, ...] = get_args(FormatName)


class Thing(NamedTuple):
    """One labelled object: left, top, right, bottom; a polygon (x, y, x, y, …) where there is one; the line it stands on."""

    class_id: ClassKey
    box: Corners
    polygon: tuple[float, ...] | None = None
    line: int = 0


class Label(NamedTuple):
    """What is said of one image. With `shares`, coordinates are shares of the image's width and height, otherwise pixels."""

    things: list[Thing]
    shares: bool = False
    size: tuple[int, int] | None = None  # width and height as the label states them
    faults: tuple[Fault, ...] = ()


class Entry(NamedTuple):
    """One sample of image data, not read yet. Paths are relative to the set's folder; `label` is the file with its label."""

    split: str
    image: str
    label: str | None = None
    masks: tuple[str, ...] = ()
    class_id: ClassKey | None = None  # of the image as a whole
    spans: bytes = b""  # where one file holds the labels of all images: the places in it, for `read_label`

    @property
    def own_label(self) -> str | None:
        """The file with the label of this image alone."""
        return self.label if not self.spans else None


ReadLabel = Callable[[Path, Entry], Label]


@dataclass(slots=True)
class ImageSet:
    """Image data in any format. `read_label` must be a module's function, or a partial of one: it is sent to other processes."""

    format: FormatName
    root: Path
    listing: Listing
    entries: list[Entry]
    classes: dict[ClassKey, str]
    read_label: ReadLabel
    classes_are_known: bool = True  # False: the classes are only those that were met
    has_boxes: bool = False
    described_by: str | None = None  # data.yaml, the JSON file
    faults: list[Fault] = field(default_factory=list)  # what reading the description showed: orphans, paths outside, …
    notes: list[str] = field(default_factory=list)  # what was skipped

    @property
    def splits(self) -> list[str]:
        """Names of the splits, in the order they were met."""
        return list(dict.fromkeys(entry.split for entry in self.entries))

    @property
    def judged_by(self) -> str:
        """A short word for what the labels are judged by; the same as long as that is."""
        classes = sorted(self.classes.items(), key=str) if self.classes_are_known else None
        return fingerprint(self.format, classes, self.has_boxes, getattr(self.read_label, "args", ()))

    def class_name(self, key: ClassKey) -> str:
        """The name of a class, or its key where it has none."""
        return str(self.classes.get(key, key))

    def label_of(self, entry: Entry) -> Label:
        """What is said of an image."""
        return self.read_label(self.root, entry)


def no_label(_: Path, __: Entry) -> Label:
    """For formats whose images have no label file."""
    return Label([])


def names_in(listing: Listing, file: str) -> dict[ClassKey, str]:
    """The classes that a file lists, one a line, by their numbers; none where it is not there."""
    lines = read_text(listing.root / file, limit=1 << 20).splitlines() if file in listing.files else []
    return {number: line.strip() for number, line in enumerate(lines) if line.strip()}


def in_pixels(label: Label, size: tuple[int, int]) -> list[Thing]:
    """The things of a label with coordinates in pixels of an image of this width and height."""
    if not label.shares:
        return label.things
    width, height = size
    things = []
    for kind, (left, top, right, bottom), points, line in label.things:
        polygon = points and tuple(value * (height if place % 2 else width) for place, value in enumerate(points))
        things.append(Thing(kind, (left * width, top * height, right * width, bottom * height), polygon, line))
    return things


def box_around(points: Sequence[float]) -> Corners:
    """The corners of the box around a polygon x, y, x, y, …"""
    across, down = points[0::2], points[1::2]
    return min(across), min(down), max(across), max(down)
