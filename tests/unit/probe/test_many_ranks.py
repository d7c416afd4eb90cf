"""A run with more ranks than a process may have files open is asked as any other."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.probe.compact import compact
from holdfast.probe.sql import query
from holdfast.probe.table_files import together
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.segment import SegmentWriter, segment_path

RANKS = 200


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """200 ranks with 4 steps each; the loss of a rank is its number."""
    run = RunFolder.create(tmp_path_factory.mktemp("runs"), "many")
    table = TABLES["steps"]
    for rank in range(RANKS):
        folder = run.claim(rank).path / "steps"
        folder.mkdir()
        writer = SegmentWriter(segment_path(folder, 0), table, capacity=4, first_row=0)
        for step in range(4):
            known = {"step": step, "loss": float(rank)}
            writer.append([known.get(column.name, column.kind.missing) for column in table.columns])
        writer.seal()
    return run


@pytest.fixture
def few_files() -> Iterator[None]:
    """As on a system that gives a process 150 open files, and more if it asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this system gives no more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_every_rank_is_in_the_answer_raw_or_parquet(run: RunFolder) -> None:
    sql = "SELECT COUNT(DISTINCT rank), COUNT(*), SUM(loss), MAX(step) FROM steps"
    expected = [(RANKS, 4 * RANKS, 4.0 * sum(range(RANKS)), 3)]
    answer = query(run, sql)
    assert answer.rows == expected and not answer.notes
    one = query(run, "SELECT step, loss FROM steps WHERE rank = 7 AND step >= 2 ORDER BY step").rows
    assert one == [(2, 7.0), (3, 7.0)]
    for rank in range(20):
        compact(run.path / f"rank-{rank}", final=True)
    assert query(run, sql).rows == expected
    assert query(run, "SELECT step, loss FROM steps WHERE rank = 7 AND step >= 2 ORDER BY step").rows == one


def test_small_files_are_read_together_and_large_ones_alone() -> None:
    files = [SimpleNamespace(metadata=SimpleNamespace(num_rows=rows)) for rows in (100, 10, 10, 10, 10, 200, 5)]
    groups = [[one.metadata.num_rows for one in group] for group in together(files, 100, 3)]
    assert groups == [[100], [10, 10, 10], [10], [200], [5]]
    assert list(together([], 100, 3)) == []


def test_the_folder_of_a_rank_that_cannot_be_read_costs_that_rank_only(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "rank-200" / "steps").mkdir(parents=True)
    (run.path / "rank-200" / "steps" / "000000.seg").write_bytes(b"x" * 5000)
    (run.path / "rank-200" / "steps" / "000001.parquet").write_bytes(b"no parquet")
    answer = query(run, "SELECT COUNT(DISTINCT rank) FROM steps")
    assert answer.rows == [(RANKS,)] and len(answer.notes) == 2
