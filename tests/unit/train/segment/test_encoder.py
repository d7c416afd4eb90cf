"""Encoders from timm. Its torchvision is often one for CUDA, which lacks an operator where torch is one for the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("timm") is None:
    pytest.skip("needs pip install 'holdfast[segment]'", allow_module_level=True)
try:
    import timm
except RuntimeError:  # operator torchvision::nms does not exist: declared, it is never called
    LIBRARY = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm

from holdfast.errors import UsageError
from holdfast.train.segment.encoder import TimmEncoder, build
from holdfast.train.segment.exported import load_model
from holdfast.train.segment.model import loss_of


def made(backbone: str, imgsz: int = 64, weights: str = "none", **more: Any) -> Any:
    return build(backbone, imgsz, weights, **{"experts": 2, "deep_supervision": True, **more})


@pytest.mark.parametrize("backbone", ["edgenext_xx_small", "resnet10t", "mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_any_model_with_features_is_an_encoder(backbone: str) -> None:
    model, source = made(backbone)
    assert source.startswith("none")
    logits = model.train()(torch.rand(2, 3, 64, 64))
    assert logits[0].shape == (2, 1, 64, 64)
    loss_of(logits, torch.ones(2, 64, 64)).backward()
    layers = model.encoder.layers()
    assert len(layers) > 2
    model.train_only(1)
    trained = [name for name, one in model.encoder.named_parameters() if one.requires_grad]
    last = {id(one) for one in layers[-1].parameters()}
    assert trained and all(id(model.encoder.get_parameter(name)) in last for name in trained)


def test_weights_of_the_encoder_and_of_the_whole_model_are_taken_from_a_file(tmp_path: Path) -> None:
    whole = timm.create_model("resnet10t")
    torch.save(whole.state_dict(), tmp_path / "encoder.pth")
    model, source = made("resnet10t", weights=str(tmp_path / "encoder.pth"))
    assert "the encoder" in source
    assert torch.equal(model.encoder.body["layer1"][0].conv1.weight, whole.layer1[0].conv1.weight)
    torch.save({"backbone": "resnet10t", "num_experts": 2, "imgsz": 64, "state_dict": model.state_dict()}, tmp_path / "model.pt")
    again, source = made("resnet10t", weights=str(tmp_path / "model.pt"))
    assert "the whole model" in source
    for loaded in (again, load_model(tmp_path / "model.pt")):
        assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    with pytest.raises(UsageError, match="do not fit"):
        made("resnet10t", weights=str(tmp_path / "model.pt"), experts=3)


def test_a_model_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        made("edgenext_bse")
    assert caught.value.fix == "--backbone edgenext_base"


def test_images_are_normalised_as_the_encoder_expects_them() -> None:
    encoder = TimmEncoder("resnet10t", 64).eval()
    images = torch.rand(1, 3, 64, 64)
    mean, std = (torch.tensor(timm.get_pretrained_cfg("resnet10t").__dict__[name]).view(3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        assert torch.equal(encoder(images)[-1], encoder.body((images - mean) / std)[-1])
