"""The sizes of RT-DETRv2 and D-FINE that were published, as rows of facts: channels, depths, number of decoder layers."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One size of one family: `settings` and `backbone` are arguments of the configs in `transformers`."""

    family: str  # the prefix of the classes in transformers
    hub: str  # published weights
    lr: float  # learning rate at a batch of 16
    backbone_kind: str
    backbone: dict[str, Any] = field(repr=False)
    settings: dict[str, Any] = field(repr=False)


def _dfine(hub: str, backbone: dict[str, Any], *, lr: float = 2e-4, levels: int = 3, **settings: Any) -> Architecture:
    channels, strides, points = backbone["stage_out_channels"][-levels:], [8, 16, 32], {2: [6, 6], 3: [3, 6, 3]}[levels]
    hidden = settings.get("encoder_hidden_dim", 256)
    return Architecture(
        family="DFine",
        hub=f"ustc-community/dfine-{hub}-coco",
        lr=lr,
        backbone_kind="HGNetV2Config",
        backbone={**backbone, "hidden_sizes": backbone["stage_out_channels"], "out_indices": [2, 3, 4][-levels:]},
        settings={
            "encoder_in_channels": channels,
            "decoder_in_channels": [hidden] * levels,
            "encode_proj_layers": [levels - 1],
            "feat_strides": strides[-levels:],
            "num_feature_levels": levels,
            "decoder_n_points": points,
            **settings,
        },
    )


def _hgnet(stem: list[int], middle: list[int], out: list[int], blocks: list[int], layers: int, *, affine: bool) -> dict[str, Any]:
    """HGNetV2: `affine` is the learnable scale after each activation, which the small ones have."""
    return {
        "stem_channels": [3, *stem],
        "stage_in_channels": [stem[-1], *out[:-1]],
        "stage_mid_channels": middle,
        "stage_out_channels": out,
        "stage_num_blocks": blocks,
        "stage_numb_of_layers": [layers] * 4,
        "use_learnable_affine_block": affine,
    }


def _rtdetr(depth: int, depths: list[int], *, bottleneck: bool, **settings: Any) -> Architecture:
    channels = [256, 512, 1024, 2048] if bottleneck else [64, 128, 256, 512]
    hidden = settings.get("encoder_hidden_dim", 256)
    return Architecture(
        family="RTDetrV2",
        hub=f"PekingU/rtdetr_v2_r{depth}vd",
        lr=1e-4,
        backbone_kind="RTDetrResNetConfig",
        backbone={
            "hidden_sizes": channels,
            "depths": depths,
            "layer_type": "bottleneck" if bottleneck else "basic",
            "out_indices": [2, 3, 4],
        },
        settings={"encoder_in_channels": channels[1:], "decoder_in_channels": [hidden] * 3, **settings},
    )


_B0 = _hgnet([16, 16], [16, 32, 64, 128], [64, 256, 512, 1024], [1, 1, 2, 1], 3, affine=True)
_B2 = _hgnet([24, 32], [32, 64, 128, 256], [96, 384, 768, 1536], [1, 1, 3, 1], 4, affine=True)
_B4 = _hgnet([32, 48], [48, 96, 192, 384], [128, 512, 1024, 2048], [1, 1, 3, 1], 6, affine=False)
_B5 = _hgnet([32, 64], [64, 128, 256, 512], [128, 512, 1024, 2048], [1, 2, 5, 2], 6, affine=False)

_NANO = {"d_model": 128, "encoder_hidden_dim": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
_WIDE = {"encoder_hidden_dim": 384, "encoder_ffn_dim": 2048}

ARCHITECTURES = {
    "dfine-n": _dfine("nano", _B0, lr=4e-4, levels=2, decoder_layers=3, hidden_expansion=0.34, depth_mult=0.5, **_NANO),
    "dfine-s": _dfine("small", _B0, decoder_layers=3, hidden_expansion=0.5, depth_mult=0.34),
    "dfine-m": _dfine("medium", _B2, decoder_layers=4, depth_mult=0.67),
    "dfine-l": _dfine("large", _B4, decoder_layers=6),
    "dfine-x": _dfine("xlarge", _B5, decoder_layers=6, reg_scale=8.0, **_WIDE),
    "rtdetr-r18": _rtdetr(18, [2, 2, 2, 2], bottleneck=False, hidden_expansion=0.5, decoder_layers=3),
    "rtdetr-r34": _rtdetr(34, [3, 4, 6, 3], bottleneck=False, hidden_expansion=0.5, decoder_layers=4),
    "rtdetr-r50": _rtdetr(50, [3, 4, 6, 3], bottleneck=True),
    "rtdetr-r101": _rtdetr(101, [3, 4, 23, 3], bottleneck=True, **_WIDE),
}


def find(name: str) -> Architecture:
    """The architecture of that name; an unknown one is an error that names the nearest."""
    if name not in ARCHITECTURES:
        near = difflib.get_close_matches(name.lower(), ARCHITECTURES, n=1, cutoff=0.4)
        fix = f"--architecture {near[0]}" if near else f"--architecture with one of {', '.join(ARCHITECTURES)}"
        raise UsageError(f"there is no architecture {name!r}.", fix=fix)
    return ARCHITECTURES[name]
