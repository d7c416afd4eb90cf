"""Samples of saved batches: the bad ones first, as pictures or values, and nothing that only running code could load."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from holdfast.diagnosis.saved_samples import saved_samples
from holdfast.inside.observers.batches import DrawnBatch, save_batches
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path, "run", started=1.0)
    Recorder.start(run, 0).close()
    return run


def save(run: RunFolder, batch: Any, step: int = 12) -> None:
    indices = [100 + place for place in range(20)]
    drawn = DrawnBatch(batch, indices, indices, 0, dataset="Cells")
    save_batches(run.path / "rank-0" / "batches", step, [drawn], state={}, run_later=lambda job: job())


def test_images_are_pictures_with_bad_pixels_in_red_and_the_bad_sample_comes_first(run: RunFolder) -> None:
    images = torch.rand(20, 3, 200, 100)
    images[7, :, :50] = float("nan")
    save(run, (images, torch.arange(20)))
    (batch,) = saved_samples(run)
    assert (batch["step"], batch["dataset"], batch["bad_samples"]) == (12, "Cells", [107])
    assert [one["index"] for one in batch["samples"]] == [107, *range(100, 107), *range(108, 112)]
    first = batch["samples"][0]
    assert first["bad"] and first["fields"]["1"] == {"values": ["7"], "shape": []}
    picture = Image.open(io.BytesIO(base64.b64decode(first["fields"]["0"]["picture"].partition(",")[2])))
    assert max(picture.size) <= 96 and picture.getpixel((0, 0)) == (213, 0, 0) != picture.getpixel((0, picture.height - 1))


def test_rows_are_values_and_the_newest_batch_comes_first(run: RunFolder) -> None:
    save(run, {"x": torch.arange(60.0).reshape(20, 3)}, step=3)
    save(run, {"x": torch.ones(20, 3)}, step=30)
    newer, older = saved_samples(run)
    assert (newer["step"], older["step"]) == (30, 3)
    assert older["samples"][1]["fields"] == {"'x'": {"values": ["3", "4", "5"], "shape": [3]}}


def test_a_batch_of_own_classes_or_a_damaged_file_is_named_without_its_samples(run: RunFolder) -> None:
    save(run, [torch.ones(4, 3), Path("not a tensor")])
    save(run, torch.ones(4, 3), step=20)
    (run.path / "rank-0" / "batches" / "step-000020.pt").write_bytes(b"PK\x03\x04 torn")
    assert [(one["step"], one["samples"]) for one in saved_samples(run)] == [(20, []), (12, [])]
    assert saved_samples(RunFolder.create(run.path.parent, "other", started=1.0)) == []
