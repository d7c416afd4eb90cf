"""One table of one recording as a query reads it: Parquet files, then raw segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.probe.table_files import Owner, open_owned


@dataclass(frozen=True)
class Loaded:
    """Its rows, and what had to be left out of them."""

    table: pa.Table
    warnings: list[str]


def read_table(folder: Path, name: str, columns: Sequence[str] | None = None) -> Loaded:
    files = open_owned(name, [Owner(folder, 0, 0)])
    chosen = list(files.schema.names if columns is None else columns)
    parts = [files.stored(), files.live()] if files.fragments else [files.live()]
    tables = [part.scanner(chosen).to_reader().read_all() for part in parts]
    return Loaded(pa.concat_tables(tables), files.warnings)
