"""An encoder from `timm`, with published weights where they can be had, and what a file of weights fills of the model."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import UsageError
from holdfast.train.detect.weights import from_hub, read_weights
from holdfast.train.extras import required
from holdfast.train.segment.model import Segmenter

_STAGED = ("blocks", "layers", "stages")  # parts whose children are layers of their own


class TimmEncoder(nn.Module):
    """A model of timm as a function of images to features at several scales."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, name: str, imgsz: int, *, weights: Path | None = None) -> None:
        super().__init__()
        self.body = _created(name, imgsz, weights)
        self.channels: list[int] = self.body.feature_info.channels()
        self.reductions: list[int] = self.body.feature_info.reduction()
        self._channels_last = str(getattr(self.body, "output_fmt", "")).upper().endswith("NHWC")
        for kind in ("mean", "std"):
            values = getattr(timm().get_pretrained_cfg(name), kind)
            self.register_buffer(kind, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Features B×C×H×W, the finest first."""
        features = self.body((images - self.mean) / self.std)
        return [feature.permute(0, 3, 1, 2) if self._channels_last else feature for feature in features]

    def layers(self) -> list[nn.Module]:
        """Its layers in the order of the forward pass."""
        parts = list[nn.Module]()
        inner = self.body.model if hasattr(self.body, "model") else self.body
        for name, part in inner.named_children():
            parts += part.children() if name in _STAGED else [part]
        return [part for part in parts if next(part.parameters(), None) is not None]


def timm() -> Any:
    """The package. Raises UsageError where it is missing, or where its torchvision does not work."""
    try:
        return required("timm", extra="segment")
    except RuntimeError as error:  # operator torchvision::nms does not exist
        raise UsageError(
            f"timm cannot be used: the installed torchvision does not work with torch {torch.__version__} ({error}).",
            fix="install the torchvision that belongs to this torch, from the same index: https://pytorch.org/get-started/locally",
        ) from None


def _created(name: str, imgsz: int, weights: Path | None) -> Any:
    package, more = timm(), dict[str, Any]()
    config = package.get_pretrained_cfg(name) if package.is_model(name) else None
    if config is None:
        near = difflib.get_close_matches(name, package.list_models(), n=1)
        raise UsageError(f"timm has no model {name!r}.", fix=f"--backbone {near[0]}" if near else "--backbone resnet18")
    if config.fixed_input_size:
        more["img_size"] = imgsz
    if weights is not None:
        more |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(weights)}}
    try:
        return package.create_model(name, features_only=True, **more)
    except (RuntimeError, AttributeError, AssertionError, TypeError) as error:  # what timm raises where a model has no features
        problem = f"{name} cannot be the encoder: {' '.join(str(error).split())[:200]}."
        raise UsageError(problem, fix="--backbone edgenext_base, or --weights none if the weights do not fit") from error


def build(backbone: str, imgsz: int, weights: str, *, experts: int, deep_supervision: bool) -> tuple[Segmenter, str]:
    """The model, and in one line where its weights come from.

    `weights` is none, auto (published ones of the encoder; none where they cannot be had), a name on the hub, or a path: of a
    model that was trained here, or of the encoder alone.
    """
    whole, file, source = dict[str, torch.Tensor](), None, "none: every layer is initialised at random"
    if weights == "auto":
        hub = timm().get_pretrained_cfg(backbone).hf_hub_id if timm().is_model(backbone) else None
        try:
            file = from_hub(hub) if hub else None
            source = f"{hub}: loaded the encoder; the decoder is initialised at random" if file else source
        except UsageError as error:
            source = f"none: every layer is initialised at random, since {error.problem}"
    elif weights != "none":
        file = Path(weights) if Path(weights).exists() else from_hub(weights)
        tensors = read_weights(file)
        whole = tensors if any(tensor.startswith("decoder.") for tensor in tensors) else whole
        source = f"{weights}: loaded {'the whole model' if whole else 'the encoder; the decoder is initialised at random'}"
    encoder = TimmEncoder(backbone, imgsz, weights=None if whole else file)
    model = Segmenter(encoder, experts=experts, deep_supervision=deep_supervision)
    if whole:
        fill(model, whole, weights)
    return model, source


def fill(model: Segmenter, tensors: dict[str, torch.Tensor], source: str) -> None:
    """Load all weights of a model; one that differs is an error that names it."""
    own = model.state_dict()
    wrong = [name for name, value in own.items() if name not in tensors or tensors[name].shape != value.shape]
    if wrong:
        problem = f"the weights in {source} do not fit: {len(wrong)} of {len(own)} differ, such as {wrong[0]}."
        raise UsageError(problem, fix="--backbone and --num-experts as they were trained with, or --weights none")
    model.load_state_dict({name: tensors[name] for name in own})
