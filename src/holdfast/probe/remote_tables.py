"""The tables of a server as another source of the same views: a query reads only the columns that it needs of them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError, Unreachable
from holdfast.probe.remote import Remote
from holdfast.probe.table_files import TableFiles

_ALL_BYTES = 2 << 30  # of one part in the memory of who asks


class RemoteRuns:
    """Some runs of a server, all under their names in the columns host and run. What it could not do is in `problem`."""

    def __init__(self, remote: Remote, runs: Sequence[str], *, seconds: float) -> None:
        self.remote, self.runs, self._seconds = remote, list(runs), seconds
        self.problem: HoldfastError | None = None
        self._names: list[str] | None = None

    def tables(self) -> list[str]:
        """The names of its tables."""
        if self._names is None:
            self._names = self._get("/v1/tables") or []
        return self._names

    def open(self, name: str) -> TableFiles:
        """One of them; nothing of its rows has come yet."""
        table = TableFiles(name, labelled=True)
        about = self._get(f"/v1/tables/{name}") if name in self.tables() else None
        if about is not None:
            part = RemotePart(self, name, about)
            table.distant = [part]
            table.warnings = [f"{self.remote}: {warning}" for warning in part.warnings]
            whose = {field.name for field in table.owner_fields}
            table.schema = pa.schema([field for field in part.schema if field.name not in whose])
        return table

    def fail(self, error: HoldfastError) -> None:
        """Remember the first thing that went wrong; from then on it is not asked any more."""
        self.problem = self.problem or error

    def _get(self, path: str) -> Any:
        if self.problem is not None:
            return None
        try:
            return self.remote.get(path, run=self.runs, seconds=self._seconds)
        except HoldfastError as error:
            self.fail(error)
            return None

    def stream(self, name: str, columns: Sequence[str], opened: str) -> pa.Table:
        """These columns of all rows that a table had when it was opened."""
        options = {"run": self.runs, "column": list(columns), "opened": opened}
        with self.remote.ask("GET", f"/v1/tables/{name}/rows", None, options, self._seconds) as response:
            return _read_all(response, self.remote)


class RemotePart:
    """One table there. Columns that were fetched are kept, in case a query reads the table twice."""

    def __init__(self, source: RemoteRuns, name: str, about: dict[str, Any]) -> None:
        self._source, self._name = source, name
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"])))
        self.rows = int(about["rows"])
        self.warnings = [str(warning) for warning in about["warnings"]]
        self._opened = str(about["opened"])
        self._kept: dict[tuple[str, ...], pa.Table] = {}

    def load(self, columns: list[str]) -> pa.Table:
        """These columns; none of them, and the source has failed, if it breaks off."""
        there = tuple(name for name in columns if name in self.schema.names)
        if there not in self._kept and self._source.problem is None:
            try:
                self._kept[there] = self._source.stream(self._name, there or self.schema.names[:1], self._opened)
            except HoldfastError as error:
                self._source.fail(error)
        return self._kept.get(there, self.schema.empty_table())


def _read_all(response: Any, remote: Remote) -> pa.Table:
    """All batches, and then the end of the answer: without it, it was cut off."""
    batches, size = [], 0
    try:
        with pa.ipc.open_stream(pa.PythonFile(response, "r")) as reader:
            for batch in reader:
                size += batch.nbytes
                if size > _ALL_BYTES:
                    raise Unreachable(f"{remote} sends more than {size(_ALL_BYTES)}.", fix="ask it alone: its SQL runs there")
                batches.append(batch)
            table = pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise Unreachable(
            f"{remote} closed the connection in the middle of its answer.", fix="check whether it still runs"
        ) from error
    if response.read(1):
        raise Unreachable(f"{remote} answers with more than a table.", fix="install the same version on both machines")
    return table
