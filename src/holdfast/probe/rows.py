"""The last rows of a table as numpy columns, from the newest files only: what `ps` and `tail` look at many times a second."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.errors import DamagedSegment
from holdfast.probe.pieces import newest_first, newest_raw
from holdfast.signals.run_folder import printed_folder
from holdfast.signals.schema import TABLES, Kind
from holdfast.signals.segment import Segment

Column = npt.NDArray[Any]


def last_rows(folder: Path, table: str, columns: Sequence[str], count: int) -> dict[str, Column]:
    """The last `count` rows at most, oldest first; missing values keep their pattern, see `signals.view.measured`.

    Strings come as text (object arrays, None where missing). `folder` is a recording's.
    """
    if table != "evaluations" or not (printed := printed_folder(folder)).is_dir():
        return _last_rows(folder, table, columns, count)
    timed = tuple(dict.fromkeys((*columns, "time")))
    both = in_order([_last_rows(part, table, timed, count) for part in (folder, printed)])
    return {name: both[name][-count:] for name in columns}


class NewestRow(NamedTuple):
    """The newest row of a table, each value as an array of one, and whether the table is closed."""

    values: dict[str, Column]
    sealed: bool


def newest_row(folder: Path, table: str, columns: Sequence[str]) -> NewestRow | None:
    """The newest row of a table without text, from one file; None if it has none."""
    if (newest := newest_raw(folder / table)) is not None:
        with contextlib.suppress(OSError, DamagedSegment):
            segment = Segment(Path(newest))
            if segment.rows and not segment.sealed:
                return NewestRow({name: segment.column(name)[-1:] for name in columns}, sealed=False)
    sealed = True
    for _, piece in newest_first(folder / table):
        if isinstance(piece, Segment):
            sealed = sealed and piece.sealed
            if piece.rows:
                return NewestRow({name: piece.column(name)[-1:] for name in columns}, sealed)
        elif len((part := _from_parquet(piece, table, columns, 1))[columns[0]]):
            return NewestRow(part, sealed)
    return None


def in_order(parts: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """The rows of several parts of a table as one, by their time."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(joined["time"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def _last_rows(folder: Path, table: str, columns: Sequence[str], count: int) -> dict[str, Column]:
    parts: list[dict[str, Column]] = []
    wanted = count
    for _, piece in newest_first(folder / table):
        try:
            read = _from_segment if isinstance(piece, Segment) else _from_parquet
            part = read(piece, table, columns, wanted)  # type: ignore[arg-type]
        except (OSError, ValueError):
            continue  # a damaged Parquet file; `query` reports it
        parts.append(part)
        wanted -= len(part[columns[0]])
        if wanted <= 0:
            break
    parts.append({name: _empty(0, table, name) for name in columns})
    joined = {name: np.concatenate([part[name] for part in reversed(parts)]) for name in columns}
    return {name: _text(folder, values) if _kind(table, name) is Kind.STRING else values for name, values in joined.items()}


@functools.cache
def _kind(table: str, column: str) -> Kind:
    return next(field.kind for field in TABLES[table].columns if field.name == column)


def _empty(count: int, table: str, column: str) -> Column:
    kind = _kind(table, column)
    return np.full(count, kind.missing, dtype=object if kind is Kind.STRING else kind.dtype)


def _from_segment(segment: Segment, table: str, columns: Sequence[str], count: int) -> dict[str, Column]:
    here = {column.name: column.kind for column in segment.columns}
    rows = min(count, segment.rows)
    values = {name: segment.column(name)[segment.rows - rows :] for name in columns if name in here}
    return {
        name: values[name].astype(object if here[name] is Kind.STRING else _kind(table, name).dtype)
        if name in values
        else _empty(rows, table, name)
        for name in columns
    }


def _from_parquet(path: Path, table: str, columns: Sequence[str], count: int) -> dict[str, Column]:
    """The same from a Parquet segment; only then is pyarrow needed."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    table_rows = file.read([name for name in columns if name in file.schema_arrow.names])
    rows = min(count, file.metadata.num_rows)
    table_rows = table_rows.slice(file.metadata.num_rows - rows)
    return {
        name: _column(table_rows.column(name), table, name) if name in table_rows.column_names else _empty(rows, table, name)
        for name in columns
    }


def _column(values: Any, table: str, name: str) -> Column:
    kind = _kind(table, name)
    if kind is Kind.STRING:
        return np.array(values.to_pylist(), dtype=object)
    valid = np.asarray(values.is_valid())
    result = np.full(len(values), kind.missing, kind.dtype)
    result[valid] = values.drop_null().to_numpy()
    return result


def _text(folder: Path, values: Column) -> Column:
    """Codes as text; what came from Parquet is text already."""
    from holdfast.signals.strings import read_strings

    names = read_strings(folder)
    text = [names[v] if isinstance(v, int) and 0 <= v < len(names) else v if isinstance(v, str) else None for v in values]
    return np.array(text, dtype=object)
