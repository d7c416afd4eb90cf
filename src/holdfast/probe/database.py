"""The DuckDB that queries run in: read-only, limited, and made once in a process, for making one costs more than most queries.

Each query has a connection of its own, and what it registers is seen by no other. A query that is left behind takes the database
with it: the next one gets a new one.
"""

from __future__ import annotations

import os
import threading

import duckdb

from holdfast.probe.views import loses_nan

Connection = duckdb.DuckDBPyConnection
MEMORY = "2GB"
_SETTINGS = {
    "threads": str(max(1, min(4, (os.cpu_count() or 2) // 2))),  # the training needs the processors more
    "memory_limit": f"'{MEMORY}'",
    "temp_directory": "''",
    "max_temp_directory_size": "'0KB'",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}
_OF_A_CONNECTION = ("python_enable_replacements",)


class Database:
    """Hands out connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: Connection | None = None
        self._process = 0

    def connect(self) -> Connection:
        """A new connection that can read what it is given and nothing else."""
        with self._lock:
            if self._made is None or self._process != os.getpid():  # a child that was forked must not touch its parent's
                self._made, self._process = make_database(), os.getpid()
            return self._made.cursor()

    def leave(self) -> None:
        """A query does not end: it keeps its database, and those that come get a new one."""
        with self._lock:
            self._made = None


def make_database() -> Connection:
    """A database of its own, with the same limits."""
    made = duckdb.connect(":memory:")
    if loses_nan(made):
        made.execute("SET GLOBAL disabled_optimizers='filter_pushdown'")
    for name, value in _SETTINGS.items():
        made.execute(f"SET {'GLOBAL ' if name in _OF_A_CONNECTION else ''}{name}={value}")
    return made


DATABASE = Database()
