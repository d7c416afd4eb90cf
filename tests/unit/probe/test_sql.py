from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from every_case import every_case

from holdfast.errors import HoldfastError, QueryError, QueryTimeout, UnknownName
from holdfast.probe import sql as sql_module
from holdfast.probe import views
from holdfast.probe.compact import compact_run
from holdfast.probe.sql import query
from holdfast.probe.table_files import FewAtATime, open_table
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES, Column, Kind, Table
from holdfast.signals.segment import SegmentWriter, segment_path

TOP_MODULES = (
    "SELECT module, stage, COUNT(*) AS count, AVG(duration) AS avg_time, SUM(duration) AS total_time FROM python.torch_trace "
    "WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) GROUP BY module, stage ORDER BY total_time DESC LIMIT 10"
)
MEMORY_BY_STEP = (
    "SELECT step, MAX(allocated) AS peak_memory, MAX(allocated) - MIN(allocated) AS memory_range FROM python.torch_trace "
    "WHERE step > (SELECT MAX(step) - 20 FROM python.torch_trace) GROUP BY step ORDER BY step"
)


@pytest.fixture
def run(record: Any, row: Any) -> RunFolder:
    """Two ranks, 100 steps each, the loss of rank 1 NaN at step 50; modules at every tenth step."""
    for rank in (0, 1):
        recorder = record(rank)
        code = recorder.strings.code
        for step in range(100):
            loss = math.nan if (rank, step) == (1, 50) else 1 / (step + 1)
            recorder.table("steps").append(row("steps", step=step, loss=loss, time=float(step)))
            if step % 10 == 0:
                for stage in ("forward", "backward"):
                    values = {"module": code(f"layer{rank}"), "stage": code(stage), "seconds": 0.25, "host_rss": 1000 + step}
                    recorder.table("modules").append(row("modules", step=step, time=1.0, **values))
    return recorder.run


def rows(run: RunFolder, sql: str) -> list[tuple[Any, ...]]:
    return query(run, sql).rows


def test_all_ranks_are_in_one_table(run: RunFolder) -> None:
    assert rows(run, "SELECT rank, part, COUNT(*) FROM steps GROUP BY ALL ORDER BY rank") == [(0, 0, 100), (1, 0, 100)]


def test_rows_of_a_training_that_is_still_open_are_there(run: RunFolder, record: Any, row: Any) -> None:
    record(0).table("steps").append(row("steps", step=1000))
    assert rows(run, "SELECT rank, part FROM steps WHERE step = 1000") == [(0, 1)]


def test_the_two_well_known_queries_run_as_written(run: RunFolder) -> None:
    answer = query(run, TOP_MODULES)
    assert answer.columns == ["module", "stage", "count", "avg_time", "total_time"]
    assert sorted(answer.rows) == [(f"layer{r}", s, 1, 0.25, 0.25) for r in (0, 1) for s in ("backward", "forward")]
    assert rows(run, MEMORY_BY_STEP) == [(80, 1080, 0), (90, 1090, 0)]


def test_compaction_changes_no_answer(tiny_segments: None, run: RunFolder) -> None:
    asked = ("SELECT * FROM steps ORDER BY rank, step", MEMORY_BY_STEP, "SELECT step FROM steps WHERE isnan(loss) AND rank = 1")
    before = [repr(rows(run, sql)) for sql in asked]
    assert compact_run(run).segments > 6
    assert [repr(rows(run, sql)) for sql in asked] == before


@pytest.mark.parametrize("stored", [False, True])
def test_a_nan_loss_is_found_and_missing_is_null(tiny_segments: None, run: RunFolder, stored: bool) -> None:
    if stored:
        compact_run(run, final=True)
    assert rows(run, "SELECT rank, step FROM steps WHERE isnan(loss)") == [(1, 50)]
    assert rows(run, "SELECT rank, step FROM steps WHERE loss > 100") == [(1, 50)]  # SQL puts NaN above all numbers
    assert rows(run, "SELECT COUNT(*), COUNT(lr) FROM steps WHERE loss IS NOT NULL") == [(200, 0)]


def test_what_was_seen_from_outside_has_no_rank(run: RunFolder) -> None:
    folder = run.path / "host"
    (folder / "processes").mkdir(parents=True)
    writer = SegmentWriter(segment_path(folder / "processes", 0), TABLES["processes"], capacity=4, first_row=0)
    (folder / "strings.jsonl").write_text('"python train.py"\n"running"\n')
    writer.append([1.5, 7, 1, 0, 1, 4096, 0.5, 3])
    answer = query(run, "SELECT * FROM processes")
    assert answer.columns == list(TABLES["processes"].column_names)
    assert answer.rows == [(1.5, 7, 1, "python train.py", "running", 4096, 0.5, 3)]


def test_a_column_that_only_a_newer_version_writes_can_be_asked_for(run: RunFolder) -> None:
    columns = (Column("step", Kind.INT, ""), Column("mood", Kind.INT, ""))
    newer = Table(name="steps", a_row_is="", empty_because="", columns=columns)
    folder = run.claim(7).path / "steps"
    folder.mkdir()
    SegmentWriter(segment_path(folder, 0), newer, capacity=4, first_row=0).append([5, 42])
    assert rows(run, "SELECT step, mood, loss FROM steps WHERE rank = 7") == [(5, 42, None)]


def test_joins_views_and_case_are_understood(run: RunFolder) -> None:
    joined = "SELECT COUNT(*) FROM Steps s JOIN python.torch_trace t USING (step, rank)"
    assert rows(run, joined) == [(40,)]
    assert rows(run, "WITH worst AS (FROM STEPS WHERE loss < 0.02) SELECT COUNT(*) FROM worst") == [(99,)]


def test_the_row_limit_cuts_and_says_so(run: RunFolder) -> None:
    answer = query(run, "SELECT * FROM steps", limit=10)
    assert len(answer.rows) == 10 and answer.cut
    assert not query(run, "SELECT * FROM steps", limit=200).cut


def test_an_empty_table_says_why_and_how_to_fill_it(run: RunFolder) -> None:
    answer = query(run, "SELECT * FROM parameters")
    assert answer.rows == [] and answer.notes == [f"parameters is empty: {TABLES['parameters'].empty_because}"]
    assert query(run, "SELECT * FROM steps WHERE step > 1000").notes == []


def test_a_damaged_segment_is_noted_and_the_rest_answers(tiny_segments: None, run: RunFolder) -> None:
    with segment_path(run.path / "rank-0" / "steps", 1).open("r+b") as file:
        file.truncate(4500)
    answer = query(run, "SELECT COUNT(*) FROM steps WHERE rank = 0")
    assert answer.rows == [(68,)] and "000001.seg" in answer.notes[0]


def test_a_damaged_parquet_file_is_noted_and_the_rest_answers(tiny_segments: None, run: RunFolder) -> None:
    compact_run(run)
    (run.path / "rank-0" / "steps" / "000001.parquet").write_bytes(b"PAR1")
    answer = query(run, "SELECT COUNT(*) FROM steps WHERE rank = 0")
    assert answer.rows == [(68,)] and "000001.parquet" in answer.notes[0]


@every_case(
    ("sql", "near"),
    [
        ("SELECT * FROM step", "near it: steps"),
        ("SELECT * FROM torch_trace", "near it: python.torch_trace"),
        ("SELECT los FROM steps", "near it: loss"),
        ("SELECT s.grad_nrm FROM steps s", "near it: grad_norm"),
        ("SELECT loss FROM steps WHERE stp > 3", "near it: step"),
        ("SELECT nonsense FROM evaluations", "there are: rank, part, step"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(run: RunFolder, sql: str, near: str) -> None:
    with pytest.raises(UnknownName, match=near):
        query(run, sql)


@pytest.mark.parametrize(
    "sql", ["selec 1", "SELECT 1 +", "SELECT foo(1)", "SELECT step FROM steps WHERE loss = 'abc'", "SELECT ?"]
)
def test_wrong_sql_is_told_in_one_line(run: RunFolder, sql: str) -> None:
    with pytest.raises(QueryError) as caught:
        query(run, sql)
    assert "\n" not in caught.value.problem and len(caught.value.problem) < 200


@every_case(
    "sql",
    [
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO steps VALUES (1)",
        "COPY steps TO 'FILE'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'FILE'",
        "/* x */ EXPLAIN COPY (SELECT 1) TO 'FILE'",
        "EXPORT DATABASE 'FILE'",
        "ATTACH 'FILE' AS db",
        "SET memory_limit='100GB'",
        "PRAGMA enable_profiling",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "DROP VIEW steps",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW steps",
        "",
        "-- nothing",
    ],
)
def test_nothing_but_one_reading_statement_is_let_through(run: RunFolder, tmp_path: Path, sql: str) -> None:
    target = tmp_path / "made"
    with pytest.raises(QueryError):
        query(run, sql.replace("FILE", str(target)))
    assert not target.exists()


@every_case(
    "source",
    [
        "read_csv('FILE')",
        "read_text('FILE')",
        "read_blob('FILE')",
        "read_parquet('FILE')",
        "'FILE'",
        "glob('FILE')",
        "sniff_csv('FILE')",
    ],
)
def test_no_file_can_be_read(run: RunFolder, tmp_path: Path, source: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with pytest.raises(HoldfastError):
        query(run, f"SELECT * FROM {source}".replace("FILE", str(secret)))


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM t) SELECT COUNT(*) FROM t",
        "SELECT COUNT(*) FROM steps a, steps b, steps c, steps d, steps e WHERE a.loss + b.loss + c.loss + d.loss < e.loss",
    ],
)
def test_sql_that_never_ends_is_stopped_in_time(run: RunFolder, sql: str) -> None:
    start = time.monotonic()
    with pytest.raises(QueryTimeout):
        query(run, sql, timeout=0.5)
    assert time.monotonic() - start < 15


def test_a_query_that_does_not_hear_the_interrupt_still_returns_in_time(run: RunFolder) -> None:
    """DuckDB looks up between two blocks of rows only; one long function call does not. Leaves a thread: own process."""
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from holdfast.errors import QueryTimeout; from holdfast.probe.sql import query\n"
        "from holdfast.signals.run_folder import RunFolder\n"
        "start = time.monotonic()\n"
        "run = RunFolder(Path(sys.argv[1]))\n"
        "try: query(run, \"SELECT levenshtein(repeat('ab', 60000), repeat('ba', 60000))\", timeout=0.5)\n"
        "except QueryTimeout: print(time.monotonic() - start, flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, timeout=600, check=True)
    assert 0.5 <= float(done.stdout) < 1.5


def test_memory_is_limited(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sql_module._SETTINGS, "memory_limit", "'50MB'")
    monkeypatch.setattr(sql_module, "DATABASE", sql_module.Database())
    with pytest.raises(QueryError, match="memory"):
        query(run, "SELECT list(a.range) FROM range(40000000) a")


def test_queries_at_the_same_time_do_not_see_each_others_tables(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path / "others", "empty")
    sql = "SELECT COUNT(*), SUM(a.step) FROM steps a, range(20000) b"
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda one: query(one, sql).rows[0][0], [run, other] * 8))
    assert counts == [4_000_000, 0] * 8


def test_after_a_query_that_was_left_behind_the_next_one_has_a_database_of_its_own(run: RunFolder) -> None:
    before = sql_module.DATABASE.connect()
    sql_module.DATABASE.leave()
    after = sql_module.DATABASE.connect()
    before.execute("CREATE TABLE mark AS SELECT 1")
    with pytest.raises(duckdb.CatalogException):
        after.execute("SELECT * FROM mark")
    assert rows(run, "SELECT COUNT(*) FROM steps") == [(200,)]


def test_explain_describe_and_summarize_answer(run: RunFolder) -> None:
    assert query(run, "EXPLAIN SELECT * FROM steps").rows
    assert query(run, "EXPLAIN (FORMAT json) SELECT 1").rows
    assert rows(run, "DESCRIBE steps")[0][:2] == ("rank", "INTEGER")
    assert len(rows(run, "SUMMARIZE modules")) == len(TABLES["modules"].columns) + 2


def test_a_run_that_never_trained_answers_with_reasons(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "empty")
    answer = query(run, TOP_MODULES)
    assert answer.rows == [] and answer.notes == [f"modules is empty: {TABLES['modules'].empty_because}"]


def test_files_are_read_one_by_one_and_those_of_other_ranks_not_at_all(
    tiny_segments: None, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan of millions of steps must not be paid for the first ten of them, nor for another rank's."""
    compact_run(run, final=True)
    read: list[int] = []
    batches = FewAtATime._batches

    def counted(self: FewAtATime, *asked: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches(self, *asked):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(FewAtATime, "_batches", counted)
    reader = open_table(run, "steps").stored().scanner(columns=["step"]).to_reader()
    assert reader.read_next_batch().num_rows == 8 and read == [8]
    if views.loses_nan(duckdb.connect()):
        return  # then filters are kept away from Arrow altogether
    read.clear()
    assert rows(run, "SELECT COUNT(*) FROM steps WHERE rank = 1") == [(100,)]
    assert sum(read) == 100
    read.clear()
    assert rows(run, "SELECT COUNT(loss) FROM steps WHERE step >= 80 AND rank = 0") == [(20,)]
    assert sum(read) == 20
