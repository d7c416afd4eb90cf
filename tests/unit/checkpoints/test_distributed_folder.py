"""Folders of torch.distributed.checkpoint, as torch itself writes them: read piece by piece, and torn when a piece is."""

from __future__ import annotations

import os
import pickle
import random
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import forked_ranks
import pytest
import torch
from every_case import every_case
from torch import nn

from holdfast.checkpoints.contents import Contents, TensorInfo
from holdfast.checkpoints.formats.distributed_folder import open_distributed
from holdfast.checkpoints.formats.joining import InPieces
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.matching.load import load

SCRIPT = Path(__file__).parents[2] / "victims" / "saves_distributed.py"
ALONE = ["plain", "a-file-each", "threads"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dcp")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on saving without a process group
        patch.setattr(sys, "argv", [str(SCRIPT), str(out)])
        patch.delenv("RANK", raising=False)
        runpy.run_path(str(SCRIPT), run_name="__main__")
    ranks = [sys.executable, forked_ranks.__file__, str(SCRIPT), str(out)]
    subprocess.run(ranks, check=True, capture_output=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return out


@pytest.fixture
def copy(folders: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(folders / "plain", tmp_path / "plain")
    return tmp_path / "plain"


def value_of(contents: Contents, info: TensorInfo) -> torch.Tensor:
    """The numbers of a tensor, from the places that were told."""
    if isinstance(info, InPieces):
        whole = torch.full(info.shape, float("nan"))
        for piece, begin in zip(info.pieces, info.begins, strict=True):
            spans = tuple(slice(start, start + size) for start, size in zip(begin, piece.shape, strict=True))
            whole[spans] = value_of(contents, piece)
        return whole
    storage = contents.storages[info.storage]
    with storage.file.open("rb") as file:
        file.seek(storage.offset)
        data = bytearray(file.read(storage.size))
    flat = torch.frombuffer(data, dtype=getattr(torch, info.dtype))
    return flat.as_strided(info.shape, info.stride, info.offset) if info.stride else flat[info.offset :].reshape(info.shape)


@every_case("kind", ALONE)
def test_the_state_is_put_together_as_it_was_saved(folders: Path, kind: str) -> None:
    contents = open_checkpoint(folders / kind)
    saved = torch.load(folders / "the-same.pt", weights_only=True)
    assert contents.state == "clean" and contents.format == "torch.distributed.checkpoint" and not contents.notes
    assert contents.tree["step"] == 7 and contents.tree["settings"] == {"lr": 0.1, "name": "a"}
    for name, value in saved["model"].items():
        assert torch.equal(value_of(contents, contents.tree["model"][name]), value)
    moments = contents.tree["optim"]["state"]["0"]["exp_avg"]
    assert moments.name == "optim.state.0.exp_avg" and torch.equal(
        value_of(contents, moments), saved["optim"]["state"][0]["exp_avg"]
    )
    assert contents.tree["optim"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert contents.needs_code == [] and all(storage.crc32 is not None for storage in contents.storages)


def test_tensors_in_a_safetensors_block_are_found(folders: Path) -> None:
    contents = open_checkpoint(folders / "safetensors")
    saved = torch.load(folders / "the-same.pt", weights_only=True)
    assert contents.state == "clean" and contents.tree["step"] == 7
    for name, value in saved["model"].items():
        assert torch.equal(value_of(contents, contents.tree["model"][name]), value)


def test_the_pieces_of_two_ranks_make_the_whole_tensor(folders: Path) -> None:
    contents = open_checkpoint(folders / "sharded")
    assert contents.state == "clean"
    weight = contents.tree["model"]["0.weight"]
    assert isinstance(weight, InPieces) and weight.shape == (7, 5) and weight.name == "model.0.weight"
    assert {piece.name for piece in weight.pieces} == {"model.0.weight[0:4, 0:5]", "model.0.weight[4:7, 0:5]"}
    assert {contents.storages[piece.storage].file.name for piece in weight.pieces} == {"__0_0.distcp", "__1_0.distcp"}
    assert not value_of(contents, weight).isnan().any()
    named = {tensor.storage: tensor for tensor in contents.tensors}
    assert len(named) == len(contents.storages) == len(contents.tensors)  # each piece has its bytes, and each stretch a name
    assert "optim.state.0.weight.exp_avg[0:4, 0:5]" in {tensor.name for tensor in contents.tensors}


def test_what_two_ranks_wrote_in_pieces_is_loaded_into_a_plain_model(folders: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(trained.parameters())
    trained(torch.randn(6, 5)).sum().backward()  # what each rank of the script did with its part
    optimizer.step()
    loaded = load(model, folders / "sharded")
    assert loaded.weights == 4
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_a_folder_without_its_index_is_an_interrupted_save(copy: Path) -> None:
    (copy / ".metadata").rename(copy / ".metadata.tmp")
    contents = open_checkpoint(copy)
    assert (
        contents.state == "torn" and "no index" in contents.troubles[0].text and "just being written" in contents.troubles[0].text
    )
    (copy / ".metadata.tmp").unlink()
    assert "interrupted before the end." in open_checkpoint(copy).troubles[0].text


def test_a_missing_file_is_named_with_what_is_lost(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "sharded", tmp_path / "a")
    (tmp_path / "a/__1_0.distcp").unlink()
    contents = open_distributed(tmp_path / "a")
    assert contents.state == "torn" and [trouble.where for trouble in contents.troubles] == ["__1_0.distcp"]
    assert "model.0.weight[4:7, 0:5]" in contents.troubles[0].text
    assert isinstance(contents.tree["model"]["0.weight"], InPieces)  # what is there is still shown


def test_a_file_cut_anywhere_is_torn_and_says_what_is_not_whole(copy: Path) -> None:
    data = (copy / "__0_0.distcp").read_bytes()
    for length in range(0, len(data), 997):
        (copy / "__0_0.distcp").write_bytes(data[:length])
        contents = open_distributed(copy)
        assert contents.state == "torn" and "__0_0.distcp is truncated" in contents.troubles[0].text, length
    (copy / "__0_0.distcp").write_bytes(data[:-1])
    words = open_distributed(copy).troubles[0].text
    assert "at least 1 bytes are missing; 1 tensors and values are incomplete: optim.state.5.exp_avg_sq" in words


def test_a_safetensors_block_that_is_cut_is_torn(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "safetensors", tmp_path / "a")
    data = (tmp_path / "a/__0_0.distcp").read_bytes()
    for length in range(0, len(data), 197):
        (tmp_path / "a/__0_0.distcp").write_bytes(data[:length])
        assert open_distributed(tmp_path / "a").state == "torn", length


def test_an_index_cut_anywhere_is_never_clean(copy: Path) -> None:
    index = (copy / ".metadata").read_bytes()
    for length in range(0, len(index), 151):
        (copy / ".metadata").write_bytes(index[:length])
        contents = open_distributed(copy)
        assert contents.state == "torn" and "is truncated" in contents.troubles[0].text, length


def test_files_of_another_save_are_told(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "threads", tmp_path / "a")
    shutil.copy(folders / "threads/__0_1.distcp", tmp_path / "a/__0_2.distcp")
    contents = open_distributed(tmp_path / "a")
    assert contents.state == "torn" and "is not what the index says" in contents.troubles[0].text


def test_files_that_the_index_does_not_name_are_a_note(copy: Path) -> None:
    shutil.copy(copy / "__0_0.distcp", copy / "__7_0.distcp")
    contents = open_distributed(copy)
    assert contents.state == "clean" and "does not name __7_0.distcp" in contents.notes[0]


def test_data_newer_than_the_index_is_a_note(copy: Path) -> None:
    now = (copy / ".metadata").stat().st_mtime
    os.utime(copy / "__0_0.distcp", (now + 600, now + 600))
    assert any("changed after the index was written" in note for note in open_distributed(copy).notes)


def test_indexes_of_each_rank_are_read_together(folders: Path) -> None:
    if not (folders / "own-indexes").exists():
        pytest.skip("this torch has one index for all")
    assert {path.name for path in (folders / "own-indexes").iterdir()} >= {"__0.metadata", "__1.metadata"}
    contents = open_checkpoint(folders / "own-indexes")
    assert contents.state == "clean" and contents.tree["step"] == 7
    assert not value_of(contents, contents.tree["model"]["0.weight"]).isnan().any()


def test_what_lightning_keeps_beside_the_pieces_is_part_of_it(copy: Path) -> None:
    torch.save({"pytorch-lightning_version": "2.5.0", "epoch": 3, "state_dict": {}}, copy / "meta.pt")
    contents = open_checkpoint(copy)
    assert contents.state == "clean" and contents.producer == "lightning" and contents.tree["meta"]["epoch"] == 3
    assert contents.versions["lightning"] == "2.5.0"


class _Calls:
    """Pickled, it asks for a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_an_index_or_an_object_that_wants_to_call_something_is_unsafe_and_nothing_runs(copy: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    good = (copy / ".metadata").read_bytes()
    (copy / ".metadata").write_bytes(pickle.dumps(_Calls(ran)))
    assert open_distributed(copy).state == "unsafe"
    (copy / ".metadata").write_bytes(good)
    import torch.distributed.checkpoint as dcp

    dcp.save({"step": 1, "extra": _Calls(ran)}, checkpoint_id=tmp_path / "bad")
    contents = open_distributed(tmp_path / "bad")
    assert contents.state == "unsafe" and any("system" in name for name in contents.refused) and contents.tree["step"] == 1
    assert not ran.exists()


def test_a_folder_changed_at_random_never_raises(copy: Path) -> None:
    chance = random.Random(0)
    names = (".metadata", "__0_0.distcp")
    whole = {name: (copy / name).read_bytes() for name in names}
    sound = open_distributed(copy).tensors
    for _ in range(120):
        name = chance.choice(names)
        data = bytearray(whole[name])
        for _ in range(chance.choice((1, 3, 20))):
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 4))] = chance.randbytes(chance.choice((0, 1, 4)))
        (copy / name).write_bytes(data)
        contents = open_distributed(copy)
        harmless = contents.tensors == sound  # a letter more in the number of a version
        assert contents.state != "clean" or len(data) == len(whole[name]) or harmless
        (copy / name).write_bytes(whole[name])
