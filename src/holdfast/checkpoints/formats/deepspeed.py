"""DeepSpeed's folders (`global_step500/`): a file with the state of the model, and one with the optimizer's for each rank.

The tree has one part for each file, under its name without ".pt".
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.files import few, no_access
from holdfast.checkpoints.formats.folders import DEEPSPEED
from holdfast.checkpoints.formats.joining import join, trouble
from holdfast.checkpoints.formats.one_file import open_file

_RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)")


def open_deepspeed(path: Path) -> Contents:
    """All files of the folder as one checkpoint. Raises OSError where the folder cannot be listed."""
    contents = Contents(path=path, format="deepspeed", producer="deepspeed", tree={})
    names = sorted(entry.name for entry in path.iterdir() if DEEPSPEED.match(entry.name))
    for name in names:
        _add(contents, path / name)
    if not any("model_states" in name for name in names):
        trouble(contents, "torn", "The folder has no model states: the save was interrupted.", "use an older one")
    _tell_missing_ranks(contents, names)
    return contents


def _add(contents: Contents, path: Path) -> None:
    try:
        part = open_file(path)
    except OSError as error:
        contents.troubles.append(no_access(error, path.name))
        return
    key = path.name.removesuffix(".pt")
    tree = join(contents, part, file=path.name, key=key)
    contents.tree[key] = tree
    version = tree.get("ds_version") if isinstance(tree, dict) else None
    if isinstance(version, str):
        contents.versions["deepspeed"] = version


def _tell_missing_ranks(contents: Contents, names: list[str]) -> None:
    """Ranks are numbered from zero: one that is missing below the highest was not written."""
    ranks = {int(match[1]) for name in names if "optim" in name and (match := _RANK.search(name))}
    missing = [f"rank {rank}" for rank in range(max(ranks, default=0)) if rank not in ranks]
    if missing:
        words = f"The optimizer states of {few(missing)} are missing: the save was interrupted or a file was left out."
        trouble(contents, "torn", words, "use an older one, or copy it again")
