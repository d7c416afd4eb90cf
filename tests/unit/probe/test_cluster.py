"""Several runs and servers are one answer, and who does not answer does not spoil it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_server import http_answer, impostor, make_run, served

from holdfast.errors import NoSuchRun, NotAllowed, QueryError, Unreachable, UsageError
from holdfast.probe.cluster import find, states_of
from holdfast.probe.cluster_query import describe_cluster, query_all
from holdfast.probe.cluster_ranks import refuse_several
from holdfast.probe.serve.server import Server
from holdfast.signals import registry
from holdfast.signals.run_folder import RunFolder

COUNT = "SELECT host, run, rank, COUNT(*) FROM steps GROUP BY ALL ORDER BY ALL"


def name(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, RunFolder]:
    """The ranks 0 and 1 on one machine, 2 and 3 on another."""
    folder = tmp_path_factory.mktemp("runs")
    found = make_run(folder, "node1"), make_run(folder, "node2", first=2, started=2000.0)
    for run in found:
        for recording in run.recordings():
            text = (recording.path / "process.json").read_text()
            (recording.path / "process.json").write_text(text.replace('"host": "', f'"host": "{run.name}", "was": "'))
    return found


@pytest.fixture
def two(runs: tuple[RunFolder, RunFolder]) -> Iterator[list[str]]:
    with served(runs[0]) as one, served(runs[1]) as other:
        yield [name(one), name(other)]


def test_ranks_of_two_machines_are_one_table(two: list[str]) -> None:
    cluster = find(two)
    answer = query_all(cluster, COUNT)
    expected = [(f"node{1 + rank // 2}", f"node{1 + rank // 2}", rank, 100) for rank in range(4)]
    assert answer.rows == expected and not cluster.problems


def test_numbers_missing_values_nan_and_names_come_through(two: list[str]) -> None:
    sql = (
        "SELECT SUM(samples), COUNT(lr), COUNT(*) FILTER (isnan(loss)), MIN(step), MAX(loss) FILTER (NOT isnan(loss)) FROM steps"
    )
    assert query_all(find(two), sql).rows == [(800, 0, 4, 0, 99.0)]
    names = query_all(find(two), "SELECT rank, name, split FROM evaluations ORDER BY rank").rows
    assert names == [(rank, f"metric {rank}", "valid") for rank in range(4)]


def test_one_server_answers_as_several_do(two: list[str]) -> None:
    both = query_all(find(two), "SELECT host, run, rank, step, loss FROM steps WHERE step < 5 AND rank < 2 ORDER BY ALL")
    alone = query_all(find(two[:1]), "SELECT host, run, rank, step, loss FROM steps WHERE step < 5 ORDER BY ALL")
    assert both.rows == alone.rows and both.columns == alone.columns


def test_a_run_here_and_one_there_are_asked_together(runs: tuple[RunFolder, RunFolder], two: list[str]) -> None:
    answer = query_all(
        find([str(runs[0].path), two[1]]), "SELECT host, COUNT(DISTINCT rank) FROM steps GROUP BY ALL ORDER BY ALL"
    )
    assert answer.rows == [("node1", 2), ("node2", 2)]


def test_only_the_columns_that_a_query_needs_are_fetched(two: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.probe.remote_tables import RemoteRuns

    fetched: list[set[str]] = []
    stream = RemoteRuns.stream
    monkeypatch.setattr(
        RemoteRuns,
        "stream",
        lambda self, name, columns, *more: fetched.append(set(columns)) or stream(self, name, columns, *more),
    )
    query_all(find(two), "SELECT rank, AVG(loss) FROM steps WHERE step > 50 GROUP BY rank")
    assert fetched == [{"rank", "loss", "step"}] * 2


def test_who_is_away_is_named_and_the_rest_answers(runs: tuple[RunFolder, RunFolder], two: list[str]) -> None:
    with served(runs[0]) as gone:
        away = name(gone)
    cluster = find([*two, away, "no-such-machine.invalid:80"])
    assert len(query_all(cluster, COUNT).rows) == 4
    assert set(cluster.problems) == {away, "no-such-machine.invalid:80"}
    assert all(isinstance(problem, Unreachable) for problem in cluster.problems.values())


def test_nobody_at_all_is_an_error() -> None:
    with pytest.raises(Unreachable):
        find(["127.0.0.1:1", "127.0.0.1:2"])


def test_a_local_name_that_is_wrong_is_an_error_however_many_answer(two: list[str]) -> None:
    with pytest.raises(NoSuchRun):
        find([*two, "no-such-run"])


@pytest.mark.parametrize("dies", ["at the names", "at the columns", "in the rows"])
def test_one_that_dies_while_it_is_asked_is_left_out_altogether(
    two: list[str], dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_0123456789abcdef")
    half = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\nabc"
    with serves_until(dies, half) as port:
        cluster = find([*two, f"127.0.0.1:{port}"])
        assert len(query_all(cluster, COUNT).rows) == 4
        assert list(cluster.problems) == [f"127.0.0.1:{port}"]


@contextlib.contextmanager
def serves_until(dies: str, half: bytes) -> Iterator[int]:
    """A server that answers the first questions as it should and then dies in the middle of one."""
    import base64

    import pyarrow as pa

    schema = pa.schema(
        [("host", pa.string()), ("run", pa.string()), ("rank", pa.int32()), ("part", pa.int32()), ("step", pa.int64())]
    )
    about = {"schema": base64.b64encode(schema.serialize()).decode(), "rows": 5, "warnings": [], "opened": "x"}
    answers = {
        "/v1/hello": http_answer({"holdfast": "0", "protocol": 1}),
        "/v1/runs": http_answer({"host": "h", "server": "s", "runs": [{"name": "r", "id": "i"}]}),
        "/v1/tables": half if dies == "at the names" else http_answer(["steps"]),
        "/v1/tables/steps": half if dies == "at the columns" else http_answer(about),
        "/v1/tables/steps/rows": half,
    }
    with impostor(*[lambda data: answers[data.split()[1].decode().partition("?")[0]]] * 2) as (port, _):
        yield port


def test_a_server_that_is_named_twice_is_asked_once(runs: tuple[RunFolder, RunFolder]) -> None:
    with served(runs[0]) as server:
        cluster = find([f"127.0.0.1:{server.port}", f"localhost:{server.port}", f"127.0.0.1:{server.port}"])
        assert len(cluster.there) == 1 and len(cluster.notes) == 1
        assert query_all(cluster, "SELECT COUNT(*) FROM steps").rows == [(200,)]


def test_a_run_that_two_servers_have_is_read_once(runs: tuple[RunFolder, RunFolder]) -> None:
    with served(runs[0]) as one, served(*runs) as other:
        cluster = find([name(one), name(other)])
        assert query_all(cluster, "SELECT COUNT(*) FROM steps").rows == [(400,)]
        both = find([str(runs[0].path), name(one)])
        assert query_all(both, "SELECT COUNT(*) FROM steps").rows == [(200,)] and both.notes


def test_one_run_of_a_server_is_chosen_by_its_name(runs: tuple[RunFolder, RunFolder]) -> None:
    with served(*runs) as server:
        assert query_all(find([f"{name(server)}/node2"]), "SELECT DISTINCT run FROM steps").rows == [("node2",)]
        with pytest.raises(NoSuchRun, match="no run node7") as caught:
            find([f"{name(server)}/node7"])
        assert "node1, node2" in caught.value.problem


def test_code_and_changes_for_a_server_of_several_runs_are_refused_until_one_is_named(runs: tuple[RunFolder, RunFolder]) -> None:
    with served(*runs) as server:
        with pytest.raises(UsageError, match="serves several runs: node1, node2") as caught:
            refuse_several(find([name(server)]))
        assert caught.value.fix == f"name one: -t {name(server)}/node1; or --all"
        refuse_several(find([f"{name(server)}/node2"]))


def test_a_server_without_runs_says_so(runs: tuple[RunFolder, RunFolder]) -> None:
    with served() as server, pytest.raises(NoSuchRun, match="serves no run"):
        find([name(server)])


def test_a_token_that_it_does_not_know_counts_as_not_answering(two: list[str], runs: tuple[RunFolder, RunFolder]) -> None:
    from holdfast.probe.serve.tokens import local_file

    with served(runs[0], wrong_token_seconds=0.01) as locked:
        local_file(locked.port).unlink()
        cluster = find([*two, name(locked)])
        assert len(query_all(cluster, COUNT).rows) == 4
        assert isinstance(cluster.problems[name(locked)], NotAllowed)


def test_a_mistake_in_the_sql_is_told_as_on_one_run(two: list[str]) -> None:
    with pytest.raises(QueryError, match="near it: loss"):
        query_all(find(two), "SELECT los FROM steps")


def test_all_means_every_live_run_here(tmp_path: Path, runs: tuple[RunFolder, RunFolder]) -> None:
    import os

    with pytest.raises(NoSuchRun):
        find([], everything=True)
    registry.register(runs[0], os.getpid())
    registry.register(runs[1], os.getppid())
    answer = query_all(find([], everything=True), "SELECT run, COUNT(*) FROM steps GROUP BY ALL ORDER BY ALL")
    assert answer.rows == [("node1", 200), ("node2", 200)]


def test_states_and_tables_of_all_of_them(two: list[str]) -> None:
    cluster = find(two)
    assert [(state.name, [rank.step for rank in state.ranks]) for _, state in states_of(cluster)] == [
        ("node1", [99, 99]),
        ("node2", [99, 99]),
    ]
    steps = next(one for one in describe_cluster(cluster) if one.table == "steps")
    assert steps.rows == 400 and list(steps.columns)[:4] == ["host", "run", "rank", "part"]


def test_more_than_fits_here_is_refused_in_words(two: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.probe.table_files._DISTANT_BYTES", 1000)
    with pytest.raises(QueryError, match="too much to bring here"):
        query_all(find(two), "SELECT AVG(loss) FROM steps")
