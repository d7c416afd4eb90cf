"""What an image file says of itself, read from its bytes without decoding a pixel: kind, size, rotation, and whether it is whole.

JPEG and PNG, which nearly all training images are, are read here, since that is several times as fast as opening them with
Pillow; the rest is left to Pillow. Nothing here trusts a length that it finds: each is checked against the bytes there are.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_SIZE_MARKERS = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_END = b"\xff\xd9"  # a JPEG's last marker; some cameras write more behind it: a movie, a second picture
_TAIL = 65536  # bytes at the end in which it is looked for first
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ENDINGS = {
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "png": (".png", ".apng"),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "tiff": (".tif", ".tiff"),
    "webp": (".webp",),
}


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
            return _jpeg(content)
        if kind == "png":
            return _png(content)
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
    known = any(ending in endings for endings in _ENDINGS.values())
    return not kind or not known or ending in _ENDINGS[kind]


def _jpeg(content: bytes) -> Header:
    header, place = _jpeg_size(content)
    if not place or content.rfind(_END, max(place, len(content) - _TAIL)) > 0 or content.find(_END, place) > 0:
        return header
    return header._replace(cut="its end marker is missing")


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


def _png(content: bytes) -> Header:
    if content[12:16] != b"IHDR":
        return Header("png", broken="it does not begin with its header")
    width, height, _, colours = struct.unpack_from(">IIBB", content, 16)
    channels, orientation, place, length = _PNG_CHANNELS.get(colours, 0), 1, 8, len(content)
    while place + 12 <= length:
        (size,) = struct.unpack_from(">I", content, place)
        name, end = content[place + 4 : place + 8], place + 12 + size
        if end > length:
            return Header("png", width, height, channels, orientation, cut="it ends inside its pixels")
        if zlib.crc32(memoryview(content)[place + 4 : end - 4]) != struct.unpack_from(">I", content, end - 4)[0]:
            return Header("png", width, height, channels, orientation, broken=f"the checksum of its part {name!r} does not match")
        if name == b"eXIf":
            orientation = exif_orientation(content[place + 8 : end - 4])
        if name == b"IEND":
            return Header("png", width, height, channels, orientation)
        place = end
    return Header("png", width, height, channels, orientation, cut="its end is missing")


def exif_orientation(exif: bytes) -> int:
    """How the image is to be turned when it is shown (1 to 8); 1 where nothing sensible is said."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, start)
        for place in range(start + 2, min(start + 2 + 12 * entries, len(exif) - 11), 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, place)
            if tag == 0x0112 and kind == 3:
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
