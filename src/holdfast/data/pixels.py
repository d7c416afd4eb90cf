"""Decode images with Pillow, with limits, and say how they look: statistics, a perceptual hash, a thumbnail.

Only the decoders of ordinary image files are allowed, nothing larger than `MOST_PIXELS` is decoded, and only the first picture
of an animation. A JPEG is decoded at an eighth of its size: all of its data is read, so damage is seen, at a third of the time.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.listing import read_bytes
from holdfast.data.samples import Channel, Facts, MaskFacts

if TYPE_CHECKING:
    from PIL import Image


# What an image file says of itself, read from its bytes without decoding a pixel: kind, size, rotation, and whether it is whole.
# The marks of a JPEG are read here, since that is several times as fast as opening it with Pillow, and its ends are enough.
# Nothing here trusts a length that it finds: each is checked against the bytes there are.

_LARGEST = 1 << 30  # bytes of a file
_SIZE_MARKERS = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_END = b"\xff\xd9"  # a JPEG's last marker; some cameras write more behind it: a movie, a second picture
_TAIL = 65536  # bytes at the end in which the end of a JPEG or PNG is looked for first
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_KINDS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"), "jpeg"), ".png": "png", ".apng": "png", ".gif": "gif",
    ".bmp": "bmp", ".dib": "bmp", ".tif": "tiff", ".tiff": "tiff", ".webp": "webp",
}  # fmt: skip


class Header(NamedTuple):
    """The kind of file; size and channels where they were found; EXIF orientation (1: as stored); what is wrong, in words."""

    kind: str
    width: int = 0
    height: int = 0
    channels: int = 0
    orientation: int = 1
    cut: str = ""
    broken: str = ""


def read_header(content: bytes) -> Header:
    """Read what can be read without decoding."""
    kind = kind_of(content)
    try:
        if kind == "jpeg":
            header, place = _jpeg_size(content)
            ends = not place or content.rfind(_END, max(place, len(content) - _TAIL)) > 0 or content.find(_END, place) > 0
            return header if ends else header._replace(cut="its end marker is missing")
        if kind == "png" and content[12:16] == b"IHDR":
            width, height, _, colours = struct.unpack_from(">IIBB", content, 16)
            turned = content.find(b"eXIf")
            orientation = exif_orientation(content[turned + 4 :]) if turned > 0 else 1
            ended = "" if b"IEND" in content[-_TAIL:] else "its end is missing"
            return Header(kind, width, height, _PNG_CHANNELS.get(colours, 0), orientation, ended)
    except (struct.error, IndexError):
        return Header(kind, cut="it ends inside its header")
    return Header(kind)


def jpeg_from_ends(head: bytes, tail: bytes) -> Header | None:
    """Read a JPEG by its first and last bytes; None where these do not tell its size and that it is whole.

    The file must be as long as `head` at least. The size must stand before `tail` can begin, which may be the end of `head`:
    a thumbnail has an end marker of its own, and it stands before the size.
    """
    if _END not in tail:
        return None
    try:
        header, _ = _jpeg_size(head[: -len(tail)])
    except (struct.error, IndexError):
        return None
    return header if header.width and header.height else None


def kind_of(content: bytes) -> str:
    """What kind of image the first bytes say it is; empty where they say nothing."""
    if content.startswith(b"\xff\xd8"):
        return "jpeg"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    for start, kind in ((b"GIF8", "gif"), (b"BM", "bmp"), (b"II*\0", "tiff"), (b"MM\0*", "tiff")):
        if content.startswith(start):
            return kind
    return ""


def fits_ending(kind: str, ending: str) -> bool:
    """Whether a file of this kind may have this ending; an unknown kind or ending fits everything."""
    return not kind or _KINDS.get(ending, kind) == kind


def _jpeg_size(content: bytes) -> tuple[Header, int]:
    """Go from marker to marker up to the size, and say where that stands; 0 where it is not found. The end is not looked for."""
    place, orientation, length = 2, 1, len(content)
    while place < length:
        if content[place] != 0xFF:
            return Header("jpeg", orientation=orientation, broken="a marker is missing where one must be"), 0
        marker = content[place + 1]
        if marker == 0xFF or marker in _ALONE:
            place += 1 if marker == 0xFF else 2
            continue
        (size,) = struct.unpack_from(">H", content, place + 2)
        if marker in _SIZE_MARKERS:
            _, height, width, channels = struct.unpack_from(">BHHB", content, place + 4)
            return Header("jpeg", width, height, channels, orientation), place
        if marker == 0xE1 and content[place + 4 : place + 10] == b"Exif\0\0":
            orientation = exif_orientation(content[place + 10 : place + 2 + size])
        if marker == 0xDA:
            break
        place += 2 + size
    return Header("jpeg", orientation=orientation, cut="it ends before its size"), 0


def exif_orientation(exif: bytes) -> int:
    """How the image is to be turned when it is shown (1 to 8); 1 where nothing sensible is said."""
    from PIL import Image

    tags = Image.Exif()
    with contextlib.suppress(Exception):  # damaged ones raise anything
        tags.load(exif)
    value = tags.get(0x0112)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


# What is in a mask: its size, its values, and whether different ones touch.

_MOST = 300
_COVER = 16  # fields in each direction of the map of what is covered


def read_mask(path: Path) -> npt.NDArray[np.integer]:
    """The numbers of a mask; those of the palette where it has one. A mask in colours is given with its channels."""
    pixels = np.asarray(opened(read_bytes(path, limit=_LARGEST)))
    return pixels.astype(np.uint8) if pixels.dtype == np.bool_ else pixels


def mask_facts(root: Path, file: str) -> MaskFacts:
    """Look at one mask; OSError or ValueError where it cannot be read."""
    from PIL import Image

    image = opened(read_bytes(root / file, limit=_LARGEST))
    pixels = np.asarray(image)
    plain = pixels.ndim == 2 and pixels.dtype.kind in "bui"
    inside = pixels > 0 if plain else pixels.reshape(*pixels.shape[:2], -1).max(axis=2) > 0
    cover = Image.fromarray(inside.astype(np.uint8) * 255).resize((_COVER, _COVER), Image.Resampling.BOX).tobytes().hex()
    if not plain:
        return MaskFacts(file, image.width, image.height, image.mode, (), cover=cover)
    if pixels.dtype.itemsize <= 2 and pixels.dtype.kind != "i":
        counts = np.bincount(pixels.ravel())
        values = np.flatnonzero(counts)
        counts = counts[values]
    else:
        values, counts = np.unique(pixels, return_counts=True)
    touching = len(values) > 2 and (_touch(pixels[:, 1:], pixels[:, :-1]) or _touch(pixels[1:], pixels[:-1]))
    some, many = tuple(values[:_MOST].tolist()), tuple(counts[:_MOST].tolist())
    return MaskFacts(file, image.width, image.height, image.mode, some, touching, many, cover)


def _touch(here: npt.NDArray[np.integer], other: npt.NDArray[np.integer]) -> bool:
    return bool(((here != other) & (here > 0) & (other > 0)).any())


def overlapping_pixels(root: Path, files: Sequence[str]) -> int:
    """Pixels that more than one of the masks of a sample claims, where each object has a mask of its own."""
    covered: npt.NDArray[np.uint16] | None = None
    for file in files:
        inside = (read_mask(root / file) > 0).astype(np.uint16)
        inside = inside if inside.ndim == 2 else inside.max(axis=2)
        if covered is None:
            covered = inside
        elif covered.shape == inside.shape:
            covered += inside
    return 0 if covered is None else int((covered > 1).sum())


MOST_PIXELS = 64_000_000
_DECODERS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")  # MPO is opened as JPEG
_SIDE = 32
_DRAFT = 48  # pixels: what a JPEG is decoded to at least, so that the way it is scaled does not show
_FLAT = 2.0  # grey levels: with four times as much between dark and bright there is something to recognise
_BLACK, _WHITE = 16, 239  # levels that the brightest, or the darkest, of 32 × 32 pixels has at most, or at least
_AS_THEY_ARE = ("L", "RGB", "RGBA")
_WAVES = np.cos(np.pi * (2 * np.arange(_SIDE)[None] + 1) * np.arange(8)[:, None] / (2 * _SIDE)).astype(np.float32)
_GREY = np.array([0.299, 0.587, 0.114], np.float32)
_ONES = np.ones(_SIDE * _SIDE)
_HALVES = np.repeat(np.eye(_SIDE // 2, dtype=np.float32), 2, axis=1) / 2  # the mean of two neighbours
_EDGES = (2 * np.eye(_SIDE) - np.eye(_SIDE, k=1) - np.eye(_SIDE, k=-1)).astype(np.float32)  # a pixel against its two neighbours
_CHANNELS = {"1": 1, "L": 1, "P": 1, "LA": 2, "PA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "I": 1, "F": 1}


class TooLarge(ValueError):
    """An image with more pixels than are decoded."""


def opened(content: bytes) -> Image.Image:
    """An image whose pixels are not decoded yet; ValueError or OSError where that cannot be done safely."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=_DECODERS)
    except (KeyError, UnidentifiedImageError):  # KeyError: a decoder that this Pillow was built without
        raise ValueError("not an image in a known format") from None
    if image.width * image.height > MOST_PIXELS:
        raise TooLarge(f"{image.width} × {image.height} pixels")
    return image


def look_at(content: bytes, header: Header) -> Facts:
    """Decode an image; `summed_up` describes how it looks. A damaged one raises whatever its decoder raises."""
    reduced = _reduced(content, header)
    if reduced is not None:
        return _of_bytes(reduced, Facts(header.width, header.height, header.channels))
    image = opened(content)
    width, height = image.size
    channels = _CHANNELS.get(image.mode, 1)
    if image.format in ("JPEG", "MPO"):
        image.draft(None, (_DRAFT, _DRAFT))  # None keeps the mode
    image.load()
    if image.mode.startswith(("I", "F")):
        return _of_numbers(image, Facts(width, height, channels))
    return _of_bytes(image, Facts(width, height, channels))


def _reduced(content: bytes, header: Header) -> Image.Image | None:
    """A whole JPEG as `draft` decodes it, but without Pillow reading its header once more; None where that does not work."""
    from PIL import Image

    mode = {1: "L", 3: "RGB"}.get(header.channels)
    if header.kind != "jpeg" or mode is None or header.cut or header.broken:
        return None
    shortest = min(header.width, header.height)
    scale = next((scale for scale in (8, 4, 2) if shortest >= scale * _DRAFT), 1)
    size = (-(-header.width // scale), -(-header.height // scale))
    with contextlib.suppress(ValueError):
        return Image.frombytes(mode, size, content, "jpeg", mode, "", scale, 0)
    return None


def _of_bytes(image: Image.Image, facts: Facts) -> Facts:
    """The pixels of an image with eight bits a channel, 32 × 32 of them."""
    from PIL import Image

    if image.mode not in _AS_THEY_ARE:
        image = image.convert("RGB")
    if image.size != (_SIDE, _SIDE):
        gap = 2.0 if min(image.size) > 8 * _SIDE else None
        image = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, reducing_gap=gap)
    return facts._replace(levels=image.tobytes().decode("latin-1"))


def summed_up(some: Sequence[Facts]) -> list[Facts]:
    """Statistics, hash and thumbnail of images that were looked at, many at once: NumPy's calls cost more than their work."""
    made = list(some)
    by_size: dict[int, list[int]] = {}
    for place, facts in enumerate(some):
        if facts.levels:
            by_size.setdefault(len(facts.levels), []).append(place)
    for places in by_size.values():
        content = "".join(some[place].levels for place in places).encode("latin-1")
        levels = np.frombuffer(content, np.uint8).reshape(len(places), _SIDE * _SIDE, -1)
        values = levels.astype(np.float32)
        grey = (values[:, :, :3] @ _GREY if values.shape[2] > 2 else values[:, :, 0]).reshape(-1, _SIDE, _SIDE)
        lows, highs = (edge(levels[:, :, :3].reshape(len(places), -1), axis=1).tolist() for edge in (np.min, np.max))
        for place, low, high, looks in zip(places, lows, highs, _recognised(values, grey), strict=True):
            blank = "black" if high <= _BLACK else "white" if low >= _WHITE else "" if "thumbnail" in looks else "one colour"
            made[place] = some[place]._replace(levels="", blank=blank, **looks)
    return made


def _of_numbers(image: Image.Image, facts: Facts) -> Facts:
    """All that is said of an image of 16 or 32 bits, in its own units."""
    from PIL import Image

    whole = Image.fromarray(np.asarray(image).astype(np.float32))
    small = np.asarray(whole.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0))
    low, span = float(small.min()), float(small.max()) - float(small.min())
    stretched: npt.NDArray[np.float32] = np.zeros_like(small)
    if span > 0 and math.isfinite(span):
        stretched = ((small - low) * (255 / span)).astype(np.float32)
    (looks,) = _recognised(small.reshape(1, -1, 1), stretched[None])
    return facts._replace(blank="one colour" if span == 0 else "", **looks)


def _recognised(levels: npt.NDArray[np.float32], grey: npt.NDArray[np.float32]) -> Iterator[dict[str, Any]]:
    """Means and deviations by channel, perceptual hash, thumbnail and sharpness of each image.

    The signs of the slowest waves against their median; 16 × 16 grey values; and how far pixels differ from their neighbours,
    in deviations of the whole image. Sums are products with ones: NumPy's own are several times as slow along such axes.
    """
    values = levels.astype(np.float64)
    means = _ONES @ values / len(_ONES)
    deviations = np.sqrt(np.maximum(0.0, _ONES @ (values * values) / len(_ONES) - means * means))
    waves = (_WAVES @ grey @ _WAVES.T).reshape(len(grey), -1)
    bits = np.packbits(waves > np.partition(waves[:, 1:], 31, axis=1)[:, 31:32], axis=1)
    quarters = (_HALVES @ grey @ _HALVES.T).reshape(len(grey), -1)
    seen = quarters.max(axis=1) - quarters.min(axis=1) > 4 * _FLAT
    edges = (_EDGES @ grey + grey @ _EDGES)[:, 1:-1, 1:-1].reshape(len(grey), -1)
    contrast = np.maximum(grey.reshape(len(grey), -1).var(axis=1), 1e-12)
    sharpness = np.sqrt(np.einsum("ij,ij->i", edges, edges) / edges.shape[1] / contrast).astype(np.float64)
    small = quarters.astype(np.uint8)
    rounded = (np.round(figures, 3).tolist() for figures in (means, deviations, sharpness))
    for place, (mean, deviation, sharp) in enumerate(zip(*rounded, strict=True)):
        looks: dict[str, Any] = {"means": tuple(mean), "deviations": tuple(deviation)}
        if seen[place]:
            look = int.from_bytes(bits[place].tobytes(), "big")
            looks |= {"look": look, "thumbnail": small[place].tobytes().hex(), "sharpness": sharp}
        yield looks


# The values of an image's pixels, by channel: counted, so that means and deviations over a whole set are exact.

_EIGHT_BITS = ("1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "YCbCr")
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I")
_NAMES = {"RGB": ("red", "green", "blue"), "RGBA": ("red", "green", "blue", "alpha"), "LA": ("grey", "alpha")}


def channels_of(image: Image.Image) -> Iterator[Channel]:
    """Decode an image and count; one of floating-point numbers has no range to count in, and is left out."""
    image.load()
    if image.mode in _SIXTEEN_BITS:
        whole = np.asarray(image).astype(np.int64).ravel()
        if len(whole) and whole.min() >= 0 and whole.max() < 1 << 16:
            yield _channel("grey", 1 << 16, np.bincount(whole))
    if image.mode not in _EIGHT_BITS:
        return
    if image.mode in ("P", "1", "CMYK", "YCbCr"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    counts = np.array(image.histogram(), dtype=np.int64).reshape(-1, 256)
    for name, row in zip(_NAMES.get(image.mode, ("grey",)), counts, strict=True):
        yield _channel(name, 256, row)


def _channel(name: str, top: int, counts: npt.NDArray[np.int64]) -> Channel:
    values = np.flatnonzero(counts)
    return Channel(name, top, tuple(values.tolist()), tuple(counts[values].tolist()))
