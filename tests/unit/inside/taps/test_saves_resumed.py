"""What a script loads: a resume is told with the run before and what was not put back, and nothing else is called one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saving_script import SAVE, checkpoints, made, resumed, resumed_count, save_all, train

from holdfast.signals.lineage import find_save


def test_a_full_resume_is_told_with_the_run_before(run: Any) -> None:
    first, (model, optimizer) = run(name="first"), made()
    train(model, optimizer, 5)
    save_all("last.pt", model, optimizer)
    train(model, optimizer, 2)
    second, (model, optimizer) = run(name="second"), made()
    state = torch.load("last.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert resumed_count(second) == 0, "nothing was trained yet"
    train(model, optimizer, 2)
    (row,) = resumed(second)
    assert (row["at"], row["optimizer"], row["by"], row["lr"]) == (5, "loaded", "optimizer", 0.01)
    assert row["before"]["run"] == str(first.path) and row["before"]["step"] == 5
    assert row["weights"] == {"of": 6, "missing": 0, "missing_statistics": 0, "unexpected": 0}
    assert [one["event"] for one in checkpoints(second)] == ["loaded", "resumed"]


@pytest.mark.parametrize("how", ["copied", "renamed", "atomic"])
def test_the_run_before_is_found_by_the_file_whatever_its_name(run: Any, how: str) -> None:
    first, (model, optimizer) = run(name="first"), made()
    train(model, optimizer, 3)
    save_all("tmp.pt", model, optimizer)
    Path("new.pt").write_bytes(Path("tmp.pt").read_bytes()) if how == "copied" else Path("tmp.pt").replace("new.pt")
    if how == "atomic":
        train(model, optimizer, 4)
        save_all("tmp.pt", model, optimizer)
    second, (model, optimizer) = run(name="second"), made()
    model.load_state_dict(torch.load("new.pt", weights_only=True)["model"])
    train(model, optimizer, 1)
    (row,) = resumed(second)
    assert row["before"]["run"] == str(first.path) and row["at"] == 3 and row["by"] == "saved here"
    assert row["optimizer"] == "empty"


def test_fine_tuning_is_no_resume(run: Any) -> None:
    _, (model, optimizer) = run(name="first"), made()
    train(model, optimizer, 3)
    save_all("last.pt", model, optimizer)
    SAVE(model.state_dict(), "from-elsewhere.pt")
    for path, key, head in [("from-elsewhere.pt", None, False), ("last.pt", "model", True)]:
        second, (model, optimizer) = run(name="second"), made()
        state = torch.load(path, weights_only=True)
        state = dict(state[key]) if key else dict(state)
        for name in ("3.weight", "3.bias") if head else ():
            del state[name]
        model.load_state_dict(state, strict=False)
        train(model, optimizer, 1)
        assert resumed(second) == [], path


def test_another_script_that_starts_from_the_weights_is_no_resume(run: Any) -> None:
    _, (model, optimizer) = run(name="first"), made()
    train(model, optimizer, 3)
    save_all("last.pt", model, optimizer)
    second, (model, optimizer) = run(name="second"), made()
    second.update_info(command=["python", "fine_tune.py"])
    model.load_state_dict(torch.load("last.pt", weights_only=True)["model"])
    train(model, optimizer, 1)
    assert resumed(second) == []


def test_beginning_anew_from_weights_of_this_process_is_no_resume(run: Any) -> None:
    folder, (model, optimizer) = run(), made()
    torch.save(model.state_dict(), "init.pt")
    for _ in range(3):  # folds of a cross-validation
        model, optimizer = made()
        model.load_state_dict(torch.load("init.pt", weights_only=True))
        train(model, optimizer, 2)
    assert resumed(folder) == []


@pytest.mark.parametrize("forgets", ["statistics", "key", "weights", "scheduler"])
def test_what_was_not_put_back_is_in_the_row(run: Any, forgets: str) -> None:
    _, (model, optimizer) = run(name="first"), made()
    train(model, optimizer, 3)
    save_all("last.pt", model, optimizer)
    second, (model, optimizer) = run(name="second"), made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    state = torch.load("last.pt", weights_only=True)
    weights = {name: one for name, one in state["model"].items() if forgets != "statistics" or "running" not in name}
    if forgets != "weights":
        model.load_state_dict(weights if forgets != "key" else state, strict=False)
    optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer, 1)
    (row,) = resumed(second)
    expected = {"statistics": (0, 2), "key": (6, 2), "scheduler": (0, 0), "weights": None}[forgets]
    assert (row["weights"] and (row["weights"]["missing"], row["weights"]["missing_statistics"])) == expected
    assert row["scheduler"] == "as new" and schedule is not None


def test_a_model_that_was_pickled_whole_is_known_again(run: Any) -> None:
    _, (model, optimizer) = run(name="first"), made()
    train(model, optimizer, 3)
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, "whole.pt")
    second = run(name="second")
    state = torch.load("whole.pt", weights_only=False)
    optimizer = torch.optim.Adam(state["model"].parameters(), lr=0.01)
    optimizer.load_state_dict(state["optimizer"])
    train(state["model"], optimizer, 1)
    (row,) = resumed(second)
    assert row["at"] == 3 and row["weights"]["missing"] == 0


def test_a_chain_of_resumes_counts_all_steps(run: Any) -> None:
    for number in range(3):
        folder, (model, optimizer) = run(name=f"run-{number}"), made()
        if number:
            state = torch.load("last.pt", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        train(model, optimizer, 4)
        save_all("last.pt", model, optimizer)
        rows = resumed(folder)
    assert rows[0]["at"] == 8


def test_a_file_saved_again_since_is_the_same_name_only(run: Any, tmp_path: Path) -> None:
    folder, (model, optimizer) = run(name="first"), made()
    train(model, optimizer, 3)
    save_all("last.pt", model, optimizer)
    found = find_save(folder.path, str(Path("last.pt").absolute()))
    assert found is not None and found.exact and found.step == 3
    SAVE({"model": model.state_dict()}, "last.pt")  # by somebody who is not watched
    found = find_save(folder.path, str(Path("last.pt").absolute()))
    assert found is not None and not found.exact
    assert find_save(folder.path, str(Path("none.pt").absolute())) is None
