"""Files of torch.save since 1.6, and TorchScript archives: a zip of a pickle and of one record for each storage.

    archive/data.pkl      everything but the numbers of the tensors
    archive/data/0 …      the storages, not packed, each at a multiple of 64 bytes
    archive/version, byteorder, .format_version, .data/serialization_id
    archive/code/ …       TorchScript only, with constants.pkl

The index stands at the end, so a file that was cut has none: its pickle, which comes first, is read all the same.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import IO

from holdfast.checkpoints.contents import Contents, Storage
from holdfast.checkpoints.formats.files import OLDER, checksum, few, file_info
from holdfast.checkpoints.formats.torch_words import (
    cut_short,
    not_followed,
    refuse_big_endian,
    take,
    too_short,
    unsafe,
)
from holdfast.checkpoints.formats.zip_index import (
    STORED,
    BrokenIndex,
    Record,
    first_record,
    overlapping,
    read_index,
    unpack,
)
from holdfast.checkpoints.harmless import ITEM_SIZES
from holdfast.checkpoints.pickled.stack import Findings, StorageUse
from holdfast.checkpoints.pickles import Unpickled, read_pickle

_SMALL = 4096
_PICKLE = 256 << 20  # bytes of a packed pickle that is unpacked in memory
_OVERHEAD = 130  # bytes of headers and padding for each record, about
_AGAIN = "load it and save it again with torch.save"
_SCRIPT = "it is a TorchScript archive, which holds code: torch.jit.load runs it; the weights can be read without"
_NO_CHECKSUMS = "it was saved without checksums: damage cannot be detected"
_LEFT_OUT = "its tensors have no checksums: they were left out of the save (skip_data), and may never have been filled in"
_NOT_OURS = "this is not a checkpoint that torch.save wrote; name the one that the training saved"


def open_zip(path: Path) -> Contents:
    """What a zip file of torch.save holds, as far as its index and its pickle tell. Raises OSError."""
    contents = Contents(path=path, format="torch zip", files=[file_info(path)])
    with path.open("rb") as file:
        _Archive(file, contents).read()
    return contents


class _Archive:
    """One archive that is being opened."""

    def __init__(self, file: IO[bytes], contents: Contents) -> None:
        self._file, self._info, self._contents = file, contents.files[0], contents
        self._records: list[Record] = []
        self._by_name: dict[str, Record] = {}  # in small letters: torch's reader does not look at case
        self._top = ""  # the folder in the archive that everything is in
        self._others = Findings()  # of all pickles but the main one
        self._may_unpack = _PICKLE

    def read(self) -> None:
        try:
            records = read_index(self._file, self._info.size)
        except BrokenIndex as error:
            self._contents.trouble("torn", f"Its index at the end is damaged: {error}.", OLDER)
            self._without_index()
            return
        if records is None:
            expected = self._without_index()
            self._contents.troubles.insert(0, cut_short(self._info, expected=expected, without="the index"))
            return
        self._take(records)
        main = self._named("data.pkl")
        if main is None:
            self._contents.trouble(
                "unreadable", "It is a zip archive without data.pkl, so not one that torch.save wrote.", _NOT_OURS
            )
        else:
            self._content(self._unpickled(main), main.name)
            short = too_short(self._contents, {record.name for record in self._records if record.method != STORED})
            self._contents.troubles += [short] if short else []
        self._other_pickles(main)
        self._flaws()
        self._small_records()
        if not self._overlapping():
            self._compare_checksums()
        self._unsafe()

    def _take(self, records: list[Record]) -> None:
        self._records = records
        self._top = _folder_of(records)
        for record in records:
            self._by_name.setdefault(record.name.lower(), record)

    # --- the content

    def _unpickled(self, pickle: Record, findings: Findings | None = None) -> Unpickled:
        if pickle.method == STORED:
            return read_pickle(self._file, start=pickle.offset, end=min(pickle.end, self._info.size), findings=findings)
        data = unpack(self._file, pickle, self._may_unpack)
        if data is None:
            return Unpickled(problem="it is compressed, and cannot be decompressed")
        self._may_unpack -= len(data)
        return read_pickle(io.BytesIO(data), located=False, findings=findings)

    def _content(self, unpickled: Unpickled, name: str) -> None:
        take(self._contents, unpickled, [self._storage(use) for use in unpickled.storages])
        self._judge(unpickled, name)

    def _judge(self, unpickled: Unpickled, where: str) -> None:
        contents = self._contents
        contents.refused = list(dict.fromkeys((*contents.refused, *unpickled.refused)))
        contents.needs_code = list(dict.fromkeys((*contents.needs_code, *unpickled.needs_code)))
        if unpickled.problem is not None:
            not_followed(contents, unpickled.problem, where=where)

    def _storage(self, use: StorageUse) -> Storage:
        """Where a storage lies. Of one that is packed or missing, no byte is there."""
        name = f"{self._top}data/{use.key}"
        if use.inside:
            return Storage(self._info.path, use.offset or 0, use.size or 0, use.dtype)
        record = self._named(f"data/{use.key}")
        if record is None or record.method != STORED or record.offset >= self._info.size:
            return Storage(self._info.path, 0, 0, use.dtype, name=name)
        there = min(record.packed, self._info.size - record.offset)
        return Storage(self._info.path, record.offset, there, use.dtype, record.crc32 if there == record.packed else None, name)

    def _other_pickles(self, main: Record | None) -> None:
        """Any other pickle is judged too: which one is loaded depends on who loads it."""
        for record in self._records:
            if record is not main and record.name.lower().endswith(".pkl"):
                self._judge(self._unpickled(record, self._others), record.name)

    def _unsafe(self) -> None:
        if self._contents.refused:
            damaged = any(trouble.where.endswith(".pkl") for trouble in self._contents.troubles if trouble.state == "torn")
            self._contents.troubles.append(unsafe(self._contents.refused, damaged=damaged))

    # --- what is wrong with the records

    def _flaws(self) -> None:
        by_problem: dict[str, list[str]] = {}
        for record in self._records:
            packed = "is compressed, so its values cannot be checked in place"
            problem = record.problem or (packed if record.method != STORED and self._is_storage(record) else "")
            if problem:
                by_problem.setdefault(problem, []).append(record.name)
        for problem, names in by_problem.items():
            compressed_or_locked = problem.startswith(("is compressed", "is encrypted"))
            message = (
                f"A record {problem}: {few(names)}." if len(names) == 1 else f"Each of these records {problem}: {few(names)}."
            )
            self._contents.trouble(
                "unreadable" if compressed_or_locked else "torn", message, _AGAIN if compressed_or_locked else OLDER, names[0]
            )
        self._twice()

    def _overlapping(self) -> bool:
        both = overlapping(self._records)
        if both:
            message = f"Two records overlap ({', '.join(both)}): torch.save never writes that."
            self._contents.trouble("unreadable", message, "get it again from where it came from", both[0])
        return both is not None

    def _twice(self) -> None:
        seen = Counter(record.name.lower() for record in self._records)
        twice = [name for name, times in seen.items() if times > 1]
        if twice:
            message = f"It holds two records with the same name ({few(twice)}): which of them is loaded depends on the reader."
            self._contents.trouble("unreadable", message, "get it again from where it came from", twice[0])
        if any(".." in record.name.split("/") or record.name.startswith(("/", "\\")) for record in self._records):
            self._contents.notes.append("the names of its records point outside the folder: do not unpack it by hand")

    def _named(self, name: str) -> Record | None:
        return self._by_name.get((self._top + name).lower())

    def _is_storage(self, record: Record) -> bool:
        return record.name.startswith(f"{self._top}data/")

    def _small_records(self) -> None:
        contents = self._contents
        order = self._named("byteorder")
        if order is not None and unpack(self._file, order, _SMALL) == b"big":
            refuse_big_endian(contents)
        code = f"{self._top}code/".lower()
        if self._named("constants.pkl") or any(name.startswith(code) for name in self._by_name):
            contents.notes.append(_SCRIPT)

    def _compare_checksums(self) -> None:
        """Compare those of the small records; the storages' are for whoever reads them. Some files have none: then all are 0."""
        with_bytes = [record for record in self._records if record.size and not record.problem]
        stored = [record for record in with_bytes if self._is_storage(record)]
        if stored and not any(record.crc32 for record in stored):
            self._contents.storages = [replace(storage, crc32=None) for storage in self._contents.storages]
            others = any(record.crc32 for record in with_bytes)
            self._contents.notes.append(_LEFT_OUT if others else _NO_CHECKSUMS)
        if not any(record.crc32 for record in with_bytes):
            return
        for record in with_bytes:
            small = not self._is_storage(record) and record.method == STORED and record.size < _PICKLE
            if small and checksum(self._info.path, record.offset, record.packed) != f"{record.crc32:08x}":
                message = f"Bytes of {record.name} have changed: they do not match its checksum."
                self._contents.trouble("torn", message, OLDER, record.name)

    # --- without the index

    def _without_index(self) -> int | None:
        """Take what the pickle at the beginning tells; about how many bytes the file should have, if that can be told."""
        pickle = first_record(self._file, self._info.size)
        if pickle is None or not pickle.name.lower().endswith("data.pkl"):
            return None
        unpickled = self._unpickled(pickle)
        if unpickled.cut:
            unpickled.problem = None  # it is the file that is cut
        self._content(unpickled, pickle.name)
        self._unsafe()
        lengths = [use.count * ITEM_SIZES[use.dtype] + _OVERHEAD for use in unpickled.storages if not use.inside]
        return unpickled.end + sum(lengths) if lengths else None


def _folder_of(records: list[Record]) -> str:
    """The folder that everything is in; torch goes by the first record."""
    first = records[0].name if records else ""
    return f"{first.partition('/')[0]}/" if "/" in first else ""
