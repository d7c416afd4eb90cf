"""Open a checkpoint of any kind: what its indexes tell, with nothing run and no tensor read.

    a file      zip (torch.save) · pickle (older torch.save) · safetensors · Keras · an index of shards
    a folder    Holdfast · torch.distributed.checkpoint · Hugging Face (Trainer, Accelerate, save_pretrained) · DeepSpeed

A file is known by its first bytes; its name counts only where these say nothing.
"""

from __future__ import annotations

import stat
import time
from pathlib import Path

from holdfast.checkpoints.contents import Contents, Trouble
from holdfast.checkpoints.formats.distributed_folder import open_distributed
from holdfast.checkpoints.formats.files import few, holds, missing_ranks, no_access
from holdfast.checkpoints.formats.find import DEEPSPEED, HOLDFAST, SPARE, UNFINISHED, candidates, folder_kind, search
from holdfast.checkpoints.formats.holdfast_folder import open_holdfast
from holdfast.checkpoints.formats.hugging_face import open_hugging_face, open_index
from holdfast.checkpoints.formats.joining import add_part
from holdfast.checkpoints.formats.kinds import recognise
from holdfast.checkpoints.formats.one_file import open_file, recognise_producer
from holdfast.errors import NoCheckpoint

_FEW = 20_000  # names that are looked at for a hint
_JUST_NOW = 30.0  # seconds


def open_checkpoint(path: Path) -> Contents:
    """What a checkpoint holds; whatever is wrong with it is among the troubles. Raises NoCheckpoint where nothing is."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        return _absent(path, error)
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        message = "It is a pipe, a socket or a device, not a file: it was not opened."
        return _unknown(path, Trouble("unreadable", message, "name a file or a folder"))
    try:
        contents = _open_folder(path) if stat.S_ISDIR(mode) else _open_file(path)
    except OSError as error:
        return _unknown(path, no_access(error))
    except Exception as error:  # noqa: BLE001 - one file's failure is that file's row, never the end of a listing
        message = f"Reading it failed: {type(error).__name__}: {str(error)[:200]}."
        return _unknown(path, Trouble("unreadable", message, "do not load it; if you made the file, please report this"))
    _tell_whether_being_written(contents)
    if UNFINISHED.match(path.name) or SPARE.match(path.name):
        contents.notes.append("its name says that the save or the download was not finished")
    return contents


def _open_file(path: Path) -> Contents:
    """What a file holds: an index with the files that it names, or one file of tensors. Raises OSError."""
    if recognise(path, path.stat().st_size).kind != "index":
        return open_file(path)
    contents = open_index(path)
    recognise_producer(contents)
    return contents


def _open_folder(path: Path) -> Contents:
    """What a folder holds that is a checkpoint as a whole. Raises OSError where it cannot be read."""
    inside = {entry.name for entry in path.iterdir()}
    own = {
        "holdfast": open_holdfast,
        "distributed": open_distributed,
        "hugging face": open_hugging_face,
        "deepspeed": open_deepspeed,
    }
    opener = own.get(folder_kind(path.name, inside) or "")
    return opener(path) if opener else _unknown(path, _just_a_folder(path, inside))


def _just_a_folder(path: Path, inside: set[str]) -> Trouble:
    if not inside:
        if HOLDFAST.match(path.name) or path.name.startswith("checkpoint-"):
            return Trouble(
                "torn", "It is an empty folder: the save was interrupted, or its files were removed.", "use an older one"
            )
        return Trouble("unreadable", "It is an empty folder.", "name a checkpoint")
    results = search(path, most=_FEW)
    if not results.paths:
        return Trouble(
            "unreadable", "It is a folder without a checkpoint in it.", "name a checkpoint, or a folder that holds some"
        )
    more = f" and {len(results.paths) - 5} more" if len(results.paths) > 5 else ""
    names = ", ".join(str(path) for path in results.paths[-5:])
    message = f"It is a folder with {len(results.paths)} checkpoints, not a checkpoint itself."
    return Trouble("unreadable", message, f"name one of them: {names}{more}")


def _tell_whether_being_written(contents: Contents) -> None:
    """A torn file that someone is writing is no loss yet."""
    newest = max(contents.files, key=lambda info: info.modified, default=None)
    if newest is None or contents.state != "torn":
        return
    age = time.time() - newest.modified
    if 0 <= age < _JUST_NOW and not any("still being saved" in trouble.text for trouble in contents.troubles):
        contents.notes.append(
            f"{newest.path.name} was changed {age:.0f} seconds ago: if a save is underway, look again when it is done"
        )


def _absent(path: Path, error: OSError | ValueError) -> Contents:
    """Nothing is there, or it cannot be seen whether."""
    if isinstance(error, PermissionError):
        return _unknown(path, no_access(error))
    if holds(path.is_symlink):
        message = f"It is a link to {path.readlink()}, which does not exist."
        return _unknown(path, Trouble("unreadable", message, "restore its target, or name another checkpoint"))
    raise NoCheckpoint(f"There is no checkpoint at {path}: {_what_is_missing(path)}.", fix=_candidates(path)) from None


def _what_is_missing(path: Path) -> str:
    parent = next((parent for parent in path.parents if holds(parent.is_dir)), None)
    if parent is None or parent == path.parent:
        return "there is no such file or folder"
    first = parent / path.relative_to(parent).parts[0]
    return f"{first} is not a folder" if holds(first.exists) else f"there is no {first.name} in {parent.resolve()}"


def _candidates(path: Path) -> str:
    paths = candidates(path)
    if not paths:
        return "name a checkpoint; none was found nearby (*.pt, *.pth, *.ckpt, *.safetensors and checkpoint folders)"
    return "use one of these, found nearby, the likeliest first:" + "".join(f"\n       {path}" for path in paths)


def _unknown(path: Path, trouble: Trouble) -> Contents:
    return Contents(path=path, format="unknown", troubles=[trouble])


def open_deepspeed(path: Path) -> Contents:
    """All files of the folder as one checkpoint. Raises OSError where the folder cannot be listed."""
    contents = Contents(path=path, format="deepspeed", producer="deepspeed", tree={})
    names = sorted(entry.name for entry in path.iterdir() if DEEPSPEED.match(entry.name))
    for name in names:
        _add(contents, path / name)
    if not any("model_states" in name for name in names):
        contents.trouble("torn", "The folder has no model states: the save was interrupted.", "use an older one")
    missing = missing_ranks(r"zero_pp_rank_(\d+)_mp_rank_\d+.*optim", names)
    if missing:
        message = f"The optimizer states of {few(missing)} are missing: the save was interrupted or a file was not copied."
        contents.trouble("torn", message, "use an older one, or copy it again")
    return contents


def _add(contents: Contents, path: Path) -> None:
    key = path.name.removesuffix(".pt")
    tree = contents.tree[key] = add_part(contents, path, key, open_file)
    version = tree.get("ds_version") if isinstance(tree, dict) else None
    if isinstance(version, str):
        contents.versions["deepspeed"] = version
