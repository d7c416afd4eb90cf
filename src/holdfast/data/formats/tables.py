"""CSV, Parquet and JSONL tables, read with pyarrow in batches. Splits: by the names of the files, or by a column `split`."""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from json import dumps, loads
from pathlib import Path
from typing import IO, Any

import numpy as np

from holdfast import units
from holdfast.data.columns import Chunk, Column, Part, TableSet, rows_at_once
from holdfast.data.listing import Listing, split_named, suffix
from holdfast.data.problem import Fault

_TEXT = (".csv", ".tsv")
_PARQUET = (".parquet", ".pq")
_LINES = (".jsonl", ".ndjson")
ENDINGS = (*_TEXT, *_PARQUET, *_LINES)
_LONGEST_LINE = 64 << 20
_MOST_LINES = 10_000  # that cannot be read
_BLOCK = 4 << 20
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_TEXT_TYPE = "BYTE_ARRAY"  # how Parquet stores text and bytes
_DELTA_ROWS = 64  # at once, of words that are stored as differences: each may be as long as all before
_LONG = (
    1000  # letters of a value that is neither number nor text, such as a list of structures; longer ones are kept by their hash
)
_CONVERSION = re.compile(r"column #(\d+): .*conversion error")


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that these are tables; tables beside images describe those more often than they are the data."""
    files = listing.named_or_all(named, *ENDINGS)
    return (0.2 if listing.images() else 0.5) if files else None


def read(listing: Listing, named: str | None) -> TableSet:
    """The tables of a folder, or the one that was named."""
    files = [named] if named else listing.with_suffix(*ENDINGS)
    data = TableSet("table", listing.root, [])
    for file in files:
        data.parts.append(Part(split_named(file), file, partial(_chunks, listing.root / file, file, data.faults)))
    return data


def _chunks(path: Path, file: str, faults: list[Fault]) -> Iterator[Chunk]:
    ending = suffix(path.name)
    lines = partial(_json_tables, path, file, faults)
    for batch in _parquet(path) if ending in _PARQUET else _json_lines(lines) if ending in _LINES else _csv(path):
        if ending in _TEXT:
            _add_once(faults, (Fault("table-encoding", file, 0, f"column {name}") for name in _binary_columns(batch)))
        yield columns_of_batch(batch)


def _add_once(faults: list[Fault], more: Iterable[Fault]) -> None:
    faults += [fault for fault in more if fault not in faults]


def _binary_columns(batch: Any) -> list[str]:
    """The columns of a CSV that are no text: some of their bytes are not UTF-8."""
    import pyarrow as pa

    return [str(field.name) for field in batch.schema if pa.types.is_binary(field.type)]


def columns_of_batch(batch: Any) -> Chunk:
    """The columns of an Arrow batch whose structures were made flat; a second `a` is called `a.1`, as pandas does."""
    names: Counter[str] = Counter()
    chunk: Chunk = {}
    for place, name in enumerate(map(str, batch.schema.names)):
        chunk[f"{name}.{names[name]}" if names[name] else name] = _column(batch.column(place))
        names[name] += 1
    return chunk


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        columns = range(file.metadata.num_columns)
        described = [file.metadata.schema.column(column) for column in columns]
        texts = [leaf.path for leaf in described if leaf.physical_type == _TEXT_TYPE]
    with pq.ParquetFile(path, read_dictionary=texts) as file:  # equal words are stored once; so they are here
        for group in range(file.num_row_groups):  # all groups at once keep the whole file in memory
            next(file.iter_batches(batch_size=1, row_groups=[group]), None)  # raises where `column` would end the process
            of_group = file.metadata.row_group(group)
            chunks = [of_group.column(column) for column in columns]
            size = sum(
                max(int(chunk.total_uncompressed_size), 8 * int(chunk.num_values)) for chunk in chunks
            )  # runs take no bytes
            rows = rows_at_once(size / max(1, of_group.num_rows))
            deltas = any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)
            for batch in file.iter_batches(batch_size=min(rows, _DELTA_ROWS) if deltas else rows, row_groups=[group]):
                yield pa.Table.from_batches([batch]).flatten().combine_chunks().to_batches()[0] if batch.num_rows else batch


def _json_lines(read_tables: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The batches of a file with a JSON object a line. What columns there are is known when all lines were read once."""
    import pyarrow as pa

    kinds: dict[str, Any] = {}
    for table in read_tables():
        kinds |= {field.name: field.type for field in table.schema if not pa.types.is_null(field.type)} | {
            name: pa.null()
            for name in table.schema.names
            if name not in kinds and pa.types.is_null(table.schema.field(name).type)
        }
    for table in read_tables():
        columns = {
            name: table[name] if name in table.schema.names else pa.nulls(table.num_rows, kind) for name, kind in kinds.items()
        }
        yield from pa.table(columns).flatten().combine_chunks().to_batches() if table.num_rows else ()


def _json_tables(path: Path, file: str, faults: list[Fault]) -> Iterator[Any]:
    """Some lines at a time; a line that is no JSON object is a fault. ValueError where the others do not make one table."""
    import pyarrow as pa

    done, reported = 0, {(fault.file, fault.line) for fault in faults}
    with path.open("rb") as opened:
        while lines := list(_some_lines(opened, _BLOCK)):
            rows = {number: line for number, line in enumerate(lines, done + 1) if line.strip()}
            try:
                table = _json_table(rows.values())
            except pa.ArrowException:
                wrong = {number: reason for number, line in rows.items() if (reason := _not_an_object(line))}
                faults += [Fault("table-unreadable", file, *item) for item in wrong.items() if (file, item[0]) not in reported]
                if len(faults) > _MOST_LINES:
                    raise ValueError(
                        f"more than {_MOST_LINES:,} lines cannot be read, up to line {done + len(lines):,}"
                    ) from None
                table, mixed = _mixed_table([loads(line) for number, line in rows.items() if number not in wrong])
                _add_once(faults, (Fault("column-mixed", file, 0, f"column {name}") for name in mixed))
            if table is not None:
                yield table
            done += len(lines)


def _json_table(lines: Iterable[bytes]) -> Any:
    from pyarrow import json

    block = b"".join(lines)
    options = json.ReadOptions(use_threads=False, block_size=2 * len(block))
    return json.read_json(io.BytesIO(block), read_options=options) if block else None


def _mixed_table(rows: list[dict[str, Any]]) -> tuple[Any, list[str]]:
    """Rows that Arrow does not read itself: they hold NaN, or a column has values of different types, which become text."""
    import pyarrow as pa

    columns, mixed = {}, []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            columns[name] = pa.array([None if value is None else dumps(value) for value in values])
            mixed.append(name)
    return pa.table(columns) if rows else None, mixed


def _not_an_object(line: bytes) -> str:
    """What is wrong with a line, in words."""
    try:
        return "" if isinstance(loads(line), dict) else "not a JSON object"
    except (ValueError, RecursionError) as error:
        return str(error)[:200]


def _some_lines(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (line := file.readline(_LONGEST_LINE)):
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"a line of more than {units.size(_LONGEST_LINE)}")
        size -= len(line)
        yield line


def _csv(path: Path) -> Iterator[Any]:
    """The batches of a CSV. What a column holds is told by its first block; where a later one has other values, from there on."""
    import pyarrow as pa

    types: dict[str, Any] = {}
    rows = 0
    while True:
        try:
            for batch in _csv_batches(path, types, rows):
                yield batch
                rows += batch.num_rows
            return
        except pa.ArrowInvalid as error:
            wider = _wider(path, types, str(error))
            if wider is None:
                raise
            types |= wider


def _csv_batches(path: Path, types: dict[str, Any], skipped: int) -> Iterator[Any]:
    with _csv_reader(path, types) as reader:
        for batch in reader:
            rest, skipped = batch.slice(min(skipped, batch.num_rows)), max(0, skipped - batch.num_rows)
            if rest.num_rows:
                yield rest


def _csv_reader(path: Path, types: dict[str, Any]) -> Any:
    from pyarrow import csv

    with path.open("rb") as file:
        head = file.readline(1 << 16)
    if head.startswith(_UTF_16):
        raise ValueError("its text is UTF-16; save it as UTF-8")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ";" if head.count(b";") > head.count(b",") else ","
    options = csv.ReadOptions(block_size=_BLOCK, use_threads=False)
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    return csv.open_csv(path, read_options=options, parse_options=parsing, convert_options=csv.ConvertOptions(column_types=types))


def _wider(path: Path, types: dict[str, Any], error: str) -> dict[str, Any] | None:
    """The type that can hold what a column turned out to have: whole numbers become numbers, anything else text."""
    import pyarrow as pa

    match = _CONVERSION.search(error)
    if match is None:
        return None
    with _csv_reader(path, types) as reader:
        name, kind = reader.schema.names[int(match[1])], reader.schema.types[int(match[1])]
    if pa.types.is_string(kind):
        return None
    return {name: pa.float64() if pa.types.is_integer(kind) or pa.types.is_null(kind) else pa.string()}


def _column(values: Any) -> Column:
    """A column as numbers where it can be; missing values are NaN in numbers, and empty words elsewhere."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        counts = np.nan_to_num(values.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        return Column(_flat(values.flatten()), counts)
    if pa.types.is_fixed_size_list(kind) and not values.null_count:
        return Column(_flat(values.flatten()).reshape(len(values), -1))
    return Column(_flat(values))


def _flat(values: Any) -> Any:
    import pyarrow as pa

    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values.to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).fill_null(-1).to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(kind):
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.fill_null("").to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(kind):
        return _from_dictionary(values)
    texts = (str(value.as_py()) for value in values)
    return np.array([word if len(word) <= _LONG else f"{word[:_LONG]} {_digest(word)}" for word in texts], dtype=object)


def _from_dictionary(values: Any) -> Any:
    """Each different value once, however many rows have it: a few long texts may fill gigabytes otherwise."""
    import pyarrow as pa

    indices = values.indices.to_numpy(zero_copy_only=False)
    if values.null_count:
        indices = np.nan_to_num(indices, nan=-1).astype(np.int64)
    used, places = np.unique(indices, return_inverse=True)
    different = _flat(values.dictionary.take(pa.array(used[used >= 0])))
    if len(used) and used[0] < 0:
        missing = _flat(pa.array([None], values.type.value_type))
        different = np.concatenate([missing, different])
    return different[places]


def _digest(word: str) -> str:
    return hashlib.blake2b(word.encode("utf-8", "surrogatepass")).hexdigest()
