"""A trained segmentation model as ONNX gives what the model gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_segment import SmallEncoder

from holdfast.train.export import export_onnx
from holdfast.train.segment.exported import foreground
from holdfast.train.segment.model import Segmenter

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs pip install 'holdfast[export]'")


@pytest.mark.slow
def test_the_file_gives_the_probabilities_of_the_model_for_any_batch(tmp_path: Path) -> None:
    import onnxruntime

    torch.manual_seed(0)
    model = Segmenter(SmallEncoder(), experts=2, deep_supervision=True)
    assert export_onnx(foreground(model, 32), tmp_path / "model.onnx") < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    images = torch.rand(5, 3, 32, 32)
    (found,) = session.run(["foreground"], {"images": images.numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(found), model(images)[0].sigmoid()[:, 0], atol=1e-5)
    assert found.shape == (5, 32, 32)
