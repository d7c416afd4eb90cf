"""Open one file of tensors by its content: zip (torch.save), pickle (older torch.save), safetensors or Keras.

Folders and indexes of shards open their parts here. A part that is an index itself is not followed: no library writes one,
and a hostile one could name itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents, Opaque, Trouble
from holdfast.checkpoints.formats.files import file_info
from holdfast.checkpoints.formats.keras_file import open_keras
from holdfast.checkpoints.formats.kinds import recognise
from holdfast.checkpoints.formats.legacy_file import open_legacy
from holdfast.checkpoints.formats.safetensors_file import open_safetensors
from holdfast.checkpoints.formats.zip_file import open_zip


def open_file(path: Path) -> Contents:
    """What a file holds. Raises OSError where it cannot be read."""
    info = file_info(path)
    recognised = recognise(path, info.size)
    if recognised.kind == "zip":
        contents = open_zip(path)
    elif recognised.kind == "pickle":
        contents = open_legacy(path)
        if recognised.trouble is not None and contents.state == "unreadable":
            contents.troubles[:] = [recognised.trouble]
    elif recognised.kind == "safetensors":
        contents = open_safetensors(path)
    elif recognised.kind == "keras":
        contents = open_keras(path)
    else:
        contents = Contents(path=path, format="unknown", files=[info])
        contents.troubles += [recognised.trouble] if recognised.trouble else []
        if recognised.kind == "index":
            message = "It is an index of other files where a file of tensors should be."
            contents.troubles.append(Trouble("unreadable", message, "do not load it"))
    recognise_producer(contents)
    return contents


_VERSION = re.compile(r"v?\d+(\.\d+)*([.+-]?\w+)*$")


def recognise_producer(contents: Contents) -> None:
    """Fill in `producer` and its version, if the tree shows them."""
    tree = contents.tree
    if contents.producer is not None or not isinstance(tree, dict):
        return
    version = None
    if "pytorch-lightning_version" in tree or {"state_dict", "loops", "callbacks"} <= tree.keys():
        contents.producer, version = "lightning", tree.get("pytorch-lightning_version")
    elif _holds_module(tree, "ultralytics.") or {"train_args", "best_fitness"} <= tree.keys():
        contents.producer, version = "ultralytics", tree.get("version")
    if contents.producer and isinstance(version, str) and len(version) < 40 and _VERSION.match(version):
        contents.versions[contents.producer] = version


def _holds_module(tree: dict[Any, Any], package: str) -> bool:
    """Whether the model was pickled whole, and its class is of that package."""
    return any(isinstance(part := tree.get(name), Opaque) and part.name.startswith(package) for name in ("model", "ema"))
