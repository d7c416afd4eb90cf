"""Two ranks are asked and changed: between the same two steps, so that they stay the same."""

from __future__ import annotations

from pathlib import Path

from asked_run import AskedRun
from holdfast_run import PYTHON, VICTIMS, start

from holdfast.probe.changing import change


def test_two_ranks_change_at_the_same_step_and_end_with_the_same_weights(tmp_path: Path) -> None:
    ranks = [str(Path(__file__).with_name("forked_ranks.py")), str(VICTIMS / "ranks_that_are_asked.py")]
    process = start(tmp_path, "--name", "two", "--", PYTHON, *ranks)
    asked = AskedRun(tmp_path, "two")
    asked.wait(2, 120)
    assert asked.type("eval", "--all-ranks", "dist.get_rank(), dist.get_world_size()").stdout.splitlines() == [
        "rank 0: (0, 2)",
        "rank 1: (1, 2)",
    ]
    assert asked.value("dist.get_rank()") == "0"
    assert asked.value("dist.get_rank()", rank=1) == "1"
    save, back = {"do": "save", "path": None}, {"do": "rollback", "to": None}
    for request in ({"do": "set", "text": "lr*=5"}, save, back, {"do": "pause"}):
        told = change(asked.run, request)
        assert [one.ok for one in told] == [True, True], told
        assert told[0].answer["step"] == told[1].answer["step"]
        assert told[0].answer["number"] == told[1].answer["number"]
    paused = change(asked.run, {"do": "set", "text": "lr=0.03"})
    assert {one.answer["step"] for one in paused} == {told[0].answer["step"]}
    change(asked.run, {"do": "continue"})
    assert "2 ranks  change" in asked.type("journal").stdout
    assert asked.type("set", "nothing=1").stderr.startswith("2 ranks: ")
    asked.value("finish = True")
    printed, errors = process.communicate(timeout=600)
    ended = sorted(line.partition(" ended with ")[2] for line in printed.splitlines() if "ended with" in line)
    assert len(ended) == 2 and ended[0] == ended[1], printed + errors
