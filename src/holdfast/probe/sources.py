"""Where the tables of a query come from: a run folder of this machine, or a server on another (`remote_tables`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.probe.table_files import TableFiles, join, open_table, tables_of
from holdfast.signals.run_folder import RunFolder

_AT_ONCE = 32
One = TypeVar("One")


class Source(Protocol):
    """Somebody who has tables."""

    def tables(self) -> list[str]:
        """The names of those that can be asked for."""

    def open(self, name: str) -> TableFiles:
        """One of them; an empty one if it has no rows."""


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run folder. `labelled` adds the columns host and run, which tell runs apart that are asked together."""

    run: RunFolder
    labelled: bool = False

    def tables(self) -> list[str]:
        """Those of this version, then what else is in the folder."""
        return tables_of(self.run)

    def open(self, name: str) -> TableFiles:
        """The table over all ranks."""
        return open_table(self.run, name, labelled=self.labelled)


def all_tables(sources: Sequence[Source]) -> list[str]:
    """The tables of all sources, each name once."""
    return list(dict.fromkeys(name for names in _each(lambda source: source.tables(), sources) for name in names))


def open_all(sources: Sequence[Source], name: str) -> TableFiles:
    """One table of all sources together."""
    return join(name, _each(lambda source: source.open(name), sources))


def _each(job: Callable[[Source], One], sources: Sequence[Source]) -> list[One]:
    """All at the same time: one that is slow to answer costs no more than itself."""
    if len(sources) <= 1:
        return [job(source) for source in sources]
    with ThreadPoolExecutor(min(_AT_ONCE, len(sources))) as pool:
        return list(pool.map(job, sources))
