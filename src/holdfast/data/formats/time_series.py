"""Time series in `.ts` files, as sktime and the UEA/UCR archive have them: `@` lines, then a case a line.

Dimensions are separated by `:`, values by `,`; `?` is missing; the class or target stands last. Time stamps, as in `(t,v),(t,v)`,
are skipped. Memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from holdfast.data.columns import Array, Chunk, Column, Part, TableSet, rows_at_once
from holdfast.data.listing import Listing, split_named
from holdfast.data.problem import Fault

_LONGEST_LINE = 64 << 20
_MOST_FAULTS = 1000  # lines of a file that are named


@dataclass(slots=True)
class _Header:
    """What the lines that begin with `@` say."""

    labelled: bool = False  # a class (`@classLabel true …`) or a target (`@targetLabel true`) stands last
    classes: frozenset[str] = frozenset()
    is_target: bool = False

    def add(self, line: str) -> None:
        """One line."""
        name, *values = line.split()
        if name.lower() in ("@classlabel", "@targetlabel") and values:
            self.labelled = values[0].lower() == "true"
            self.is_target = name.lower() == "@targetlabel"
            self.classes = frozenset(values[1:])


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that these are time series; TypeScript has the same ending."""
    for file in listing.named_or_all(named, ".ts")[:5]:
        with (listing.root / file).open("rb") as opened:
            if b"@data" in opened.read(1 << 20).lower():
                return 0.95
    return None


def read(listing: Listing, named: str | None) -> TableSet:
    """One part for each file."""
    data = TableSet("ts", listing.root, [])
    for file in [named] if named else listing.with_suffix(".ts"):
        data.parts.append(Part(split_named(file), file, partial(_chunks, listing.root / file, file, data.faults)))
    return data


def _chunks(path: Path, file: str, faults: list[Fault]) -> Iterator[Chunk]:
    """Cases in chunks of about 32 MB. A line that cannot be read is a fault; the others are kept."""
    cases: list[tuple[list[Array], str]] = []
    reported = {(fault.file, fault.line) for fault in faults}
    with path.open("rb") as opened:
        header, lines = _Header(), enumerate(iter(partial(opened.readline, _LONGEST_LINE), b""), 1)
        for _, line in lines:
            if (text := line.decode("utf-8", errors="replace").strip()).lower() == "@data":
                break
            if text.startswith("@"):
                header.add(text)
        else:
            raise ValueError("there is no line @data")
        width = 0
        for number, line in lines:
            try:
                case = _case(line.decode("utf-8", errors="replace").strip(), header, width)
            except ValueError as error:
                if (file, number) not in reported and len(reported) < _MOST_FAULTS:
                    faults.append(Fault("table-unreadable", file, number, str(error)[:200]))
                    reported.add((file, number))
                continue
            if case is None:
                continue
            width = width or len(case[0])
            cases.append(case)
            if len(cases) >= rows_at_once(sum(dimension.nbytes for dimension in case[0])):
                yield _chunk(cases, header)
                cases = []
        if cases:
            yield _chunk(cases, header)


def _case(line: str, header: _Header, width: int) -> tuple[list[Array], str] | None:
    """The series of a case and its class; None for a comment or an empty line."""
    if not line or line.startswith(("#", "%")):
        return None
    parts = line.split(":")
    label = parts.pop().strip() if header.labelled else ""
    if header.classes and label not in header.classes:
        raise ValueError(f"class {label[:40]!r} is not in @classLabel")
    if width and len(parts) != width:
        raise ValueError(f"{len(parts)} dimensions, where the first case has {width}")
    return [_series(part) for part in parts], label


def _series(text: str) -> Array:
    """The values of one dimension; of pairs `(time,value)` the value."""
    if text.lstrip().startswith("("):
        values = [pair.rpartition(",")[2].strip() for pair in text.strip().strip("()").split("),(")]
    else:
        values = [word.strip() for word in text.split(",")] if text.strip() else []
    return np.array([np.nan if word in ("?", "") else float(word) for word in values], np.float64)


def _chunk(cases: list[tuple[list[Array], str]], header: _Header) -> Chunk:
    """A column for each dimension, jagged where the series differ in length, and one for the label."""
    chunk: Chunk = {}
    for place in range(len(cases[0][0])):
        series = [case[0][place] for case in cases]
        counts = np.array([len(values) for values in series], np.int64)
        same = len(set(counts.tolist())) == 1 and counts[0] > 0
        chunk[f"dim_{place}"] = Column(np.stack(series)) if same else Column(np.concatenate(series), counts)
    if header.labelled:
        labels = [case[1] for case in cases]
        chunk["label"] = Column(
            np.array([float(word) for word in labels]) if header.is_target else np.array(labels, dtype=object)
        )
    return chunk
