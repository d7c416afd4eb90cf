from __future__ import annotations

import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.probe.state import read_state
from holdfast.signals.schema import TABLES


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_live_run_shows_step_loss_rate_wait_cost_and_health(holdfast: Any, training: Any) -> None:
    training("digits", steps=51)
    done = holdfast("ps")
    assert done.code == 0 and done.err == ""
    header, row = lines(done.out)
    assert header == ["run", "rank", "pid", "step", "loss", "rate", "last", "step", "data", "cost", "health"]
    assert row[:6] == ["digits", "0", str(os.getpid()), "50", "0.01961", "10/s"]
    assert row[-5:] == ["30", "%", "0.40", "%", "healthy"]


def test_each_rank_has_a_line_and_the_sick_one_says_so(holdfast: Any, training: Any) -> None:
    training("ddp", rank=0)
    training("ddp", rank=1, loss=math.nan)
    _, first, second = lines(holdfast("ps").out)
    assert first[0] == "ddp" and first[1] == "0" and first[-1] == "healthy"
    assert second[0] == "1" and second[-2:] == ["non-finite", "loss"]


def test_of_many_ranks_the_first_the_sick_and_a_summary_have_a_line(holdfast: Any, training: Any) -> None:
    later = time.time() + 600  # no rank is quiet for long, however long it takes to make 40 of them
    for rank in range(40):
        training("ddp", rank=rank, time=later, loss=math.nan if rank == 17 else 0.5)
    first, sick, others = holdfast("ps").out.splitlines()[1:]
    assert first.split()[:2] == ["ddp", "0"] and sick.split()[0] == "17" and "non-finite loss" in sick
    assert others.split()[0] == "+38" and others.endswith("healthy")


def test_it_finds_live_runs_from_any_folder(
    holdfast: Any, training: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    training("digits")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert "digits" in holdfast("ps").out


def test_finished_runs_are_shown_only_with_all_and_after_the_live_ones(holdfast: Any, training: Any) -> None:
    training("over", live=False)
    training("alive")
    assert "over" not in holdfast("ps").out
    shown = lines(holdfast("ps", "--all").out)
    assert [row[0] for row in shown] == ["run", "alive", "over"] and shown[2][-1] == "finished"


def test_nothing_alive_is_said_on_stderr_with_what_to_type(holdfast: Any, training: Any) -> None:
    training("over", live=False)
    done = holdfast("ps")
    assert done.code == 0 and done.out == ""
    assert "holdfast run -- python train.py" in done.err and "holdfast ps --all" in done.err


def test_json_has_every_figure_of_every_rank(holdfast: Any, training: Any) -> None:
    training("digits", loss=math.inf)
    (run,) = json.loads(holdfast("ps", "--json").out)
    assert (run["name"], run["alive"], run["command"]) == ("digits", True, ["python", "train.py"])
    (rank,) = run["ranks"]
    assert rank["loss"] == "inf" and rank["step"] == 29 and rank["health"] == "non-finite loss"
    assert rank["budget"] == pytest.approx(0.004) and rank["data_share"] == pytest.approx(0.3)
    assert json.loads(holdfast("ps", "--json", "--all").out)


def test_json_of_nothing_is_an_empty_list(holdfast: Any) -> None:
    assert json.loads(holdfast("ps", "--json").out) == []


def test_a_run_that_cannot_be_read_does_not_hide_the_others(holdfast: Any, training: Any) -> None:
    training("digits")
    broken = Path("runs/broken")
    broken.mkdir()
    (broken / "run.json").write_text("{ half")
    assert "digits" in holdfast("ps", "--all").out


def act(run: Any, action: str = "skip-batch", *, state: str = "done", step: int = 20, **more: Any) -> None:
    fields = {"action": action, "step": step, "because": "non-finite-gradient", "settings": {}, "state": state, "rank": 0}
    run.journal.write("action", **fields | more)


def find(run: Any, code: str, severity: str, *, step: int = 20, **more: Any) -> None:
    run.journal.write("finding", code=code, severity=severity, step=step, **{"rank": 0, "evidence": {}, **more})


def health_of(holdfast: Any) -> str:
    (run,) = json.loads(holdfast("ps", "--json").out)
    return str(run["health"])


def test_updates_that_were_left_out_show_as_guarded_with_their_number(holdfast: Any, training: Any) -> None:
    run = training(steps=30).run
    for step in (5, 6, 7):
        find(run, "non-finite-gradient", "critical", step=step)
        act(run, step=step)
    assert lines(holdfast("ps").out)[1][-4:] == ["guarded,", "3", "updates", "skipped"]
    find(run, "non-finite-gradient", "critical", step=8, evidence={"so_far": 32})  # the ones between were not told
    act(run, step=8)
    (state,) = json.loads(holdfast("ps", "--json").out)
    assert state["num_skipped"] == state["ranks"][0]["num_skipped"] == 32


def test_a_bad_loss_whose_update_was_left_out_is_guarded_and_one_that_stays_bad_is_not(holdfast: Any, training: Any) -> None:
    def append(loss: float, step: int) -> None:
        values = {"step": step, "time": time.time(), "loss": loss, "step_seconds": 0.1}
        recorder.table("steps").append([values.get(c.name, c.kind.missing) for c in TABLES["steps"].columns])
        act(recorder.run, step=step)

    recorder = training(steps=30)
    append(math.nan, 30)
    assert health_of(holdfast) == "guarded, 1 update skipped"
    append(math.nan, 31)
    append(math.nan, 32)
    assert health_of(holdfast) == "non-finite loss"


def test_repairs_show_as_healing_and_what_nobody_repaired_as_critical(holdfast: Any, training: Any) -> None:
    run = training(steps=30).run
    find(run, "loss-divergence", "critical", rank=None)
    assert health_of(holdfast) == "critical: the loss rose and stays high (step 20)"
    act(run, "roll-back", because="loss-divergence", number=1, state="posted", rank=None)
    assert health_of(holdfast).startswith("critical")
    act(run, "roll-back", because="loss-divergence", number=1)
    assert health_of(holdfast) == "healing: rolled back (step 20)"
    act(run, "lower-lr", number=2, state="refused", step=22, detail="no optimizer")
    assert health_of(holdfast) == "critical: could not change the learning rate (step 22)"
    (state,) = json.loads(holdfast("ps", "--json").out)
    assert state["roll_backs"] == 1 and [action["action"] for action in state["actions"]] == [
        "roll-back",
        "roll-back",
        "lower-lr",
    ]


def test_a_warning_shows_while_it_is_recent_and_a_note_never(training: Any) -> None:
    run = training(steps=2000, step_seconds=100.0).run
    find(run, "loss-spike", "info", step=1999)
    assert read_state(run).health == "healthy"
    find(run, "slow-loading", "warning", step=900)
    assert read_state(run).health == "warning: slow data loading (step 900)"  # ten minutes have not passed
    later = time.time() + 900
    assert read_state(run, now=later).health == "healthy"
    find(run, "slow-loading", "warning", step=1500)
    assert read_state(run, now=later).health == "warning: slow data loading (step 1,500)"  # nor a thousand steps


def test_the_rank_that_is_worse_off_speaks_for_the_run(holdfast: Any, training: Any) -> None:
    run = training("ddp", rank=0).run
    training("ddp", rank=1, loss=math.inf)
    find(run, "slow-loading", "warning")
    assert health_of(holdfast) == "non-finite loss"


def test_the_policy_has_a_column_where_it_is_not_to_observe(holdfast: Any, training: Any) -> None:
    training("watched").run.update_info(policy="observe")
    assert "policy" not in holdfast("ps").out
    training("healed").run.update_info(policy="heal", rules={"loss-spike": "observe"})
    training("own").run.update_info(policy="rules/mine.py")
    header, *rows = lines(holdfast("ps").out)
    assert header[-2:] == ["policy", "health"]
    assert {row[0]: row[-2] for row in rows} == {"watched": "observe", "healed": "heal*", "own": "mine.py"}
    by_name = {run["name"]: run for run in json.loads(holdfast("ps", "--json").out)}
    assert (by_name["healed"]["policy"], by_name["healed"]["rules"]) == ("heal", {"loss-spike": "observe"})


def test_a_long_name_does_not_push_the_health_out(holdfast: Any, training: Any, in_terminal: Any) -> None:
    training("a-name-" * 12).run.update_info(policy="heal")
    assert lines(holdfast("ps").out)[1][0] == "a-name-" * 12
    shown = in_terminal("ps").replace("\r", "")
    assert "healthy" in shown and "a-name-" in shown and max(map(len, re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines())) <= 100


def test_a_run_that_holdfast_stopped_says_why(holdfast: Any, training: Any) -> None:
    run = training(live=False).run
    act(run, "stop", settings={"why": "nothing to go back to", "code": 1})
    (state,) = json.loads(holdfast("ps", "--all", "--json").out)
    assert (state["health"], state["reason"]) == ("finished", "Holdfast stopped it: nothing to go back to")


def test_the_newest_validation_metric_has_a_column_where_there_is_room(holdfast: Any, training: Any, in_terminal: Any) -> None:
    recorder = training("digits", steps=51)
    for step, split, name, value in (
        (20, "val", "accuracy", 0.5),
        (50, "train", "accuracy", 0.99),
        (50, "val", "accuracy", 0.9444),
    ):
        values = {"step": step, "time": time.time(), "value": value, "printed": 0}
        strings = {"split": recorder.strings.code(split), "name": recorder.strings.code(name)}
        recorder.table("evaluations").append(
            [{**values, **strings}.get(c.name, c.kind.missing) for c in TABLES["evaluations"].columns]
        )
    assert "val accuracy 0.9444" in holdfast("ps").out
    assert "val accuracy 0.9444" in in_terminal("ps", width=120)
    narrow = in_terminal("ps", width=40)
    assert all(word in narrow for word in ("digits", "50", "healthy")) and "0.9444" not in narrow
