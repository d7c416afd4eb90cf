"""What a script saves and loads is told in the journal; what torch is given, returns and raises stays as it is."""

from __future__ import annotations

import gc
import io
import math
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from holdfast.inside.arm import arm_from_environment, armed
from holdfast.inside.capture.non_finite import bad_tensors
from holdfast.inside.capture.saved_rows import SavedRows
from holdfast.signals.lineage import find_save, mark_of
from holdfast.signals.run_folder import RunFolder

SAVE, LOAD, REPLACE, RENAME = torch.save, torch.load, os.replace, os.rename


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunFolder]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_SUPERVISOR", raising=False)

    def start(policy: str = "observe", rules: str = "", name: str = "run") -> RunFolder:
        armed().close_all()
        folder = RunFolder.create(tmp_path / "runs", name, command=["python", "train.py"])
        settings = {"RUN": str(folder.path), "DEBUG": "raise", "POLICY": policy, "RULES": rules, "SAMPLING": ""}
        for key, value in settings.items():
            monkeypatch.setenv(f"HOLDFAST_{key}", value)
        gc.collect()
        arm_from_environment()
        return folder

    yield start
    armed().close_all()
    assert (torch.save, torch.load, os.replace, os.rename) == (SAVE, LOAD, REPLACE, RENAME)


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


def checkpoints(run: RunFolder, *events: str) -> list[dict[str, Any]]:
    return [row for row in run.journal if row["kind"] == "checkpoint" and (not events or row["event"] in events)]


def findings(run: RunFolder) -> list[dict[str, Any]]:
    return [row for row in run.journal if row["kind"] == "finding"]


# What is told


def test_a_save_is_told_with_path_step_size_and_time(run: Any) -> None:
    folder, (model, optimizer) = run(), made()
    train(model, optimizer, 3)
    assert torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt") is None
    (row,) = checkpoints(folder)
    size = Path("last.pt").stat().st_size
    assert (row["event"], row["path"], row["step"], row["size"]) == ("saved", str(Path("last.pt").absolute()), 3, size)
    assert row["seconds"] > 0 and row["rank"] == 0 and row["recording"] == "rank-0" and row["mark"] == mark_of("last.pt")


@pytest.mark.parametrize("as_what", [str, Path])
def test_every_way_to_name_a_file_is_seen(run: Any, as_what: Any) -> None:
    folder, (model, _) = run(), made()
    torch.save(model.state_dict(), f=as_what("a.pt"))
    torch.save(obj=model, f=as_what("b.pt"))
    with Path("c.pt").open("wb") as file:
        torch.save(model.state_dict(), file)
    assert [Path(row["path"]).name for row in checkpoints(folder)] == ["a.pt", "b.pt", "c.pt"]
    assert isinstance(torch.load("b.pt", weights_only=False), nn.Sequential)
    assert torch.load("c.pt", weights_only=True).keys() == model.state_dict().keys()


def test_what_is_no_checkpoint_is_not_told(run: Any) -> None:
    folder, (model, optimizer) = run(), made()
    train(model, optimizer, 1)
    torch.save(torch.zeros(3), "tensor.pt")
    torch.save({"image": torch.full((2,), math.nan), "label": 3}, "sample.pt")
    torch.save(model.state_dict(), io.BytesIO())
    torch.save([1, 2, 3], "list.pt")
    torch.load("sample.pt", weights_only=True)
    assert [*folder.journal] == []


def test_a_path_that_is_saved_to_all_the_time_has_one_row_in_thirty_seconds() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    now = [0.0]
    rows = SavedRows(lambda event, **facts: told.append((event, facts)), now=lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        rows.add("/last.pt", {"step": second})
    assert [(facts["step"], facts.get("count")) for _, facts in told] == [(0, None), (29, 29), (59, 30), (89, 30)]
    rows.flush(everything=True)
    assert told[-1][1]["step"] == 99 and told[-1][1]["count"] == 10


def test_thousands_of_names_do_not_flood_the_journal() -> None:
    told: list[dict[str, Any]] = []
    now = [0.0]
    rows = SavedRows(lambda event, **facts: told.append(facts), now=lambda: now[0])
    for number in range(10_000):
        rows.add(f"/cache/{number}.pt", {"step": 0})
    assert len(told) == 32
    now[0] = 31.0
    rows.add("/last.pt", {"step": 7})
    assert told[-1]["and_others"] == 10_000 - 32 and len(told) == 33


class Samples(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.save({"a": {"x": torch.ones(3)}}, f"sample-{index}.pt")
        return torch.load(f"sample-{index}.pt", weights_only=True)["a"]["x"]


def test_workers_that_read_and_write_samples_leave_no_rows(run: Any) -> None:
    folder = run()
    assert len(list(DataLoader(Samples(), 2, num_workers=2))) == 4
    assert [*folder.journal] == []


def test_a_save_from_another_thread_is_told_too(run: Any) -> None:
    folder, (model, _) = run(), made()
    thread = threading.Thread(target=lambda: torch.save(model.state_dict(), "a.pt"))
    thread.start()
    thread.join()
    assert len(checkpoints(folder, "saved")) == 1


# Torch's own ways stay


def test_errors_and_return_values_are_torchs_own(run: Any) -> None:
    folder, (model, _) = run(), made()
    with pytest.raises(RuntimeError, match="Parent directory"):
        torch.save(model.state_dict(), "no/such/folder/a.pt")
    (finding,) = findings(folder)
    assert finding["code"] == "checkpoint-not-saved" and "Parent directory" in finding["evidence"]["error"]
    with pytest.raises(FileNotFoundError):
        torch.load("nothing.pt")
    with pytest.raises(TypeError, match="required positional argument"):
        torch.save(model)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    with pytest.raises(AttributeError):
        torch.save({"a": {"b": lambda: None}}, "lambda.pt")


def test_files_are_byte_for_byte_those_of_torch_alone(run: Any) -> None:
    model, _ = made()
    SAVE(model.state_dict(), "alone.pt")
    SAVE(model.state_dict(), "old-alone.pt", _use_new_zipfile_serialization=False)
    run("guard")
    torch.save(model.state_dict(), "watched.pt")
    torch.save(model.state_dict(), "old-watched.pt", _use_new_zipfile_serialization=False)
    assert _content("alone.pt") == _content("watched.pt")
    assert Path("old-alone.pt").read_bytes() == Path("old-watched.pt").read_bytes()


def _content(path: str) -> dict[str, bytes]:
    """The records of an archive; its folder is named after the file."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def test_save_and_load_can_still_be_pickled(run: Any) -> None:
    run()
    for function in (torch.save, torch.load):
        assert pickle.loads(pickle.dumps(function)) is function


def test_saving_into_a_pipe_does_not_wait(run: Any) -> None:
    run()
    model, _ = made()
    os.mkfifo("pipe")
    reader = threading.Thread(target=lambda: Path("pipe").read_bytes(), daemon=True)
    reader.start()
    with Path("pipe").open("wb") as file:
        torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)
    reader.join(20)
    assert not reader.is_alive()


# A checkpoint that is not finite


def spoil(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters())[0, 0] = math.nan


@pytest.mark.parametrize("policy", ["guard", "heal"])
def test_a_good_file_is_never_overwritten_by_one_with_nan(run: Any, policy: str) -> None:
    folder, (model, optimizer) = run(policy), made()
    train(model, optimizer, 2)
    torch.save({"model": model.state_dict()}, "best.pt")
    good = Path("best.pt").read_bytes()
    spoil(model)
    assert torch.save({"model": model.state_dict()}, "best.pt") is None
    beside = Path("best.non-finite-step-2.pt")
    assert Path("best.pt").read_bytes() == good
    assert torch.isnan(torch.load(beside, weights_only=True)["model"]["0.weight"][0, 0])
    (finding,) = findings(folder)
    assert (finding["code"], finding["severity"], finding["step"]) == ("checkpoint-non-finite", "critical", 2)
    evidence = finding["evidence"]
    assert (evidence["path"], evidence["diverted_to"]) == (str(Path("best.pt").absolute()), str(beside.absolute()))
    assert evidence["tensors"] == [{"name": "model.0.weight", "nan": 1, "inf": 0, "of": 32}]
    assert [row["event"] for row in checkpoints(folder)] == ["saved", "diverted"]


@pytest.mark.parametrize(("policy", "rules"), [("observe", ""), ("guard", "checkpoint-non-finite=observe")])
def test_under_observe_it_is_saved_as_asked_and_told(run: Any, policy: str, rules: str) -> None:
    folder, (model, _) = run(policy, rules), made()
    torch.save(model.state_dict(), "best.pt")
    spoil(model)
    torch.save(model.state_dict(), "best.pt")
    assert torch.isnan(torch.load("best.pt", weights_only=True)["0.weight"][0, 0])
    assert sorted(path.name for path in Path().glob("best*")) == ["best.pt"]
    assert [one["code"] for one in findings(folder)] == ["checkpoint-non-finite"]


@pytest.mark.parametrize("before", ["nothing", "empty", "torn", "non-finite"])
def test_where_nothing_good_lies_it_is_saved_as_asked(run: Any, before: str) -> None:
    folder, (model, _) = run("guard"), made()
    path = Path("best.pt")
    if before != "nothing":
        SAVE(model.state_dict() if before != "non-finite" else {"a.b": torch.tensor(math.inf)}, path)
        path.write_bytes(path.read_bytes()[: {"empty": 0, "torn": 1000}.get(before)])
    spoil(model)
    torch.save(model.state_dict(), path)
    assert torch.isnan(torch.load(path, weights_only=True)["0.weight"][0, 0])
    assert [one["code"] for one in findings(folder)] == ["checkpoint-non-finite"]
    assert [*Path().glob("*non-finite*")] == []


def test_moving_a_bad_file_over_a_good_one_is_diverted_too(run: Any) -> None:
    folder, (model, _) = run("guard"), made()
    moves: list[Callable[[str, str], Any]] = [
        lambda a, b: os.replace(a, b),  # noqa: PTH105
        lambda a, b: Path(a).rename(b),
        lambda a, b: shutil.move(a, b),
    ]
    for move in moves:
        torch.save(model.state_dict(), "best.pt")
        good = Path("best.pt").read_bytes()
        bad = made()[0]
        spoil(bad)
        torch.save(bad.state_dict(), "best.tmp")
        assert findings(folder), "told before it is moved"
        move("best.tmp", "best.pt")
        assert Path("best.pt").read_bytes() == good and not Path("best.tmp").exists()
    assert len([*Path().glob("best.non-finite*.pt")]) == 2, "the first and the newest"
    torch.save(model.state_dict(), "best.tmp")
    torch.save(model.state_dict(), "other.pt")
    Path("best.tmp").replace("best.pt")
    assert checkpoints(folder)[-1]["event"] == "saved"
    assert torch.isfinite(torch.load("best.pt", weights_only=True)["0.weight"]).all()


def test_a_file_that_the_script_opened_is_gone_and_the_finding_says_so(run: Any) -> None:
    folder, (model, _) = run("guard"), made()
    torch.save(model.state_dict(), "best.pt")
    spoil(model)
    with Path("best.pt").open("wb") as file:
        torch.save(model.state_dict(), file)
    assert "opened the file itself" in findings(folder)[0]["evidence"]["note"]
    assert torch.isnan(torch.load("best.pt", weights_only=True)["0.weight"][0, 0])


def test_a_training_that_goes_on_saving_nan_does_not_fill_the_disk(run: Any) -> None:
    folder, (model, optimizer) = run("guard"), made()
    torch.save(model.state_dict(), "last.pt")
    for _ in range(20):
        train(model, optimizer, 1)
        bad = made()[0]
        spoil(bad)
        torch.save(bad.state_dict(), "last.pt")
    assert [path.name for path in sorted(Path().glob("last.non-finite*"))] == [
        "last.non-finite-step-1.pt",
        "last.non-finite-step-20.pt",
    ]
    assert [finding["step"] for finding in findings(folder)] == [1, 2, 3, 4, 8, 16]


@pytest.mark.parametrize(
    "well",
    [
        {"model.mask": torch.full((4, 4), -math.inf).triu(1)},
        {"model": {"a.weight": torch.ones(2)}, "best_loss": torch.tensor(math.inf), "history": torch.tensor([math.nan])},
        {"a.big": torch.full((100,), 3e38)},
        {"a.count": torch.tensor([1, 2]), "a.flag": torch.tensor([True]), "a.empty": torch.zeros(0)},
        {"a.sparse": torch.eye(3).to_sparse(), "a.half": torch.full((100_000,), 60_000.0, dtype=torch.float16)},
        {"a.meta": torch.empty(3, device="meta"), "a.complex": torch.ones(3, dtype=torch.complex64)},
    ],
)
def test_masks_bookkeeping_and_large_numbers_are_no_trouble(well: Any) -> None:
    assert bad_tensors(well) == []


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn]
)
def test_nan_is_found_in_every_kind_of_number_and_place(dtype: torch.dtype) -> None:
    bad = torch.ones(1000).to(dtype)
    bad[77] = math.nan
    model, optimizer = made()
    train(model, optimizer, 1)
    for thing, name in [
        ({"model": {"a.b": bad}}, "model.a.b"),
        ({"nets": [{"a.b": torch.ones(2)}, {"a.b": bad}]}, "nets.1.a.b"),
        ({"optimizer": {"state": {0: {"exp_avg": bad}}, "param_groups": []}}, "optimizer.state.0.exp_avg"),
        ({"net": model.register_buffer("extra", bad) or model}, "net.extra"),
    ]:
        found = bad_tensors(thing)
        assert [(one.name, one.nan, one.inf) for one in found] == [(name, 1, 0)]


def test_minus_infinity_in_a_weight_is_no_mask() -> None:
    assert [one.inf for one in bad_tensors({"a.weight": torch.full((3, 3), -math.inf)})] == [9]


# Loads, and what is a resume


def resumed(run: RunFolder) -> list[dict[str, Any]]:
    armed().close_all()  # what waits is written
    return checkpoints(run, "resumed")


def save_all(path: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


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


def resumed_count(run: RunFolder) -> int:
    return len(checkpoints(run, "resumed"))


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
    found = find_save(folder.path, str(Path("last.pt").absolute()), until=math.inf)
    assert found is not None and found.exact and found.step == 3
    SAVE({"model": model.state_dict()}, "last.pt")  # by somebody who is not watched
    found = find_save(folder.path, str(Path("last.pt").absolute()), until=math.inf)
    assert found is not None and not found.exact
    assert find_save(folder.path, str(Path("none.pt").absolute()), until=math.inf) is None
