"""`holdfast serve` as a process of its own, and the verbs that ask it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from every_case import every_case
from small_server import make_run

HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")


class Served(NamedTuple):
    """A server: its process, what a client writes after -t, and the runtime folder of its user."""

    process: subprocess.Popen[str]
    address: str
    runtime: Path
    run: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    run = make_run(folder / "runs", "node1")
    run.journal.write("finding", code="loss-spike", severity="critical", step=5, rank=0, evidence={"loss": 9.0})
    one = start(folder, "--listen", "127.0.0.1:0", "-t", str(run.path))
    yield Served(one.process, one.address, one.runtime, run.path)
    one.process.kill()
    one.process.wait()


def start(folder: Path, *words: str) -> Served:
    runtime = folder / "runtime"
    runtime.mkdir(exist_ok=True)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    process = subprocess.Popen([*HOLDFAST, "serve", *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.readline()
    found = re.search(r"-t (\S+)", said)
    assert found, said
    return Served(process, found[1], runtime, folder)


@pytest.fixture
def ask(server: Served, holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A verb, asked of the server by the same user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(server.runtime))
    return lambda verb, *words: holdfast(verb, "-t", server.address, *words)


def test_query_asks_a_server_as_it_asks_a_run(ask: Any) -> None:
    done = ask("query", "SELECT run, rank, COUNT(*) AS n, MAX(step) FROM steps GROUP BY ALL ORDER BY rank")
    assert done.code == 0 and done.err == ""
    assert done.out.splitlines() == ["run,rank,n,max(step)", "node1,0,100,99", "node1,1,100,99"]


def test_a_server_that_is_away_is_named_and_the_answer_is_of_the_others(ask: Any) -> None:
    done = ask("query", "-t", "127.0.0.1:1", "--json", "SELECT COUNT(*) AS n FROM steps")
    assert done.code == 1 and json.loads(done.out) == [{"n": 200}]
    assert "not in the answer: 127.0.0.1:1 cannot be reached: Connection refused." in done.err


def test_only_a_server_that_is_away_is_an_error(holdfast: Any) -> None:
    done = holdfast("query", "-t", "127.0.0.1:1", "SELECT 1")
    assert done.code == 2 and done.out == "" and done.err.startswith("error: 127.0.0.1:1 cannot be reached")


def test_a_mistake_in_the_sql_is_told_as_on_a_run(ask: Any) -> None:
    done = ask("query", "SELECT los FROM steps")
    assert done.code == 2 and "near it: loss" in done.err and "Traceback" not in done.err


def test_ps_shows_the_machine(ask: Any) -> None:
    done = ask("ps")
    assert done.code == 0 and done.out.splitlines()[0].split()[:3] == ["host", "run", "rank"]
    states = json.loads(ask("ps", "--json").out)
    assert [(state["name"], len(state["ranks"])) for state in states] == [("node1", 2)] and states[0]["host"]


def test_tables_counts_the_rows_there(ask: Any) -> None:
    done = ask("tables", "--json")
    assert done.code == 0, done.err
    found = {one["table"]: one for one in json.loads(done.out)}
    assert found["steps"]["rows"] == 200 and "host" in found["steps"]["columns"]


def test_journal_says_whose_an_entry_is_and_ends_with_1_for_a_critical_one(ask: Any, server: Served) -> None:
    done = ask("journal")
    assert done.code == 1 and "loss spike" in done.out and "node1" in done.out
    rows = json.loads(ask("journal", "--json").out)
    assert [(row["host"], row["run"], row["code"]) for row in rows] == [("node1", "node1", "loss-spike")]
    assert ask("journal", "--follow").code == 2


def test_tail_shows_the_run_there(ask: Any, server: Served) -> None:
    done = ask("tail", "--once")
    assert done.code == 0 and done.out.startswith("step 99 "), done.err
    lines = [json.loads(line) for line in ask("tail", "--json", "--once").out.splitlines()]
    assert [line["kind"] for line in lines] == ["state"] and lines[0]["name"] == "node1" and len(lines[0]["ranks"]) == 2


def test_diagnose_says_of_a_run_there_what_it_says_on_its_own_machine(ask: Any, server: Served, holdfast: Any) -> None:
    there = holdfast("diagnose", server.address, "--json")
    here = holdfast("diagnose", str(server.run), "--json")
    assert there.code == here.code == 1, there.err
    assert json.loads(there.out) == json.loads(here.out)


@every_case("verb", ["checkpoints list", "checkpoints verify", "checkpoints choose", "repl -t", "replay"])
def test_a_verb_that_needs_the_run_itself_says_so_and_what_to_do(server: Served, holdfast: Any, verb: str) -> None:
    done = holdfast(*verb.split(), server.address)
    assert done.code == 2 and "is a server" in done.err and "ssh" in done.err and "Traceback" not in done.err


def test_another_user_of_this_machine_needs_a_token(server: Served, holdfast: Any) -> None:
    done = holdfast("query", "-t", server.address, "SELECT 1")  # another runtime folder is another user
    assert done.code == 2 and "HOLDFAST_TOKEN" in done.err


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_another_uid_cannot_read_the_token_of_the_server(server: Served) -> None:
    path = server.runtime / "holdfast" / f"serve-{server.address.split(':')[1]}.token"
    assert path.exists()
    theirs = subprocess.run(["cat", str(path)], user=12345, group=12345, extra_groups=[], capture_output=True, check=False)
    assert theirs.returncode != 0 and theirs.stdout == b""


def test_terminate_ends_it_and_takes_its_token_away(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", ranks=1, steps=1)
    token = tmp_path / "token"
    subprocess.run([*HOLDFAST, "serve", "--new-token", str(token), "--token-name", "alice"], check=True, capture_output=True)
    one = start(tmp_path, "--listen", "localhost:0", "-t", str(run.path), "--token-file", str(token))
    assert list((tmp_path / "runtime" / "holdfast").glob("serve-*.token"))
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(600) == 0
    assert not list((tmp_path / "runtime" / "holdfast").glob("serve-*.token"))


def test_it_says_what_is_wrong_with_how_it_was_started(holdfast: Any, here: Path) -> None:
    for words in (
        ("--listen", "0.0.0.0:0"),
        ("--listen", "nonsense"),
        ("--listen", ":0", "--key", "k"),
        ("--listen", ":0", "-t", "x"),
    ):
        done = holdfast("serve", *words)
        assert done.code == 2 and done.err.startswith("error: ") and "  fix: " in done.err


def test_a_new_token_is_not_printed(holdfast: Any, here: Path) -> None:
    done = holdfast("serve", "--new-token", "tokens", "--read-only", "--token-name", "bob")
    text = (here / "tokens").read_text().split()
    assert done.code == 0 and text[0] == "bob" and text[1].startswith("ro_") and text[1] not in done.out + done.err


def test_without_an_address_only_this_machine_can_ask_and_is_told_so(tmp_path: Path) -> None:
    process = subprocess.Popen([*HOLDFAST, "serve"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.readline()
    process.terminate()
    process.wait(60)
    assert "127.0.0.1:8080" in said  # it serves there, or somebody else listens there already
