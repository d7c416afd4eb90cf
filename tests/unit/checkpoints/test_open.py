"""Whatever lies at a path is recognised by what is in it; what is no checkpoint is named for what it is, and nothing raises."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import runpy
import socket
import struct
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from every_case import every_case
from safetensors.torch import save_file

from holdfast.checkpoints.contents import Contents, Opaque
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.verify import verify

VICTIMS = Path(__file__).parents[2] / "victims"


def written(path: Path, data: bytes, *, old: bool = True) -> Contents:
    path.write_bytes(data)
    if old:
        os.utime(path, (1e9, 1e9))
    return open_checkpoint(path)


def bytes_of(value: object, *, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def numpy_bytes(*, several: bool) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.ones(3)) if several else np.save(buffer, np.ones(3))
    return buffer.getvalue()


def zip_bytes(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, "{}")
    return buffer.getvalue()


def tar_bytes() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO())
    return buffer.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a2146" * 8 + b"\nsize 548105171\n"

NOT_CHECKPOINTS = {
    "text": (b"Hello, this is not what you wanted.\n", "a text, not a checkpoint"),
    "json": (b'{"error": "not found"}', "a JSON text"),
    "web page": (b"\n<!DOCTYPE html><html><title>404</title>", "a web page"),
    "xml": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML text"),
    "lfs": (LFS, f"Git LFS pointer of {len(LFS)} bytes, not the file of 548,105,171 bytes"),
    "annex": (b"/annex/objects/SHA256E-s10--abc.pt\n", "git-annex pointer"),
    "gzip": (gzip.compress(bytes_of({"a": 1})), "a gzip archive"),
    "tar": (tar_bytes(), "a tar archive"),
    "numpy": (numpy_bytes(several=False), "a numpy array"),
    "npz": (numpy_bytes(several=True), "a numpy archive"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(100), "a GGUF file"),
    "noise": (random.Random(1).randbytes(5000), "first bytes match no checkpoint format"),
    "another zip": (zip_bytes("word/document.xml"), "zip archive"),
}


@every_case("name", NOT_CHECKPOINTS)
def test_what_is_no_checkpoint_is_unreadable_and_named_for_what_it_is(tmp_path: Path, name: str) -> None:
    data, words = NOT_CHECKPOINTS[name]
    contents = written(tmp_path / "model.pt", data)
    assert contents.state == "unreadable" and words in contents.troubles[0].text and contents.troubles[0].fix
    assert contents.size == len(data)


def test_a_pointer_of_git_lfs_says_how_to_get_the_file(tmp_path: Path) -> None:
    assert written(tmp_path / "model.safetensors", LFS).troubles[0].fix == "git lfs pull"


def test_onnx_and_tensorflow_files_are_known_by_their_names(tmp_path: Path) -> None:
    for name, words in (
        ("a.onnx", "ONNX"),
        ("a.pb", "TensorFlow"),
        ("a.msgpack", "Flax"),
        ("a.bin2", "unknown kind"),
    ):
        contents = written(tmp_path / name, b"\x08\x07\x12\x07pytorch\x1a\x05\xff\xfe")
        assert contents.state == "unreadable" and words in contents.troubles[0].text


@every_case("name", ["a.pt", "a.safetensors", "a.ckpt", "a"])
def test_an_empty_file_and_one_of_zeros_are_torn(tmp_path: Path, name: str) -> None:
    empty = written(tmp_path / name, b"")
    zeros = written(tmp_path / name, bytes(10_000))
    assert empty.state == zeros.state == "torn"
    assert "is empty" in empty.troubles[0].text and "starts with zeros" in zeros.troubles[0].text


@every_case("name", ["a.pt", "a.safetensors", "a.dat", "a"])
def test_content_counts_more_than_the_name(tmp_path: Path, name: str) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "real")
    assert written(tmp_path / name, (tmp_path / "real").read_bytes()).format == "safetensors"
    assert written(tmp_path / name, bytes_of({"a": torch.ones(2)})).format == "torch zip"
    assert written(tmp_path / name, bytes_of({"a": torch.ones(2)}, zipped=False)).format == "torch legacy"
    for contents in (written(tmp_path / name, bytes_of({"a": torch.ones(2)}, zipped=kind)) for kind in (True, False)):
        assert contents.state == "clean" and contents.tree["a"].shape == (2,)


def test_the_oldest_pickles_are_text_and_are_still_judged(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    contents = written(tmp_path / "a.pt", f"cos\nsystem\n(S'touch {ran}'\ntR.".encode())
    assert contents.state == "unsafe" and any("system" in name for name in contents.refused) and not ran.exists()
    assert written(tmp_path / "b.pkl", pickle.dumps({"epoch": 3}, protocol=0)).tree == {"epoch": 3}
    assert "a text, not a checkpoint" in written(tmp_path / "c.pt", b"I am not\na pickle.").troubles[0].text


def test_pipes_sockets_and_devices_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.pt")  # opening it would wait forever
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.pt")
        for path in (tmp_path / "pipe.pt", tmp_path / "socket.pt", Path("/dev/zero"), Path("/dev/null")):
            contents = open_checkpoint(path)
            assert contents.state == "unreadable" and "not opened" in contents.troubles[0].text


def test_a_pipe_in_a_checkpoint_folder_is_not_opened_either(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "optimizer.pt")
    os.mkfifo(tmp_path / "trainer_state.json")
    contents = open_checkpoint(tmp_path)
    assert contents.state == "unreadable" and {"optimizer.pt", "trainer_state.json"} == {
        trouble.where for trouble in contents.troubles
    }


def test_a_link_that_leads_nowhere_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").symlink_to("epoch=3.ckpt")
    contents = open_checkpoint(tmp_path / "last.ckpt")
    assert contents.state == "unreadable" and "a link to epoch=3.ckpt, which does not exist" in contents.troubles[0].text
    (tmp_path / "round.pt").symlink_to("round.pt")
    assert open_checkpoint(tmp_path / "round.pt").state == "unreadable"


def as_another_user(path: Path) -> list[str]:
    """What is told about a path to a user who is not root."""
    open_checkpoint(path)  # loads what it needs, as that user may not
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            os.write(sending, "\n".join(trouble.text for trouble in open_checkpoint(path).troubles).encode())
        finally:
            os._exit(0)
    os.close(sending)
    os.waitpid(child, 0)
    with open(receiving, encoding="utf-8") as told:  # noqa: PTH123 - a descriptor
        return told.read().splitlines()


def test_what_may_not_be_read_by_this_user_says_so(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0)
    alone = tmp_path / "a.pt"
    alone.write_bytes(bytes_of({"a": 1}))
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    for name in ("config.json", "optimizer.pt", "trainer_state.json"):
        (tmp_path / name).write_text("{}")
    for path in (alone, tmp_path / "config.json", tmp_path / "optimizer.pt", tmp_path / "model.safetensors"):
        path.chmod(0)
    assert as_another_user(alone) == ["It may not be read by this user."]
    assert as_another_user(tmp_path / "closed") == ["It may not be read by this user."]
    told = as_another_user(tmp_path)
    assert [f"{name}: it may not be read by this user." for name in ("model.safetensors", "optimizer.pt", "config.json")] == told


def test_a_folder_that_is_none_by_itself_names_those_in_it(tmp_path: Path) -> None:
    assert "an empty folder" in open_checkpoint(tmp_path).troubles[0].text
    (tmp_path / "runs").mkdir()
    assert "a folder without a checkpoint" in open_checkpoint(tmp_path).troubles[0].text
    (tmp_path / "runs/a.pt").write_bytes(b"x")
    contents = open_checkpoint(tmp_path)
    assert "with 1 checkpoints" in contents.troubles[0].text and "runs/a.pt" in contents.troubles[0].fix
    (tmp_path / "step-000003").mkdir()
    assert open_checkpoint(tmp_path / "step-000003").state == "torn"


def test_a_torn_file_that_was_just_written_to_may_still_be_growing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    contents = open_checkpoint(path)
    assert contents.state == "torn" and "seconds ago: if a save is underway, look again" in contents.notes[0]
    assert written(path, whole[:50]).notes == []


def test_a_file_that_shrinks_while_it_is_read_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({f"layer.{n}": torch.ones(50) for n in range(200)}, path)
    whole, ends = path.read_bytes(), threading.Event()

    def rewrite() -> None:
        while not ends.is_set():
            path.write_bytes(whole[:9000])
            path.write_bytes(whole)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for _ in range(100):
            contents = open_checkpoint(path)
            assert contents.state != "clean" or len(contents.tensors) == 200
    finally:
        ends.set()
        thread.join()


def test_first_bytes_of_anything_never_raise(tmp_path: Path) -> None:
    chance = random.Random(0)
    heads = [data for data, _ in NOT_CHECKPOINTS.values()] + [
        bytes_of({"a": torch.ones(2)}),
        b"\x80\x02",
        b"PK\x03\x04",
        b"PK\x05\x06",
    ]
    for _ in range(250):
        data = bytearray(chance.choice(heads)[: chance.choice((1, 2, 9, 40, 400, 5000))])
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        contents = written(tmp_path / chance.choice(("a.pt", "a.safetensors", "a.model", "a.index.json")), bytes(data))
        assert contents.state == "clean" or contents.troubles


def test_an_ultralytics_checkpoint_is_recognised_though_its_module_is_pickled_whole(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["saves_like_ultralytics.py", str(tmp_path)])
        runpy.run_path(str(VICTIMS / "saves_like_ultralytics.py"), run_name="__main__")
        for name in [name for name in sys.modules if name.split(".")[0] == "ultralytics"]:
            del sys.modules[name]  # the file is read where that package is not installed
    for name, part in (("last.pt", "ema"), ("best.pt", "model")):
        contents = open_checkpoint(tmp_path / name)
        assert contents.state == "clean" and contents.producer == "ultralytics" and contents.versions["ultralytics"] == "8.3.40"
        module = contents.tree[part]
        assert isinstance(module, Opaque) and module.name == "ultralytics.nn.tasks.DetectionModel"
        assert "ultralytics.nn.tasks.DetectionModel" in contents.needs_code and contents.refused == []
        assert f"{part}.model.0.conv.weight" in {tensor.name for tensor in contents.tensors}


@every_case(
    ("content", "producer"),
    [
        ({"model": {}, "epoch": 3, "best_fitness": 0.1, "train_args": {}}, "ultralytics"),
        ({"model": {}, "epoch": 3, "version": 3}, None),
        ([1, 2], None),
    ],
)
def test_other_tools_are_known_by_the_names_that_they_use(tmp_path: Path, content: object, producer: str | None) -> None:
    assert written(tmp_path / "a.pt", bytes_of(content)).producer == producer


def test_an_array_with_nan_in_a_file_of_a_folder_is_not_finite(tmp_path: Path) -> None:
    torch.save({"module": {"weight": np.array([1.0, np.nan])}}, tmp_path / "mp_rank_00_model_states.pt")
    verdict = verify(open_checkpoint(tmp_path))
    assert verdict.state == "non-finite" and [(one.nan, one.count) for one in verdict.bad] == [(1, 2)]


def test_deepspeed_folders_are_one_checkpoint_and_name_a_missing_rank(tmp_path: Path) -> None:
    folder = tmp_path / "global_step7"
    folder.mkdir()
    torch.save({"module": {"a": torch.ones(2)}, "ds_version": "0.14.0", "global_steps": 7}, folder / "mp_rank_00_model_states.pt")
    for rank in range(3):
        state = {"optimizer_state_dict": {"exp_avg": torch.zeros(4)}}
        torch.save(state, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    contents = open_checkpoint(folder)
    assert contents.state == "clean" and contents.producer == "deepspeed" and contents.versions["deepspeed"] == "0.14.0"
    assert contents.tree["mp_rank_00_model_states"]["module"]["a"].shape == (2,) and len(contents.tensors) == 4
    (folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "rank 1" in open_checkpoint(folder).troubles[0].text


def test_a_header_longer_than_memory_is_not_asked_for(tmp_path: Path) -> None:
    contents = written(tmp_path / "a.safetensors", struct.pack("<Q", (1 << 32) - 1) + b"{" + bytes(100))
    assert contents.state == "unreadable"
