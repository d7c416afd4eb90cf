"""The model: an encoder that gives features at several scales, and a decoder with experts at every scale.

    image ── encoder ──> features at 1/32, 1/16, 1/8, 1/4 ──┐
      └───── two convolutions ──> features at 1/2, 1/1 ─────┤ (edges: most encoders begin at 1/4)
                                                            v
    from coarse to fine: upsample, add the features of this scale, mix the experts, predict (deep supervision)

A gate weighs the experts at every pixel. Experts differ in how far they look. All normalisation of the decoder is GroupNorm,
so a batch of one image trains as well as a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F

_WIDTH = 128  # channels of the coarse scales; the finer ones have fewer
_AT_FULL_SIZE = 16  # channels
_GROUPS = 8
_FURTHEST = 4  # dilation of an expert


class Encoder(Protocol):
    """A module with the channels of its features and how much smaller than the image they are, the finest first."""

    channels: Sequence[int]
    reductions: Sequence[int]

    def __call__(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Features B×C×H×W of images with values from 0 to 1."""

    def layers(self) -> list[nn.Module]:
        """Its layers in the order of the forward pass; they are unfrozen from the last one on."""


class Experts(nn.Module):
    """A mixture of small convolutions: each pixel's gate says how much each of them counts."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Conv2d(width, experts, 1)
        self.experts = nn.ModuleList()
        for number in range(experts):
            reach = number % _FURTHEST + 1
            self.experts.append(nn.Conv2d(width, width, 3, padding=reach, dilation=reach, bias=False))
        self.norm = nn.GroupNorm(_GROUPS, width)
        self.out = _block(width, width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features of the same shape."""
        weights = self.gate(features).softmax(dim=1)
        mixed = sum(expert(features) * weights[:, place : place + 1] for place, expert in enumerate(self.experts))
        out: torch.Tensor = self.out(F.gelu(self.norm(mixed)))
        return features + out


class Decoder(nn.Module):
    """From the features of all scales to a map of logits in full size."""

    def __init__(self, channels: Sequence[int], reductions: Sequence[int], experts: int) -> None:
        super().__init__()
        widths = [min(_WIDTH, _AT_FULL_SIZE * reduction) for reduction in reductions]
        self.lateral = nn.ModuleList(nn.Conv2d(inputs, width, 1) for inputs, width in zip(channels, widths, strict=True))
        self.narrow = nn.ModuleList(nn.Conv2d(inputs, width, 1) for inputs, width in zip(widths[1:], widths, strict=False))
        self.mix = nn.ModuleList(Experts(width, experts) for width in widths)
        self.heads = nn.ModuleList(nn.Conv2d(width, 1, 1) for width in widths)

    def forward(self, features: Sequence[torch.Tensor], *, every_scale: bool) -> list[torch.Tensor]:
        """Logits B×1×H×W, the finest first; those of the coarser scales only with `every_scale`."""
        logits: list[torch.Tensor] = []
        below: torch.Tensor | None = None
        for place in reversed(range(len(features))):
            here = self.lateral[place](features[place])
            if below is not None:
                here = here + F.interpolate(self.narrow[place](below), here.shape[-2:], mode="bilinear", align_corners=False)
            below = self.mix[place](here)
            if every_scale or place == 0:
                logits.insert(0, self.heads[place](below))
        return logits


class Segmenter(nn.Module):
    """Images B×3×S×S with values from 0 to 1 in, logits of the foreground out."""

    def __init__(self, encoder: Any, *, experts: int, deep_supervision: bool) -> None:
        super().__init__()
        self.encoder, self.deep_supervision = encoder, deep_supervision
        fine = [1] if min(encoder.reductions) <= 2 else [1, 2]
        widths = [_AT_FULL_SIZE * reduction for reduction in fine]
        self.edges = nn.ModuleList(
            _block(inputs, width, stride=min(reduction, 2))
            for inputs, width, reduction in zip([3, *widths], widths, fine, strict=False)
        )
        self.decoder = Decoder([*widths, *encoder.channels], [*fine, *encoder.reductions], experts)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Logits B×1×H×W, in full size first; in training with deep supervision those of every coarser scale follow."""
        features: list[torch.Tensor] = []
        fine = images
        for edge in self.edges:
            fine = edge(fine)
            features.append(fine)
        features += self.encoder(images)
        logits: list[torch.Tensor] = self.decoder(features, every_scale=self.training and self.deep_supervision)
        return logits

    def train_only(self, layers: int) -> bool:
        """Train the decoder and so many of the encoder's layers, the last ones first; whether that is another set than before.

        Frozen layers are in evaluation mode, so that their statistics stay as they are.
        """
        before = [parameter.requires_grad for parameter in self.parameters()]
        self.requires_grad_(True)
        parts = self.encoder.layers()
        if layers < len(parts):
            self.encoder.requires_grad_(False).eval()
            for part in parts[len(parts) - layers :]:
                part.requires_grad_(True).train()
        if not self.deep_supervision:
            for head in list(self.decoder.heads)[1:]:
                head.requires_grad_(False)
        return before != [parameter.requires_grad for parameter in self.parameters()]


def loss_of(logits: Sequence[torch.Tensor], masks: torch.Tensor) -> torch.Tensor:
    """Cross entropy and Dice at every scale that has logits: each coarser one counts for less, 0.7 of the first in all.

    `masks` are B×S×S, 0 or 1. At a coarse scale the target is how much of each pixel is foreground.
    """
    target = masks[:, None].float()
    loss = _scale_loss(logits[0].float(), target)
    weights = [0.5**place for place in range(len(logits) - 1)]
    for weight, coarse in zip(weights, logits[1:], strict=True):
        height, width = coarse.shape[-2:]
        there = F.adaptive_avg_pool2d(target, (height, width))
        loss = loss + 0.7 * weight / sum(weights) * _scale_loss(coarse.float(), there)
    return loss


def _scale_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    entropy = F.binary_cross_entropy_with_logits(logits, target)
    probabilities = logits.sigmoid()
    both, all = (probabilities * target).sum((1, 2, 3)), (probabilities + target).sum((1, 2, 3))
    return entropy + (1 - (2 * both + 1) / (all + 1)).mean()


def _block(channels: int, width: int, *, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(_GROUPS, width), nn.GELU())
