"""What a script saves and loads is told in the journal; what torch is given, returns and raises stays as it is."""

from __future__ import annotations

import io
import math
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from saving_script import SAVE, checkpoints, findings, made, train
from torch import nn
from torch.utils.data import DataLoader, Dataset

from holdfast.inside.observers.checkpoint_log import SavedRows
from holdfast.signals.lineage import mark_of

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


def test_a_path_that_is_saved_to_all_the_time_has_one_row_in_thirty_seconds_after_its_first_ones() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    now = [0.0]
    rows = SavedRows(lambda event, **facts: told.append((event, facts)), now=lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        rows.add("/last.pt", {"step": second})
    first = [(step, None) for step in range(20)]  # a run that is killed early knows the step of each file
    assert [(facts["step"], facts.get("count")) for _, facts in told] == [*first, (48, 29), (78, 30)]
    rows.flush(everything=True)
    assert told[-1][1]["step"] == 99 and told[-1][1]["count"] == 21


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
