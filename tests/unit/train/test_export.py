from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from holdfast.errors import DoesNotMatch, UsageError
from holdfast.train import extras
from holdfast.train.detect.exported import Detector, detector
from holdfast.train.export import export_onnx

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs pip install 'holdfast[export]'")


class Outputs(NamedTuple):
    logits: torch.Tensor
    pred_boxes: torch.Tensor


class SmallDetector(nn.Module):
    """Five boxes an image. It asks for the batch as D-FINE does, by `len(tensor)`, and has dropout, as all of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5 * 7)

    def forward(self, pixel_values: torch.Tensor) -> Outputs:
        features = self.dropout(self.stem(pixel_values).relu().mean((2, 3)))
        rows = self.head(features).reshape(len(features), 5, 7)
        return Outputs(logits=rows[..., 4:], pred_boxes=rows[..., :4].sigmoid())


class Exported(NamedTuple):
    model: SmallDetector
    path: Path
    difference: float


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path, model = tmp_path_factory.mktemp("export") / "model.onnx", SmallDetector().train()
    return Exported(model, path, export_onnx(detector(model, imgsz=32, classes=["cat", "dog", "bird"]), path))


def session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_file_computes_what_the_model_computes_for_any_batch(exported: Exported, batch: int) -> None:
    images = torch.rand(batch, 3, 32, 32)
    with torch.no_grad():
        boxes, scores = Detector(exported.model).eval()(images)
    results = session(exported.path).run(["boxes", "scores"], {"images": images.numpy()})
    assert torch.allclose(boxes, torch.from_numpy(results[0]), atol=1e-5)
    assert torch.allclose(scores, torch.from_numpy(results[1]), atol=1e-5)
    assert exported.difference < 1e-5


def test_the_file_knows_its_classes_and_image_size(exported: Exported) -> None:
    metadata = session(exported.path).get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == ["cat", "dog", "bird"]
    assert metadata["imgsz"] == "32"


def test_the_export_leaves_one_file_and_the_process_as_it_was(exported: Exported) -> None:
    assert [path.name for path in exported.path.parent.iterdir()] == ["model.onnx"]
    assert "TRANSFORMERS_DISABLE_TORCH_CHECK" not in os.environ
    assert logging.root.manager.disable == 0


def test_a_model_that_differs_is_refused_and_the_good_file_stays(exported: Exported) -> None:
    before = exported.path.read_bytes()
    with pytest.raises(DoesNotMatch, match="differs from the trained one"):
        export_onnx(detector(exported.model, imgsz=32, classes=["cat"]), exported.path, tolerance=-1.0)
    assert exported.path.read_bytes() == before
    assert len(list(exported.path.parent.iterdir())) == 1


def test_a_missing_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.importlib.sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match="onnxruntime is not installed") as caught:
        export_onnx(detector(SmallDetector(), imgsz=32, classes=["cat"]), tmp_path / "model.onnx")
    assert caught.value.fix == "pip install 'holdfast[export]'"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["dfine-n", "rtdetr-r18"])
def test_the_architectures_that_holdfast_trains_are_exported(tmp_path: Path, architecture: str) -> None:
    from holdfast.train.detect.architectures import build

    torch.manual_seed(0)
    model = build(architecture, classes=["cat", "dog"], imgsz=96, weights="none", dropout=0.1).model
    assert export_onnx(detector(model, imgsz=96, classes=["cat", "dog"]), tmp_path / "model.onnx") < 1e-4
