"""RT-DETRv2 and D-FINE, built with `transformers`; and what our loop asks of them.

The models come from `transformers`, which is imported when a model is built. Nothing here needs torchvision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from holdfast.errors import UsageError
from holdfast.train.detect.sizes import Architecture, find
from holdfast.train.detect.weights import fill, is_class_head
from holdfast.train.extras import required

_QUERIES = 300  # of every published size; also the number of predictions per image


class Built(NamedTuple):
    """A model, and in one line where its weights come from."""

    model: nn.Module
    weights: str


def build(architecture: str, *, classes: Sequence[str], imgsz: int, weights: str, dropout: float) -> Built:
    """The model for these classes, on the CPU, in float32 and in training mode.

    `weights` is none (from scratch), auto (published ones), a path, or a name on the hub. Class heads of another number of
    classes are initialised anew.
    """
    chosen = find(architecture)
    config = _config(chosen, classes=classes, imgsz=imgsz, dropout=dropout, frozen=weights != "none")
    kind = getattr(transformers(), f"{chosen.family}ForObjectDetection")
    if weights == "none":
        model, source = kind(config), "none: every layer is initialised at random"
        _initialise(model)
    else:
        model, source = fill(kind, config, architecture, chosen.hub if weights == "auto" else weights)
    model.loss_function = _FullPrecision(model.loss_function)
    return Built(model.train(), source)


def transformers() -> Any:
    """The package `transformers`. Raises UsageError if it or scipy is missing, or a broken torchvision is in the way."""
    required("scipy.optimize", extra="detect")
    package = required("transformers", extra="detect")
    try:
        for name in ("DFineForObjectDetection", "RTDetrV2ForObjectDetection"):
            getattr(package, name)
    except AttributeError:
        raise UsageError("the installed transformers has no D-FINE.", fix="pip install --upgrade transformers") from None
    except (ImportError, RuntimeError) as error:
        reasons = list(_reasons(error))
        if not any("torchvision" in reason for reason in reasons):
            raise UsageError(f"transformers cannot be used: {reasons[-1]}.", fix="pip install --upgrade transformers") from error
        raise UsageError(
            f"the installed torchvision does not work with torch {torch.__version__}: {reasons[-1]}.",
            fix="pip install --upgrade torchvision, or pip uninstall torchvision: this training does not need it",
        ) from error
    return package


def _reasons(error: BaseException | None) -> Iterator[str]:
    """The messages of an error and of what caused it, the first cause last."""
    while error is not None:
        yield str(error).partition("\n")[0].rstrip(".")
        error = error.__cause__ or error.__context__


def _config(chosen: Architecture, *, classes: Sequence[str], imgsz: int, dropout: float, frozen: bool) -> Any:
    """The config of a model for images of `imgsz` pixels, which has one anchor per cell and at most one query per anchor."""
    package = transformers()
    strides = chosen.settings.get("feat_strides", [8, 16, 32])
    anchors = sum((-(-imgsz // stride)) ** 2 for stride in strides)
    return getattr(package, f"{chosen.family}Config")(
        backbone_config=getattr(package, chosen.backbone_kind)(**chosen.backbone),
        freeze_backbone_batch_norms=frozen,
        num_queries=min(_QUERIES, anchors),
        id2label=dict(enumerate(classes)),
        label2id={name: number for number, name in enumerate(classes)},
        initializer_bias_prior_prob=0.01,  # most queries find nothing
        dropout=dropout,
        **chosen.settings,
    )


def _initialise(model: nn.Module) -> None:
    """Initialise for training from scratch, as the authors do.

    `transformers` draws all weights so small (normalisation layers of RT-DETRv2 included) that they suit loaded weights only.
    What it sets on purpose stays: the class heads with their prior, and all layers that begin at zero.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d | nn.Conv2d) or (
            isinstance(module, nn.Linear) and not is_class_head(name) and bool(module.weight.any())
        ):
            module.reset_parameters()
    last: nn.Linear = model.get_submodule("model.enc_bbox_head").layers[-1]  # type: ignore[assignment,index]
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)


class _FullPrecision:
    """The loss of a model in float32, matching included, whatever the model was run in.

    Predictions that are NaN cannot be matched, which ends in an error: the loss is NaN instead, so that the update is skipped.
    """

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def __call__(self, logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(logits.device.type, enabled=False):
            try:
                return self._loss(_float(logits), *map(_float, args), **{name: _float(value) for name, value in kwargs.items()})
            except ValueError:
                given = (value for value in (logits, *args, *kwargs.values()) if isinstance(value, torch.Tensor))
                predictions = [value for value in given if value.requires_grad]
                if all(bool(value.isfinite().all()) for value in predictions):
                    raise
                return sum(value.float().sum() for value in predictions) * torch.nan, {}, None


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def forward_loss(
    model: nn.Module, images: torch.Tensor, boxes: Sequence[torch.Tensor], classes: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The loss of a batch, per box.

    Images are uint8, B×3×S×S; boxes are centre, width and height as fractions of the image, one tensor per image.
    """
    labels = [{"boxes": box.float(), "class_labels": kind.long()} for box, kind in zip(boxes, classes, strict=True)]
    loss: torch.Tensor = model(pixel_values=images.float() / 255, labels=labels).loss
    if not any(len(box) for box in boxes):  # nothing to denoise; but ranks exchange the gradients of all parameters
        loss = loss + sum(weight.sum() * 0 for weight in model.parameters() if weight.requires_grad)
    return loss


@torch.no_grad()
def predict(
    model: nn.Module, images: torch.Tensor, sizes: Sequence[tuple[int, int]] | torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each image its boxes (xyxy, in pixels of the original), scores and classes, the best 300 first.

    `sizes` are heights and widths of the originals, which were stretched to the images' size.
    """
    outputs = model(pixel_values=images.float() / 255)
    scores, centres = outputs.logits.float().sigmoid(), outputs.pred_boxes.float()
    count = scores.shape[-1]
    best, places = scores.flatten(1).topk(min(_QUERIES, scores[0].numel()))
    middle, extent = centres.split(2, dim=-1)
    corners = torch.cat([middle - extent / 2, middle + extent / 2], dim=-1)
    heights, widths = torch.as_tensor(sizes, dtype=torch.float32, device=corners.device).unbind(-1)
    corners = corners * torch.stack([widths, heights, widths, heights], dim=-1)[:, None]
    picked = corners.gather(1, (places // count)[..., None].expand(-1, -1, 4))
    return list(zip(picked, best, places % count, strict=True))
