"""What the nodes of a run tell each other: who is there, what node 0 has decided, where a failure began."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from every_case import every_case
from small_server import make_run, served

from holdfast.errors import UsageError
from holdfast.probe.address import parse
from holdfast.probe.remote import Remote
from holdfast.probe.rows import last_rows
from holdfast.probe.serve.node_files import write_pieces
from holdfast.signals.actions import QUEUE, Action
from holdfast.signals.nodes import ENDED, RUN, RUNNING, NodeState, Plan, read_nodes, read_plan
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.facts import is_elastic, may_lose_nodes
from holdfast.supervisor.following import Follower
from holdfast.supervisor.losses import failed_first
from holdfast.supervisor.node_agent import Listener
from holdfast.supervisor.node_link import NodeLink

FAILED = """\
[rank{other}]: RuntimeError: gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer.
[rank{rank}]: {error}
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-17_22:05:56
  host      : node1
  rank      : {rank} (local_rank: 1)
  exitcode  : {code} (pid: 70)
"""
RESET = "RuntimeError: Connection closed by peer [10.0.0.2]:15029."


def node(number: int, **more: object) -> NodeState:
    return replace(NodeState(node=number, host=f"node{number}", agent=f"agent-{number}"), **more)  # type: ignore[arg-type]


def test_a_node_counts_once_its_agent_has_been_seen_to_work() -> None:
    listener = Listener()
    listener.hear([node(1, beat=7)])
    assert listener.heard == {}, "the file may be of a run that was killed last week"
    listener.hear([node(1, beat=8)])
    assert listener.heard[1].state.beat == 8
    listener.hear([node(1, beat=0, agent="another")])
    assert listener.heard[1].state.agent == "another"


def test_a_node_waits_for_the_plan_of_the_agent_that_leads_now(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    Plan(agent="of last week", attempt=3, state=RUN).write(run)
    node(0, agent="of last week", beat=9).write(run)
    follower, looks = Follower(run, 1, Trouble(run.journal)), iter(range(100))

    def is_wanted() -> bool:
        look = next(looks)
        node(0, agent="of now", beat=look).write(run) if look > 2 else None
        Plan(agent="of now", attempt=1, state=RUN, arguments=["--resume"]).write(run) if look == 5 else None
        return True

    plan = follower.next_plan(is_wanted)
    assert plan is not None and (plan.agent, plan.attempt, plan.arguments) == ("of now", 1, ["--resume"])
    assert follower.next_plan(lambda: next(looks) < 10) is None, "the same attempt is not begun twice"


def test_a_node_reports_that_the_first_one_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_NODE_AFTER", "1")
    run = RunFolder.create(tmp_path, "run")
    node(0, beat=1).write(run)
    follower, looks = Follower(run, 1, Trouble(run.journal)), iter(range(1000))

    def is_wanted() -> bool:
        node(0, beat=2).write(run) if next(looks) == 1 else None
        return not list(run.journal)

    assert follower.next_plan(is_wanted) is None
    (lost,) = (row for row in run.journal if row["kind"] == "finding")
    assert (lost["code"], lost["evidence"]["host"]) == ("process-died", "node0")


def test_a_file_that_is_being_written_is_skipped(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    node(1, state=RUNNING, ranks=[{"rank": 2}]).write(run)
    node(2, state=ENDED, code=1).write(run)
    (run.path / "nodes" / "2.json").write_text('{"node": 2, "ho')
    assert [(one.node, one.ranks) for one in read_nodes(run)] == [(1, [{"rank": 2}])]
    assert read_plan(run) is None


@every_case(
    ("here", "there", "began", "code"),
    [
        ((0, RESET, 1), (3, "ValueError: bad sample", 1), 1, 1),
        ((0, RESET, 1), (3, RESET, -9), 1, 137),
        ((0, "ValueError: bad sample", 1), (3, RESET, 1), None, None),
        ((0, RESET, -9), (3, RESET, -15), None, None),
    ],
)
def test_the_node_where_it_began_is_found_by_what_the_nodes_print(
    here: tuple[int, str, int], there: tuple[int, str, int], began: int | None, code: int | None, tmp_path: Path
) -> None:
    run = RunFolder.create(tmp_path, "run")

    def log(rank: int, error: str, code: int) -> str:
        return FAILED.format(rank=rank, error=error, code=code, other=rank - 1)

    (run.path / "train.log").write_text(log(*here))
    first = failed_first(run, 0, [node(1, state=ENDED, code=1, log=log(*there))])
    assert (first.node if first else None, first.code if first else None) == (began, code)


@every_case(
    ("words", "elastic", "fewer"),
    [
        ("torchrun --nnodes 2 train.py --max-restarts 3", False, False),
        ("torchrun --nnodes 1:2 train.py", True, True),
        ("torchrun --max-restarts=2 train.py", True, False),
        ("python train.py", False, False),
    ],
)
def test_whether_torchrun_may_restart_the_ranks_itself_and_on_fewer_nodes(words: str, elastic: bool, fewer: bool) -> None:
    assert (is_elastic(words.split(), {}), may_lose_nodes(words.split(), {})) == (elastic, fewer)


def test_what_a_node_records_is_in_the_run_of_the_first_node_and_what_that_decides_comes_back(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", "night", ranks=2)
    second = make_run(tmp_path / "b", "night", ranks=2, first=2)
    node(0, beat=1).write(first)
    Plan(agent="agent-0", attempt=1, state=RUN).write(first)
    (first.path / QUEUE).write_text(json.dumps(Action("stop", step=3, because="preempted").as_row()) + "\n")
    with served(first) as server:
        address = parse(f"127.0.0.1:{server.port}/night")
        assert address is not None
        link = NodeLink(second, 1, Remote(address), Trouble(second.journal))
        node(1, state=RUNNING).write(second)
        second.journal.write("finding", code="loss-spike", rank=2)
        link.start()
        node(1, state=ENDED, code=1).write(second)
        link.close()
    assert [one.rank for one in first.recordings()] == [0, 1, 2, 3]
    rows = last_rows(first.path / "rank-3", "steps", ("step",), 1000)
    assert rows["step"].tolist() == list(range(100))
    assert [(one.node, one.state) for one in read_nodes(first)] == [(0, ENDED), (1, ENDED)]
    assert [row["code"] for row in first.journal] == ["loss-spike"], "each row once"
    plan = read_plan(second)
    assert plan is not None and plan.agent == "agent-0"
    assert (second.path / QUEUE).read_text() == (first.path / QUEUE).read_text()


def test_a_node_writes_nothing_but_its_own_files(tmp_path: Path) -> None:
    run = make_run(tmp_path, "night")
    with served(run) as server:
        address = parse(f"127.0.0.1:{server.port}/night")
        assert address is not None
        for name in ("run.json", "../night/run.json", "rank-0/../run.json", "nodes/0.json", "checkpoints/a/b", "rank-0/.x"):
            try:
                Remote(address).post("/v1/node/sync", {"files": {name: [{"at": 0, "data": ""}]}})
            except UsageError as error:
                assert "does not write" in error.problem
            else:
                raise AssertionError(name)


def test_the_number_of_rows_is_written_after_the_rows(tmp_path: Path) -> None:
    write_pieces(tmp_path / "a", [{"at": 0, "data": "MQ=="}, {"at": 4096, "data": "Mg==", "size": 4097}])
    content = (tmp_path / "a").read_bytes()
    assert (content[0], content[4096], len(content)) == (ord("1"), ord("2"), 4097)
