"""Open one file of tensors by its content: zip (torch.save), pickle (older torch.save) or safetensors.

Folders and indexes of shards open their parts here. A part that is an index itself is not followed: no library writes one,
and a hostile one could name itself.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoints.contents import Contents, Trouble
from holdfast.checkpoints.formats.files import file_info
from holdfast.checkpoints.formats.kinds import recognise
from holdfast.checkpoints.formats.producers import recognise_producer


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
