"""Files as Keras writes them: `.weights.h5`, and `.keras`, an archive around one."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.checkpoints.clean import verified
from holdfast.checkpoints.facts import facts_of
from holdfast.checkpoints.formats.find import find_checkpoints
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.verify import Verdict, verify

KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)


def weights(kernel: Any = KERNEL) -> bytes:
    """A model of one layer, and its optimizer after 7 updates."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install h5py")
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        file["layers/dense/vars/0"], file["layers/dense/vars/1"] = kernel, np.zeros(4, np.float32)
        for number, value in enumerate((np.int32(7), np.float32(0.1), *[kernel * 0] * 9)):
            file[f"optimizer/vars/{number}"] = value
    return memory.getvalue()


def archive(content: bytes) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as file:
        file.writestr("metadata.json", json.dumps({"keras_version": "3.8.0"}))
        file.writestr("config.json", json.dumps({"class_name": "Sequential"}))
        file.writestr("model.weights.h5", content)
    return memory.getvalue()


def written(path: Path, content: bytes) -> Verdict:
    path.write_bytes(content)
    return verify(open_checkpoint(path))


@pytest.mark.parametrize(("name", "pack"), [("a.weights.h5", bytes), ("a.keras", archive)], ids=["weights", "archive"])
def test_weights_and_the_step_are_read_and_a_cut_or_non_finite_file_is_not_clean(tmp_path: Path, name: str, pack: Any) -> None:
    path = tmp_path / name
    assert written(path, pack(weights())).state == "clean" and find_checkpoints(tmp_path) == [path]
    contents = open_checkpoint(path)
    kernel = contents.tree["model"]["layers.dense.vars.0"]
    assert contents.storages[kernel.storage].read(0, 48) == KERNEL.tobytes() and kernel.shape == (3, 4)
    assert facts_of(contents.tree, path, lambda _: None).step == 7
    assert list(contents.tree["optimizer"])[-1] == "vars.10", "in the order of their numbers"
    for size in range(1000, path.stat().st_size, 1000):
        verdict = written(tmp_path / f"cut-{name}", path.read_bytes()[:size])
        assert verdict.state == "torn" and verdict.troubles[0].fix
    bad = written(path, pack(weights(np.where(KERNEL == 5, np.nan, KERNEL))))
    assert bad.state == "non-finite" and [(one.name, one.nan) for one in bad.bad if one.name.startswith("model")] == [
        ("model.layers.dense.vars.0", 1)
    ]


def test_a_byte_that_changed_in_an_archive_is_found(tmp_path: Path) -> None:
    content = bytearray(archive(weights()))
    content[content.index(KERNEL.tobytes()) + 9] ^= 1
    assert "do not match their checksum" in written(tmp_path / "a.keras", bytes(content)).troubles[0].text


def test_weights_that_were_never_written_and_data_in_hdf5_are_no_checkpoints(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, words in (("a.weights.h5", "holds no weights"), ("data.h5", "not a checkpoint of Keras")):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_group("x")
        assert words in (verified(tmp_path / name)[1] or "")


def test_a_file_can_be_written_again_while_it_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 refuses to write a file that it has open by name: a backup that Keras overwrites would end the training."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "latest.weights.h5"
    path.write_bytes(weights())
    visit = h5py.File.visititems

    def overwritten_meanwhile(self: Any, call: Any) -> Any:
        with h5py.File(path, "w") as file:
            file["layers/dense/vars/0"] = KERNEL
        return visit(self, call)

    monkeypatch.setattr(h5py.File, "visititems", overwritten_meanwhile)
    open_checkpoint(path)
    monkeypatch.undo()
    assert verified(path)[1] is None and list(open_checkpoint(path).tree) == ["model"], "the new one, without an optimizer"


def test_without_h5py_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    trouble = written(tmp_path / "a.keras", archive(b"\x89HDF\r\n\x1a\n")).troubles[0]
    assert trouble.fix == "pip install h5py" and "Keras" in trouble.text
