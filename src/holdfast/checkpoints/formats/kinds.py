"""What a file is, told from its first bytes, and only then from its name."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.checkpoints.contents import Trouble

Kind = Literal["zip", "pickle", "safetensors", "keras", "index", "other"]
HEAD = 1024  # bytes that are looked at
SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".keras", ".weights.h5")
PICKLES = (*SUFFIXES[:3], ".bin", ".pkl", ".pickle", ".tar", ".model", ".t7")

_CONVERT = "this is not a PyTorch checkpoint; name the one that the training saved"
_UNPACK = "unpack it first, then name the checkpoint inside"

_MAGIC = (  # offset, bytes, what it is, what to do
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"BZh", "a bzip2 archive", _UNPACK),
    (0, b"\xfd7zXZ\0", "an xz archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x93NUMPY", "a numpy array", _CONVERT),
    (0, b"GGUF", "a GGUF file (llama.cpp)", _CONVERT),
    (4, b"TFL3", "a TensorFlow Lite model", _CONVERT),
    (0, b"ftrt", "a TensorRT engine", _CONVERT),
)
_NAMES = {  # what has no bytes to be known by
    ".onnx": "an ONNX model",
    ".pb": "a TensorFlow graph",
    ".msgpack": "a Flax file",
    ".index": "the index of a TensorFlow checkpoint",
}
_HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a file is: one that can be opened, or "other" with the trouble that says why not.

    A "pickle" with a trouble is a text that may be a pickle too; the trouble is what to say if it is none.
    """

    kind: Kind
    trouble: Trouble | None = None


def recognise(path: Path, size: int) -> Recognised:
    """What a file of `size` bytes is. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, size - 1))
        last = file.read(1)
    if not head:
        return _other(
            "torn", "It is empty: nothing was written into it.", "the save or the copy was interrupted: use an older one"
        )
    if not head.strip(b"\0"):
        message = "It starts with zeros: its space was reserved but never written, as after a crash of the machine."
        return _other("torn", message, "use an older one")
    return _by_content(path, head) or _by_text(path, head, last, size) or _by_name(path, head)


def _by_content(path: Path, head: bytes) -> Recognised | None:
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        first = _first_member(head)
        if first.endswith(".npy"):
            return _unknown("a numpy archive (.npz)", _CONVERT)
        return Recognised("keras" if first == "metadata.json" else "zip")
    if head.startswith(_HDF5):
        return Recognised("keras")
    if head[0] == 0x80 and head[1:2] in (b"\1", b"\2", b"\3", b"\4", b"\5"):
        return Recognised("pickle")
    for offset, magic, what, fix in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return _unknown(what, fix)
    if head[8:9] == b"{" and struct.unpack("<Q", head[:8])[0] < 1 << 32:
        return Recognised("safetensors")
    return Recognised("index") if path.name.endswith(".index.json") else None


def _first_member(head: bytes) -> str:
    """The name of the first member of a zip archive: it tells who wrote it."""
    return head[30 : 30 + struct.unpack("<H", head[26:28])[0]].decode("utf-8", "replace") if len(head) >= 30 else ""


def _by_text(path: Path, head: bytes, last: bytes, size: int) -> Recognised | None:
    """Text: something else was saved under the name of a checkpoint, unless it is a pickle of the oldest kind, which is text."""
    text = _as_text(head)
    if text is None:
        return None
    low = text.lstrip("\ufeff \t\r\n").lower()
    if low.startswith("version https://git-lfs.github.com/"):
        return _lfs_pointer(text, size)
    if "/annex/objects/" in low[:200]:
        return _other("unreadable", "It is a git-annex pointer, not the file.", f"git annex get {path.name}")
    begin = " ".join(text.split())[:60]
    if low.startswith(("<!doctype html", "<html", "<head")):
        message = f'It is a web page ("{begin}"), not a checkpoint: the server sent an error or login page instead.'
        return _other("unreadable", message, "download it again, and check what arrives")
    if low.startswith(("<?xml", "<error")):
        message = f'It is an XML text ("{begin}"), as storage services answer with when a download is refused.'
        return _other("unreadable", message, "check your access there, then download it again")
    what = "a JSON text" if low.startswith(("{", "[")) else "a text"
    message = f'It is {what}, not a checkpoint. It starts with "{begin}".'
    unreadable = _other("unreadable", message, "name another file, or copy or download this one again")
    return Recognised("pickle", unreadable.trouble) if last == b"." and text[0] in "(c}])lpdIFNSVi" else unreadable


def _lfs_pointer(text: str, size: int) -> Recognised:
    stated = next((line[5:].strip() for line in text.splitlines() if line.startswith("size ")), "")
    of = f" of {int(stated):,} bytes" if stated.isdecimal() and len(stated) < 20 else ""
    return _other("unreadable", f"This is a Git LFS pointer of {size} bytes, not the file{of}.", "git lfs pull")


def _by_name(path: Path, head: bytes) -> Recognised:
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return Recognised("safetensors")
    if suffix in _NAMES:
        return _unknown(_NAMES[suffix], _CONVERT)
    if suffix in (*PICKLES, ".keras", ".h5"):
        message = f"Its first bytes match no checkpoint format: {head[:8].hex(' ')}."
        return _other("unreadable", message, "it was overwritten or is not a checkpoint: copy it again, or use an older one")
    return _unknown("a file of an unknown kind", _CONVERT)


def _as_text(head: bytes) -> str | None:
    """The bytes as text, if they are one; a character may be cut at the end."""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3 or error.start == 0:
            return None
        text = head[: error.start].decode("utf-8")
    return text if all(character.isprintable() or character in "\ufeff\t\r\n" for character in text) else None


def _unknown(what: str, fix: str) -> Recognised:
    return _other("unreadable", f"It is {what}, not a checkpoint that PyTorch wrote.", fix)


def _other(state: Literal["torn", "unreadable"], message: str, fix: str) -> Recognised:
    return Recognised("other", Trouble(state, message, fix))
