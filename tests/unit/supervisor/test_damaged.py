"""After a bad end, files that are not whole are told: who goes on from one of them loses the run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.diagnosis import diagnose
from holdfast.signals.lineage import mark_of
from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.damaged import damage_found_loading, damaged_files


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "runs", "a", started=time.time() - 10)
    for name in ("last.pt", "best.pt"):
        torch.save({"model": {"weight": torch.randn(64, 64)}, "step": 3}, tmp_path / name)
        run.journal.write("checkpoint", event="saved", path=str(tmp_path / name), step=3)
    return run


def found_in(run: RunFolder, since: float = 0.0, end: str = "process-died") -> dict[str, str]:
    found = list(damaged_files(run, since=since, end=Finding(end, step=7, severity="critical")))
    assert all(one.code == "checkpoint-torn" and one.severity == "critical" and one.step == 7 for one in found)
    return {Path(one.evidence["path"]).name: diagnose([one]).causes[0] for one in found}


def test_a_save_that_was_interrupted_is_told_with_its_cause(run: RunFolder, tmp_path: Path) -> None:
    whole = (tmp_path / "last.pt").read_bytes()
    for size in (len(whole) // 2, 4, 0):
        (tmp_path / "last.pt").write_bytes(whole[:size])
        assert found_in(run) == {"last.pt": "save-interrupted"}, size
        assert found_in(run, end="disk-full") == {"last.pt": "no-room-for-a-save"}, size


def test_a_byte_that_changed_on_the_disk_is_told_from_an_interrupted_save(run: RunFolder, tmp_path: Path) -> None:
    content = bytearray((tmp_path / "best.pt").read_bytes())
    content[len(content) // 2] ^= 0x40
    (tmp_path / "best.pt").write_bytes(content)
    assert found_in(run) == {"best.pt": "file-changed-on-disk"}


def test_a_byte_that_changed_where_there_is_no_checksum_is_known_by_the_save_that_had_ended(
    run: RunFolder, tmp_path: Path
) -> None:
    path = tmp_path / "last.pt"
    whole = path.read_bytes()
    damaged = whole.replace(b"ctorch._utils", b"\x01torch._utils")  # in the pickle, which is read before any checksum is
    path.write_bytes(damaged)
    assert damaged != whole and found_in(run) == {"last.pt": "save-interrupted"}  # it is not known how long it was
    path.write_bytes(whole)
    run.journal.write("checkpoint", event="saved", path=str(path), step=3, mark=mark_of(path))
    path.write_bytes(damaged)
    assert found_in(run) == {"last.pt": "file-changed-on-disk"}
    path.write_bytes(whole[: len(whole) // 2])
    assert found_in(run) == {"last.pt": "save-interrupted"}


def test_whole_files_files_of_another_kind_and_those_of_an_earlier_attempt_are_left_alone(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "notes.pt").write_text("no checkpoint at all")
    assert found_in(run) == {}
    (tmp_path / "last.pt").write_bytes(b"PK")
    assert found_in(run, since=time.time() + 60) == {}


def trainers_folder(folder: Path, step: int) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir()
    weights = {"fc.weight": torch.randn(64, 64)}
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    torch.save({"state": {}, "param_groups": []}, place / "optimizer.pt")
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return place


def test_a_trainers_folder_whose_save_was_interrupted_is_told_as_a_whole(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "a", started=time.time() - 10)
    earlier, last = (trainers_folder(tmp_path, step) for step in (37, 74))
    run.journal.write("checkpoint", event="saved", path=str(earlier / "optimizer.pt"), step=37)
    assert found_in(run) == {}
    (last / "trainer_state.json").unlink()  # it is written last
    assert found_in(run) == {"checkpoint-74": "save-interrupted"}
    weights = earlier / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert set(found_in(run)) == {"checkpoint-37", "checkpoint-74"}


def test_a_damaged_file_that_could_not_be_loaded_is_damaged_whatever_torch_says_of_it(run: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    error = "UnpicklingError: Weights only load failed. WeightsUnpickler error: Unsupported operand 11"
    end = Finding("checkpoint-incompatible", step=0, severity="critical", evidence={"error": error, "known_text": "weights-only"})
    run.journal.write("checkpoint", event="unreadable", path=str(path), error=error)
    assert damage_found_loading(run, end, since=0.0) == end, "the file is whole"
    path.write_bytes(path.read_bytes().replace(b"ctorch._utils", b"\x0btorch._utils"))
    found = damage_found_loading(run, end, since=0.0)
    assert (found.code, found.evidence["path"]) == ("checkpoint-torn", str(path)) and "known_text" not in found.evidence
    assert diagnose([found]).causes[0] == "save-interrupted"
    assert damage_found_loading(run, end, since=time.time() + 60) == end, "it was loaded by an earlier attempt"
