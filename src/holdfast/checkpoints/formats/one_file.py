"""Open one file of tensors by its content: zip (torch.save), pickle (older torch.save) or safetensors.

Folders and indexes of shards open their parts here. A part that is an index itself is not followed: no library writes one,
and a hostile one could name itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents, Opaque, Trouble
from holdfast.checkpoints.formats.files import file_info
from holdfast.checkpoints.formats.kinds import recognise


def open_file(path: Path) -> Contents:
    """What a file holds. Raises OSError where it cannot be read."""
    info = file_info(path)
    found = recognise(path, info.size)
    if found.kind == "zip":
        from holdfast.checkpoints.formats.zip_file import open_zip

        contents = open_zip(path)
    elif found.kind == "pickle":
        from holdfast.checkpoints.formats.legacy_file import open_legacy

        contents = open_legacy(path)
        if found.trouble is not None and contents.state == "unreadable":
            contents.troubles[:] = [found.trouble]
    elif found.kind == "safetensors":
        from holdfast.checkpoints.formats.safetensors_file import open_safetensors

        contents = open_safetensors(path)
    else:
        contents = Contents(path=path, format="unknown", files=[info])
        contents.troubles += [found.trouble] if found.trouble else []
        if found.kind == "index":
            words = f"{path.name} is an index of other files where a file of tensors should be."
            contents.troubles.append(Trouble("unreadable", words, "do not load it"))
    recognise_producer(contents)
    return contents


_VERSION = re.compile(r"v?\d+(\.\d+)*([.+-]?\w+)*$")


def recognise_producer(contents: Contents) -> None:
    """Fill in `producer` and versions, if the tree shows them."""
    tree = contents.tree
    if contents.producer is not None or not isinstance(tree, dict):
        return
    for producer, versions_of in _PRODUCERS.items():
        versions = versions_of(tree)
        if versions is not None:
            contents.producer = producer
            contents.versions.update({name: str(version) for name, version in versions.items() if _is_version(version)})
            return


def _lightning(tree: dict[Any, Any]) -> dict[str, Any] | None:
    if "pytorch-lightning_version" in tree:
        return {"lightning": tree["pytorch-lightning_version"]}
    return {} if {"state_dict", "loops", "callbacks"} <= tree.keys() else None


def _ultralytics(tree: dict[Any, Any]) -> dict[str, Any] | None:
    known = _holds_module(tree, "ultralytics.") or {"train_args", "best_fitness"} <= tree.keys()
    return {"ultralytics": tree.get("version")} if known else None


def _openmmlab(tree: dict[Any, Any]) -> dict[str, Any] | None:
    meta = tree.get("meta")
    if not isinstance(meta, dict) or "state_dict" not in tree:
        return None
    names = ("mmengine", "mmcv", "mmdet", "mmseg", "mmcls", "mmpretrain")
    return {name: meta[f"{name}_version"] for name in names if f"{name}_version" in meta} or None


_PRODUCERS: dict[str, Callable[[dict[Any, Any]], dict[str, Any] | None]] = {
    "lightning": _lightning,
    "ultralytics": _ultralytics,
    "yolov5": lambda tree: {} if _holds_module(tree, "models.yolo.") else None,
    "openmmlab": _openmmlab,
    "timm": lambda tree: {} if {"arch", "state_dict", "epoch", "version"} <= tree.keys() else None,
    "fairseq": lambda tree: {} if {"model", "optimizer_history", "extra_state"} <= tree.keys() else None,
}


def _holds_module(tree: dict[Any, Any], package: str) -> bool:
    """Whether the model was pickled whole, and its class is of that package."""
    return any(isinstance(one := tree.get(name), Opaque) and one.name.startswith(package) for name in ("model", "ema"))


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 40 and bool(_VERSION.match(value))
