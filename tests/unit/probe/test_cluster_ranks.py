"""Which ranks a request reaches, and when a change is refused because it would not reach all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_case import every_case
from small_server import make_run, served

from holdfast.errors import ControlUnreachable, HoldfastError, NoSuchRun, UsageError
from holdfast.probe.address import Address
from holdfast.probe.cluster import Cluster, find
from holdfast.probe.cluster_ranks import Crew, crews_of, jobs_in, ranks_in, refuse_part, refuse_several
from holdfast.probe.far_rank import FarRank, common_number, grouped_by_server, name_of, names_of, next_from, whose
from holdfast.probe.remote import Remote
from holdfast.signals.run_folder import Recording

NODE1, NODE2 = Remote(Address("node1", 80)), Remote(Address("node2", 80))


def far(rank: int, remote: Remote = NODE1, run: str = "job") -> FarRank:
    return FarRank(rank, run, str(remote).partition(":")[0], f"{remote} {run}", remote)


def crew(*ranks: int, world: int | None, known: set[int] | None = None, remote: Remote = NODE1) -> Crew:
    return Crew([far(rank, remote) for rank in ranks], known if known is not None else set(ranks), world)


def test_ranks_of_one_training_on_two_machines_belong_together() -> None:
    crews = [crew(2, 3, world=4, remote=NODE2), crew(0, 1, world=4)]
    assert jobs_in(crews) == [crews] and [one.rank for one in ranks_in(crews)] == [0, 1, 2, 3]
    refuse_part(Cluster(), crews)


def test_two_trainings_that_are_whole_are_two() -> None:
    crews = [crew(0, world=1), crew(0, world=1, remote=NODE2), crew(0, 1, world=None, remote=NODE2)]
    assert jobs_in(crews) == [[one] for one in crews]
    refuse_part(Cluster(), crews)


@every_case(
    "crews",
    [
        [crew(0, 1, world=4)],
        [crew(0, 1, world=4), crew(2, world=4, known={2, 3}, remote=NODE2)],
        [crew(0, world=None, known={0, 1})],
    ],
)
def test_a_change_that_would_leave_a_rank_out_is_refused(crews: list[Crew]) -> None:
    with pytest.raises(ControlUnreachable, match="must reach all") as caught:
        refuse_part(Cluster(), crews)
    assert "name every machine" in caught.value.fix


def test_a_change_is_refused_while_a_server_does_not_answer() -> None:
    cluster = Cluster(problems={"node2:80": HoldfastError("node2:80 cannot be reached.", fix="see there")})
    with pytest.raises(ControlUnreachable, match="nothing was changed"):
        refuse_part(cluster, [crew(0, world=1)])


def test_ranks_behind_one_server_are_asked_in_one_request() -> None:
    ranks = [far(0), far(2, NODE2), far(1), far(3, NODE2), far(0, run="other")]
    assert [[one.rank for one in group] for group in grouped_by_server(ranks)] == [[0, 1], [2, 3], [0]]


def test_a_rank_of_another_machine_is_told_with_its_machine() -> None:
    assert name_of(far(3)) == "node1 rank 3" and whose(far(3)) == {"host": "node1", "run": "job", "rank": 3}


def test_a_change_to_several_runs_has_one_number_that_is_new_in_all(tmp_path: Path) -> None:
    behind, ahead = make_run(tmp_path, "a", ranks=1, steps=1), make_run(tmp_path, "b", ranks=1, steps=1)
    assert next_from(ahead.path, 7) == 7
    number = common_number([*behind.recordings(), *ahead.recordings()])
    assert number == 8 and next_from(behind.path, 0) == 9 and next_from(ahead.path, 0) == 9
    assert common_number(behind.recordings()) == 10


def test_ranks_of_two_runs_on_one_machine_are_named_with_their_run(tmp_path: Path) -> None:
    here = [Recording(0, 0, tmp_path / run / "rank-0") for run in ("first", "second")]
    assert names_of(here) == ["first rank 0", "second rank 0"] and names_of(here[:1]) == ["rank 0"]
    assert names_of([far(0), far(0, run="other")]) == ["job node1 rank 0", "other node1 rank 0"]
    assert names_of([far(0), far(1)]) == ["node1 rank 0", "node1 rank 1"]
    assert [whose(rank)["run"] for rank in here] == ["first", "second"]


def test_runs_that_are_over_cannot_be_asked_and_say_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, "over", ranks=1, steps=1)
    with served(run) as server, pytest.raises(NoSuchRun, match="can be asked: its training is over"):
        crews_of(find([f"127.0.0.1:{server.port}"]))
    with pytest.raises(HoldfastError):
        crews_of(find([str(run.path)]))


def test_code_and_changes_for_a_server_of_several_runs_ask_which_one(tmp_path: Path) -> None:
    with served(make_run(tmp_path, "alpha", ranks=1), make_run(tmp_path, "beta", ranks=1)) as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(UsageError, match="several runs: alpha, beta") as caught:
            refuse_several(find([address]))
        assert f"-t {address}/alpha" in caught.value.fix
        refuse_several(find([f"{address}/beta"]))
