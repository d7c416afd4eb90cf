"""A training on two machines is asked and changed through their servers: here two runs that share only the process group."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, Done, start, typed, wait_until

from holdfast.probe.changing import ranks_to_ask
from holdfast.probe.serve.tokens import add_to_file
from holdfast.signals.run_folder import RunFolder


class Two:
    """The two runs, and a terminal somewhere else."""

    def __init__(self, folder: Path, reader: str) -> None:
        self.folder, self.reader = folder, reader
        self.runs = [RunFolder(folder / f"node{number}" / "runs" / f"node{number}") for number in (0, 1)]

    def wait(self) -> None:
        for run in self.runs:
            wait_until(lambda run=run: (run.path / "serve.json").exists() and bool(self._ranks(run)), 90)  # type: ignore[misc]

    def _ranks(self, run: RunFolder) -> list[Any]:
        from holdfast.probe.control_client import listening

        return listening(run)

    @property
    def addresses(self) -> list[str]:
        return [json.loads((run.path / "serve.json").read_text())["address"] for run in self.runs]

    def type(self, verb: str, *words: str, whom: tuple[int, ...] = (0, 1)) -> Done:
        """`holdfast VERB -t … -t … WORDS`."""
        return typed(verb, *(word for number in whom for word in ("-t", self.addresses[number])), *words)

    def changes(self, number: int) -> list[dict[str, Any]]:
        return [row for row in self.runs[number].journal if row["kind"] == "change"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("machines")
    token = add_to_file(folder / "tokens", name="alice")
    reader = add_to_file(folder / "tokens", name="bob", read_only=True)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    processes = []
    for number in (0, 1):
        (folder / f"node{number}").mkdir()
        group = {"RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        listen = {"HOLDFAST_LISTEN": "127.0.0.1:0", "HOLDFAST_TOKEN_FILE": str(folder / "tokens")}
        words = ("--name", f"node{number}", "--", PYTHON, str(VICTIMS / "ranks_that_are_asked.py"))
        processes.append(start(folder / f"node{number}", *words, env={**group, **listen}))
    two = Two(folder, reader.text)
    before = dict(os.environ)
    os.environ |= {"HOLDFAST_TOKEN": token.text, "XDG_RUNTIME_DIR": str(folder)}
    try:
        two.wait()
        yield two
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=600)
        os.environ.clear()
        os.environ.update(before)


def test_code_runs_in_every_rank_and_each_answer_says_whose_it_is(two: Two) -> None:
    host = socket.gethostname()
    done = two.type("eval", "dist.get_rank(), dist.get_world_size()")
    assert done.stdout.splitlines() == [f"{host} rank 0: (0, 2)", f"{host} rank 1: (1, 2)"] and done.returncode == 0
    rows = json.loads(two.type("eval", "--json", "dist.get_rank()").stdout)
    assert [(row["run"], row["rank"], row["value"]) for row in rows] == [("node0", 0, "0"), ("node1", 1, "1")]
    assert two.type("eval", "1 / 0").returncode == 1
    assert two.type("eval", "--rank", "1", "dist.get_rank()").stdout == "1\n"


def test_a_change_is_made_on_both_machines_between_the_same_two_steps(two: Two) -> None:
    done = two.type("set", "--json", "lr*=0.5")
    first, second = json.loads(done.stdout)
    assert done.returncode == 0 and first["step"] == second["step"] and first["number"] == second["number"]
    for number in (0, 1):
        row = two.changes(number)[-1]
        assert row["who"] == "alice from 127.0.0.1" and row["number"] == first["number"]
    assert two.type("undo", str(first["number"])).returncode == 0
    assert "alice from 127.0.0.1" in two.type("journal").stdout


def test_a_change_that_would_reach_one_machine_only_is_refused(two: Two) -> None:
    before = len(two.changes(0))
    done = two.type("set", "lr*=0.5", whom=(0,))
    assert done.returncode == 2 and "rank 1 cannot be asked" in done.stderr and "name every machine" in done.stderr
    done = two.type("set", "lr*=0.5", "-t", "127.0.0.1:1")
    assert done.returncode == 2 and "nothing was changed" in done.stderr
    assert len(two.changes(0)) == before


def test_code_is_run_where_it_can_and_who_is_away_is_named(two: Two) -> None:
    done = two.type("eval", "dist.get_rank()", "-t", "127.0.0.1:1")
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 2 and "127.0.0.1:1 cannot be reached" in done.stderr


def test_a_token_that_only_reads_neither_runs_code_nor_changes(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", two.reader)
    for words in (("eval", "1"), ("set", "lr=1"), ("pause",)):
        done = two.type(*words)
        assert done.returncode == 2 and "bob may only read" in done.stderr, done
    assert two.type("query", "SELECT COUNT(*) > 0 AS moving FROM steps").stdout == "moving\nTrue\n"


def test_stacks_of_both_machines_are_one_report(two: Two) -> None:
    done = two.type("backtrace", "--json", "--no-native")
    (report,) = json.loads(done.stdout)
    ranks = {one["rank"] for one in report["processes"] if one["role"].startswith("rank")}
    assert ranks == {0, 1} and done.returncode == 0, done.stderr
    assert (two.runs[0].path / "host" / "stacks").is_dir()


def test_the_ranks_end_alike(two: Two) -> None:
    assert two.type("eval", "finish = True", whom=(1,)).returncode == 0  # one is enough, and the other may end before it answers
    wait_until(lambda: not any(ranks_or_none(run) for run in two.runs))


def ranks_or_none(run: RunFolder) -> list[Any]:
    from holdfast.errors import HoldfastError

    with contextlib.suppress(HoldfastError):
        return list(ranks_to_ask(run))
    return []
