"""The raw segments of a recording's table as Arrow, without copying.

What was not measured becomes null; a loss that is NaN stays NaN. Segments of an older or newer version are united by
column name. String columns come as dictionaries, and the names are read after the rows, so that every code is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.probe.pieces import Pieces
from holdfast.signals.schema import MISSING_BITS, MISSING_INT, TABLES, Kind
from holdfast.signals.segment import Segment
from holdfast.signals.strings import read_strings

STRING = pa.dictionary(pa.int32(), pa.string())
_TYPES = {Kind.FLOAT: pa.float64(), Kind.INT: pa.int64(), Kind.STRING: STRING}


def read_live(folder: Path, pieces: Pieces, schema: pa.Schema) -> pa.Table:
    """The raw segments among the pieces of a recording's table, as one Arrow table of that schema."""
    names = read_names(folder) if _has_strings(schema) else None
    return _join([segment_table(segment, schema, names) for _, segment in pieces.segments], schema)


def known_schema(name: str, schemas: Iterable[pa.Schema] = ()) -> pa.Schema:
    """The columns of a table as Arrow: this version's, then those that only the files have."""
    fields = {c.name: pa.field(c.name, _TYPES[c.kind]) for c in TABLES[name].columns} if name in TABLES else {}
    for schema in schemas:
        for field in schema:
            fields.setdefault(field.name, pa.field(field.name, STRING if pa.types.is_dictionary(field.type) else field.type))
    return pa.schema(list(fields.values()))


def segment_schema(segment: Segment) -> pa.Schema:
    """The columns that a raw segment holds."""
    return pa.schema([(column.name, _TYPES[column.kind]) for column in segment.columns])


def segment_table(segment: Segment, schema: pa.Schema, names: pa.Array | None = None) -> pa.Table:
    """A raw segment's rows, in the columns of `schema`; they stay in the mapped file unless they are strings."""
    kinds = {column.name: column.kind for column in segment.columns}
    arrays = [
        _to_arrow(segment.column(field.name), kinds[field.name], names, field.type)
        if field.name in kinds
        else pa.nulls(segment.rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def read_names(folder: Path) -> pa.Array:
    """The dictionary of a recording's strings as Arrow."""
    return pa.array(read_strings(folder), pa.string())


def _has_strings(schema: pa.Schema) -> bool:
    return any(pa.types.is_dictionary(field.type) for field in schema)


def _to_arrow(values: npt.NDArray[Any], kind: Kind, names: pa.Array | None, wanted: pa.DataType) -> pa.Array:
    if kind is Kind.STRING:
        array = _strings(values, pa.array([], pa.string()) if names is None else names)
    elif kind is Kind.FLOAT:
        array = _column(values, values.view("<i8"), MISSING_BITS, pa.float64())
    else:
        array = _column(values, values, MISSING_INT, pa.int64())
    return array if array.type == wanted else _other_type(array, wanted)


def _column(values: npt.NDArray[Any], bits: npt.NDArray[np.int64], missing: int, kind: pa.DataType) -> pa.Array:
    """One pass finds out whether anything is missing: the pattern of a float is near the top of all, an int's the lowest."""
    if not len(values):
        return pa.array([], kind)
    may_miss = bits.max() >= missing if missing > 0 else bits.min() == missing
    return _with_nulls(values, bits != missing if may_miss else None, kind)


def _with_nulls(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    """An Arrow array over the same memory, with a bitmap if something is missing."""
    if valid is None:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    nulls = len(values) - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)], nulls)


def _strings(codes: npt.NDArray[np.int64], names: pa.Array) -> pa.Array:
    """Codes as a dictionary array; a code without a name (its line was lost) is null."""
    valid = (codes >= 0) & (codes < len(names))
    small = codes.astype(np.int32)
    indices = _with_nulls(small, None if valid.all() else valid, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, names)


def _other_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column whose type changed between versions: cast, or null where that makes no sense."""
    try:
        return array.cast(wanted, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(array), wanted)


def _join(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    if not parts:
        return schema.empty_table()
    return pa.concat_tables(parts).unify_dictionaries() if len(parts) > 1 else parts[0]
