"""Look at one sample of image data: its file, its pixels, its label, its masks. What the processes of a scan do all day."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast import units
from holdfast.data.checks.boxes import box_faults
from holdfast.data.checks.images import from_decoder, is_a_bomb, odd_size, rotated
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.listing import Stamp, read_bytes, read_parts, suffix
from holdfast.data.pixels import (
    MOST_PIXELS,
    Header,
    TooLarge,
    channels_of,
    fits_ending,
    jpeg_from_ends,
    look_at,
    mask_facts,
    opened,
    overlapping_pixels,
    read_header,
    summed_up,
)
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, Facts, Label, MaskFacts, ReadLabel

_LARGEST_FILE = 1 << 30
_DIGITS = 6  # of a fraction of the image
Numbered = tuple[int, Entry]
Examined = tuple[int, Facts]
_HEADS, _TAIL = (5120, 1 << 17), 1024  # bytes; the longer beginning holds the size of a photo with a thumbnail, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is the same for all samples of a scan; it is sent to each process once.

    `quick` decodes no image; `pixels` counts the values of all pixels instead of looking for faults; `masks` are decoded or not.
    """

    root: Path
    read_label: ReadLabel
    classes: frozenset[ClassKey] | None
    has_boxes: bool
    quick: bool = False
    pixels: bool = False
    masks: bool = True
    boxes: bool = False  # their places are wanted, too


def examine(how: Examination, entry: Entry) -> Facts:
    """Everything that can be said of one sample by itself."""
    return examine_many(how, [(0, entry)])[0][1]


def examine_many(how: Examination, samples: Sequence[Numbered], begins: Callable[[int], None] | None = None) -> list[Examined]:
    """The same of several, by their numbers; `begins` gets each number before its file is opened."""
    seen: list[Examined] = []
    for number, entry in samples:
        if begins is not None:
            begins(number)
        seen.append((number, _seen(how, entry)))
    looked = summed_up([facts for _, facts in seen])
    return [(number, _judged(facts, entry)) for (number, entry), facts in zip(samples, looked, strict=True)]


def _judged(facts: Facts, entry: Entry) -> Facts:
    blank = (Fault("image-blank", entry.image, 0, facts.blank),) if facts.blank else ()
    return facts._replace(faults=(*facts.faults, *blank)) if blank else facts


def _seen(how: Examination, entry: Entry) -> Facts:
    """What one sample shows. Never raises: what goes wrong is a fault of the sample."""
    faults: list[Fault] = []
    facts, header = _image(how, entry.image, faults)
    label = how.read_label(how.root, entry)
    faults += label.faults
    if how.has_boxes and entry.label is None:
        faults.append(Fault("label-missing", entry.image, 0, "no label file"))
    elif how.has_boxes and not label.things and not label.faults:
        faults.append(Fault("label-empty", entry.own_label or entry.image, 0, "no object"))
    masks = tuple(_masks(how, entry, faults)) if entry.masks and how.masks else ()
    if facts.width and facts.height:
        faults += _against_the_image(how, entry, label, masks, facts, header)
    kinds = tuple(thing.class_id for thing in label.things) if entry.class_id is None else (entry.class_id,)
    boxes = _fractions(label, facts.width, facts.height) if how.boxes else ()
    return facts._replace(kinds=kinds, boxes=boxes, masks=masks, faults=tuple(faults))


def _fractions(label: Label, width: int, height: int) -> tuple[float, ...]:
    """Boxes as fractions of the image; of one that a label states to lie on its side, those of the label's own size."""
    if label.size == (height, width) or not width:
        width, height = label.size or (width, height)
    across, down = (1.0, 1.0) if label.shares else (float(width), float(height))
    fractions: list[float] = []
    for thing in label.things:
        left, top, right, bottom = thing.box
        if across and down:
            four = ((left + right) / 2 / across, (top + bottom) / 2 / down, (right - left) / across, (bottom - top) / down)
            fractions += [round(value, _DIGITS) for value in four]
        else:
            fractions += [math.nan] * 4
    return tuple(fractions)


def _image(how: Examination, file: str, faults: list[Fault]) -> tuple[Facts, Header]:
    """Header and pixels of an image."""
    path = file if file[0] == "/" else f"{how.root}/{file}"  # making a Path of it takes as long as reading a label
    try:
        ends = _ends(path) if how.quick and not how.pixels else None
        content, header = ends or ((whole := read_bytes(path, limit=_LARGEST_FILE)), read_header(whole))
    except (OSError, ValueError) as error:
        faults.append(Fault("image-unreadable", file, 0, str(error)[:200]))
        return Facts(), Header("")
    if not content:
        faults.append(Fault("image-empty", file, 0, "0 bytes"))
        return Facts(), Header("")
    if not fits_ending(header.kind, suffix(file)):
        faults.append(Fault("image-extension", file, 0, f"its content is {header.kind.upper()}"))
    if is_a_bomb(header.width, header.height, len(content)):
        detail = f"it claims {header.width} × {header.height} pixels in {units.size(len(content))}; not decoded"
        faults.append(Fault("image-unreadable", file, 0, detail))
        return Facts(), header
    facts = _pixels(how, file, content, header, faults)
    faults += odd_size(file, facts.width, facts.height)
    return facts, header


def _ends(path: str) -> tuple[bytes, Header] | None:
    """Both ends of a whole JPEG and its header. Cameras put a thumbnail before the size, so a longer beginning is tried, too.

    None where the whole file is needed: nothing is called cut, or too large for its bytes, by its ends alone.
    """
    for length in _HEADS:
        head, tail = read_parts(path, (0, length), (1, _TAIL))
        if len(head) < length or not head.startswith(b"\xff\xd8"):
            return None
        header = jpeg_from_ends(head, tail)
        if header is not None:
            return (head + tail, header) if header.width * header.height <= MOST_PIXELS else None
    return None


def _pixels(how: Examination, file: str, content: bytes, header: Header, faults: list[Fault]) -> Facts:
    """Decode, or with `quick` believe the header; where neither works, a fault and what the header says."""
    stated = Facts(header.width, header.height, header.channels)
    if header.width * header.height > MOST_PIXELS:
        return stated
    try:
        if how.pixels:
            image = opened(content)
            return Facts(*image.size, len(image.getbands()), histograms=tuple(channels_of(image)))
        if how.quick:
            return _without_decoding(content, header)
        return look_at(content, header)
    except TooLarge as error:
        width, _, height = str(error).split()[:3]
        return Facts(int(width), int(height))
    except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files: struct.error, SyntaxError, …
        faults.append(from_decoder(file, str(error) or type(error).__name__, header.cut))
        return stated


def _without_decoding(content: bytes, header: Header) -> Facts:
    if header.cut or header.broken:
        raise ValueError(header.cut or header.broken)
    if header.kind == "jpeg" and header.width and header.height:
        return Facts(header.width, header.height, header.channels)
    image = opened(content)
    size = image.size
    image.verify()
    return Facts(*size, len(image.getbands()))


def _masks(how: Examination, entry: Entry, faults: list[Fault]) -> Iterator[MaskFacts]:
    for file in entry.masks:
        try:
            yield mask_facts(how.root, file)
        except Exception as error:  # noqa: BLE001 - as above
            faults.append(Fault("mask-unreadable", file, 0, str(error)[:200] or type(error).__name__))
    folders = Counter(map(folder_of_masks, entry.masks))
    if len(entry.masks) > 1 and max(folders.values()) > 1 and not faults and not how.quick:
        pixels = overlapping_pixels(how.root, entry.masks)
        faults += (
            [Fault("instances-overlap", entry.image, 0, f"{pixels:,} pixels belong to more than one mask")] if pixels else []
        )


def _against_the_image(
    how: Examination, entry: Entry, label: Label, masks: tuple[MaskFacts, ...], facts: Facts, header: Header
) -> Iterator[Fault]:
    """What shows only where label and image are seen together."""
    size, turned = (facts.width, facts.height), header.orientation != 1 and bool(label.things or entry.masks)
    if turned:
        yield rotated(entry, label, header.orientation, *size)
    differs = label.size not in (None, size) and not (header.orientation > 4 and label.size == size[::-1])
    if differs and label.size is not None:
        stated = f"{label.size[0]} × {label.size[1]}; the image has {size[0]} × {size[1]}"
        yield Fault("label-size", entry.own_label or entry.image, 0, stated)
    for mask in masks:
        if (mask.width, mask.height) != size:
            yield Fault("mask-size", mask.file, 0, f"{mask.width} × {mask.height}; the image has {size[0]} × {size[1]}")
    yield from box_faults(entry, label, label.size if label.size is not None and (turned or differs) else size, how.classes)


def stamps(entry: Entry, files: dict[str, Stamp]) -> str:
    """Sizes and times of all files of a sample, as one word: as long as it is the same, so are the facts."""
    parts = (entry.image, entry.label, *entry.masks)
    return "|".join(f"{stamp.size}.{stamp.time}" if (stamp := files.get(part)) else "-" for part in parts if part)
