"""What was found last time, so that a second look at files that did not change is quick. It lies in the user's cache folder.

A file counts as unchanged while its path, size and time of change are the same. Everything is plain JSON in a SQLite file;
where that cannot be written or read, validation goes on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_VERSION = 8  # raise it whenever facts or problems change their meaning
_KEPT = 200  # cache files; the oldest go first
_as_json = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes a new encoder for each sample


def cache_folder() -> Path:
    """Where the caches lie: HOLDFAST_CACHE, or the user's cache folder."""
    chosen = os.environ.get("HOLDFAST_CACHE")
    if chosen:
        return Path(chosen)
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "holdfast" / "data"


def fingerprint(*parts: object) -> str:
    """A short word for anything; the same for the same."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(repr(part).encode("utf-8", errors="surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


def stamp_of(path: Path | None) -> tuple[int, int] | None:
    """The size and time of a file that was named beside the data; None if there is none."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_size, status.st_mtime_ns) if status else None


def fingerprint_of_files(files: Mapping[str, tuple[int, int]], *parts: object) -> str:
    """The same for all files, their sizes and times."""
    digest = hashlib.blake2b(fingerprint(*parts).encode(), digest_size=16)
    for path, (size, when) in files.items():
        digest.update(f"{path}\0{size}\0{when}\n".encode("utf-8", errors="surrogatepass"))
    return digest.hexdigest()


class Cache:
    """Facts by sample and whole reports by fingerprint. Without a folder it remembers nothing. Use as a context."""

    def __init__(self, folder: Path | None, *key: object) -> None:
        self._database: sqlite3.Connection | None = None
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{fingerprint(_VERSION, *key)}.sqlite"
            if not path.exists():
                _make_room(folder)
            self._database = sqlite3.connect(path, timeout=5, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=OFF")
            for table in ("facts", "reports"):
                columns = "name TEXT PRIMARY KEY, stamp TEXT, content TEXT"
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) WITHOUT ROWID")
        except (sqlite3.Error, OSError):
            self.close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def stamps(self) -> dict[str, str]:
        """All samples that are remembered: name to stamp."""
        return dict(self._ask("SELECT name, stamp FROM facts"))

    def facts_of(self, name: str) -> Any:
        """What is remembered of a sample; None where that is gone."""
        for (content,) in self._ask("SELECT content FROM facts WHERE name = ?", name):
            return json.loads(content)
        return None

    def keep_facts(self, rows: Iterable[tuple[str, str, Any]]) -> None:
        """Remember samples: name, stamp, and what JSON can hold."""
        if self._database is not None:
            made = [(name, stamp, _as_json(content)) for name, stamp, content in rows]
            self._write("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", made)

    def report(self, stamp: str) -> Any:
        """The report of files that have this fingerprint; None where there is none."""
        for (content,) in self._ask("SELECT content FROM reports WHERE name = 'last' AND stamp = ?", stamp):
            with contextlib.suppress(ValueError):
                return json.loads(content)
        return None

    def keep_report(self, stamp: str, content: Any) -> None:
        """Remember a report."""
        self._write("INSERT OR REPLACE INTO reports VALUES ('last', ?, ?)", [(stamp, json.dumps(content))])

    def _ask(self, question: str, *values: str) -> list[Any]:
        with contextlib.suppress(sqlite3.Error):
            return self._database.execute(question, values).fetchall() if self._database is not None else []
        return []

    def _write(self, statement: str, rows: Sequence[tuple[str, ...]]) -> None:
        if self._database is None or not rows:
            return
        try:
            self._database.execute("BEGIN")
            self._database.executemany(statement, rows)
            self._database.execute("COMMIT")
        except sqlite3.Error:
            self.close()


def _make_room(folder: Path) -> None:
    """Remove the caches that were not used for longest."""
    for path in sorted(folder.glob("*.sqlite"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        path.unlink(missing_ok=True)
