"""RT-DETRv2 and D-FINE: the published sizes, weights from anywhere, the loss and the predictions that the loop asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.errors import UsageError
from holdfast.train.detect import architectures
from holdfast.train.detect.architectures import build, forward_loss, predict
from holdfast.train.detect.sizes import ARCHITECTURES, find

CLASSES = ["red", "green", "blue"]
PUBLISHED = {  # million parameters, as the authors' tables have them
    "dfine-n": 4, "dfine-s": 10, "dfine-m": 19, "dfine-l": 31, "dfine-x": 62,
    "rtdetr-r18": 20, "rtdetr-r34": 31, "rtdetr-r50": 42, "rtdetr-r101": 76,
}  # fmt: skip
FAMILIES = ("dfine-n", pytest.param("rtdetr-r18", marks=pytest.mark.slow))


def made(architecture: str = "dfine-n", *, weights: str | Path = "none") -> nn.Module:
    torch.manual_seed(0)
    return build(architecture, classes=CLASSES, imgsz=64, weights=str(weights), dropout=0.0).model


def batch(counts: tuple[int, ...] = (1, 3)) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (len(counts), 3, 64, 64), dtype=torch.uint8, generator=random)
    boxes = [
        torch.cat([0.3 + 0.4 * torch.rand(n, 2, generator=random), 0.1 + 0.2 * torch.rand(n, 2, generator=random)], 1)
        for n in counts
    ]
    return {"images": images, "boxes": boxes, "classes": [torch.arange(n) % 3 for n in counts]}


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def parts_of(whole: dict[str, Any], size: int) -> list[dict[str, Any]]:
    return [{name: rows[at : at + size] for name, rows in whole.items()} for at in range(0, len(whole["images"]), size)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_has_the_published_size(architecture: str) -> None:
    with torch.device("meta"):
        chosen = find(architecture)
        config = architectures._config(chosen, classes=[str(n) for n in range(80)], imgsz=640, dropout=0.0, frozen=False)
        model = getattr(architectures.transformers(), f"{chosen.family}ForObjectDetection")(config)
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    assert PUBLISHED[architecture] - 0.5 < millions < PUBLISHED[architecture] + 1


def test_an_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find("dfine_s")
    assert caught.value.fix == "--architecture dfine-s"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_both_families_learn_one_batch_from_scratch(architecture: str) -> None:
    model, data = made(architecture), batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    losses = []
    for _ in range(4):
        loss = forward_loss(model, **data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 60  # class heads begin with a prior: otherwise all queries would predict something
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_loss_is_float32_under_bf16_and_close_to_it(architecture: str) -> None:
    model, data = made(architecture), batch()
    losses = []
    for half in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(forward_loss(model, **data))
    losses[1].backward()
    assert losses[1].dtype == torch.float32
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.1)
    assert gradients(model).isfinite().all()


@pytest.mark.parametrize("architecture", FAMILIES)
def test_predictions_that_are_nan_give_a_loss_that_is_skipped_and_no_error(architecture: str) -> None:
    model, data = made(architecture), batch()
    handle = model.register_forward_pre_hook(
        lambda _, args, named: (args, {**named, "pixel_values": named["pixel_values"] * torch.nan}), with_kwargs=True
    )
    loss = forward_loss(model, **data)
    loss.backward()
    assert loss.isnan()
    assert [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None] == []
    handle.remove()
    with pytest.raises((ValueError, IndexError, RuntimeError)):  # a mistake in the labels is still an error
        forward_loss(model, data["images"], [-boxes for boxes in data["boxes"]], data["classes"])


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_batch_without_boxes_gives_every_parameter_a_gradient(architecture: str) -> None:
    """Ranks exchange the gradients of all parameters: one that is absent on one rank stops them all."""
    model = made(architecture)
    forward_loss(model, **batch((0, 0))).backward()
    assert [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None] == []


@pytest.mark.parametrize("architecture", FAMILIES)
def test_parts_weighted_by_boxes_give_the_gradient_of_the_whole_batch(architecture: str) -> None:
    """Without what a part cannot know of the others: the noise of denoising, and the statistics of batch normalisation."""
    model, whole = made(architecture), batch((1, 5, 2, 2))
    model.config.num_denoising = 0  # type: ignore[union-attr]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    forward_loss(model, **whole).backward()
    expected = gradients(model)
    total = sum(map(len, whole["boxes"]))
    model.zero_grad()
    for part in parts_of(whole, 2):
        (forward_loss(model, **part) * sum(map(len, part["boxes"])) / total).backward()
    assert (gradients(model) - expected).norm() < 1e-4 * expected.norm()


def test_predictions_are_in_pixels_of_the_original() -> None:
    model, data = made().eval(), batch()
    whole = predict(model, data["images"], [(64, 64), (64, 64)])
    boxes, scores, classes = predict(model, data["images"], torch.tensor([[50, 100], [64, 64]]))[0]
    assert len(boxes) == len(scores) == len(classes) <= 300
    assert torch.equal(scores, scores.sort(descending=True).values)
    assert set(classes.tolist()) <= {0, 1, 2}
    factors = torch.tensor([100, 50, 100, 50]) / 64
    torch.testing.assert_close(boxes, whole[0][0] * factors)


def test_a_prediction_is_the_box_that_the_model_gave() -> None:
    model, data = made().eval(), batch()
    with torch.no_grad():
        outputs = model(pixel_values=data["images"].float() / 255)
    query, kind = divmod(int(outputs.logits[0].flatten().argmax()), len(CLASSES))
    x, y, width, height = outputs.pred_boxes[0, query].tolist()
    boxes, _, classes = predict(model, data["images"], [(200, 100), (64, 64)])[0]
    assert classes[0] == kind
    expected = [(x - width / 2) * 100, (y - height / 2) * 200, (x + width / 2) * 100, (y + height / 2) * 200]
    assert boxes[0].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("form", ["file", "folder"])
def test_saved_weights_are_loaded_again(tmp_path: Path, architecture: str, form: str) -> None:
    model = made(architecture)
    path = tmp_path / ("weights.pt" if form == "file" else "model")
    torch.save({"model": model.state_dict()}, path) if form == "file" else model.save_pretrained(path)  # type: ignore[operator]
    loaded, line = build(architecture, classes=CLASSES, imgsz=64, weights=str(path), dropout=0.0)
    saved, count = model.state_dict(), len(list(loaded.parameters()))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.state_dict().items())
    assert line == f"{path}: {count} of {count} parameters loaded"


def test_weights_of_other_classes_keep_all_but_the_class_heads(tmp_path: Path) -> None:
    model = made()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    loaded, line = build("dfine-n", classes=["one", "two"], imgsz=64, weights=str(tmp_path / "w.pt"), dropout=0.0)
    state, saved = loaded.state_dict(), model.state_dict()
    new = {name for name, tensor in state.items() if tensor.shape != saved[name].shape}
    assert all(torch.equal(state[name], saved[name]) for name in state.keys() - new)
    assert "class heads are new, for 2 classes" in line
    assert all("class_embed" in name or "score_head" in name for name in new)
    assert forward_loss(loaded, batch((1, 1))["images"], batch((1, 1))["boxes"], [torch.tensor([1])] * 2).isfinite()


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        ("dfine-n", "dfine-s"),
        *(pytest.param("rtdetr-r18", wanted, marks=pytest.mark.slow) for wanted in ("rtdetr-r34", "dfine-n")),
    ],
)
def test_weights_of_another_architecture_are_refused(tmp_path: Path, saved: str, wanted: str) -> None:
    torch.save(made(saved).state_dict(), tmp_path / "w.pt")
    with pytest.raises(UsageError, match=f"do not fit {wanted}") as caught:
        made(wanted, weights=tmp_path / "w.pt")
    assert "--weights none" in caught.value.fix


@pytest.mark.parametrize("weights", ["missing.pt", "a/b/c", "./nowhere"])
def test_weights_that_do_not_exist_are_named(weights: str) -> None:
    with pytest.raises(UsageError, match="there are no weights at"):
        made(weights=weights)


def test_without_a_network_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(hub, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        made(weights="auto")
    assert "ustc-community/dfine-nano-coco" in caught.value.problem
    assert "\n" not in caught.value.problem
    assert "--weights none" in caught.value.fix


@pytest.mark.slow
def test_a_torchvision_that_does_not_fit_torch_is_named(tmp_path: Path) -> None:
    """transformers imports torchvision wherever it finds one, and reports something else when that fails."""
    broken = tmp_path / "torchvision"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    facts = tmp_path / "torchvision-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from holdfast.errors import UsageError\n"
        "from holdfast.train.detect.architectures import build\n"
        "try:\n    build('dfine-n', classes=['a'], imgsz=64, weights='none', dropout=0.0)\n"
        "except UsageError as error:\n    print(error.problem, '|', error.fix)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "torchvision does not work" in told
    assert "pip uninstall torchvision" in told
