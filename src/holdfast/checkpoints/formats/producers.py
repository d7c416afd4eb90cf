"""Which tool wrote a checkpoint, told from the names in it, and the versions that it notes down."""

from __future__ import annotations

import re
from typing import Any

from holdfast.checkpoints.contents import Contents, Opaque

_VERSION = re.compile(r"v?\d+(\.\d+)*([.+-]?\w+)*$")


def recognise_producer(contents: Contents) -> None:
    """Fill in `producer` and versions, if the tree shows them."""
    tree = contents.tree
    if contents.producer is not None or not isinstance(tree, dict):
        return
    for producer, recognise in _PRODUCERS.items():
        versions = recognise(tree)
        if versions is not None:
            contents.producer = producer
            contents.versions.update({name: str(version) for name, version in versions.items() if _is_version(version)})
            return


def _lightning(tree: dict[Any, Any]) -> dict[str, Any] | None:
    if "pytorch-lightning_version" in tree:
        return {"lightning": tree["pytorch-lightning_version"]}
    return {} if {"state_dict", "loops", "callbacks"} <= tree.keys() else None


def _ultralytics(tree: dict[Any, Any]) -> dict[str, Any] | None:
    module = any(_class_of(tree.get(name)).startswith("ultralytics.") for name in ("model", "ema"))
    if not module and not {"train_args", "best_fitness"} <= tree.keys():
        return None
    return {"ultralytics": tree.get("version")}


def _yolov5(tree: dict[Any, Any]) -> dict[str, Any] | None:
    module = any(_class_of(tree.get(name)).startswith("models.yolo.") for name in ("model", "ema"))
    return {} if module else None


def _openmmlab(tree: dict[Any, Any]) -> dict[str, Any] | None:
    meta = tree.get("meta")
    if not isinstance(meta, dict) or "state_dict" not in tree:
        return None
    names = ("mmengine", "mmcv", "mmdet", "mmseg", "mmcls", "mmpretrain")
    versions = {name: meta.get(f"{name}_version") for name in names if f"{name}_version" in meta}
    return versions or None


def _timm(tree: dict[Any, Any]) -> dict[str, Any] | None:
    return {} if {"arch", "state_dict", "epoch", "version"} <= tree.keys() else None


def _fairseq(tree: dict[Any, Any]) -> dict[str, Any] | None:
    return {} if {"model", "optimizer_history", "extra_state"} <= tree.keys() else None


_PRODUCERS = {
    "lightning": _lightning,
    "ultralytics": _ultralytics,
    "yolov5": _yolov5,
    "openmmlab": _openmmlab,
    "timm": _timm,
    "fairseq": _fairseq,
}


def _class_of(value: Any) -> str:
    return value.name if isinstance(value, Opaque) else ""


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 40 and bool(_VERSION.match(value))
