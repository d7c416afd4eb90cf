"""Folders that Hugging Face's libraries write: the Trainer's, Accelerate's `save_state`, and `save_pretrained`.

    checkpoint-500/   model.safetensors (or shards, or pytorch_model.bin)   weights
                      optimizer.pt  scheduler.pt  scaler.pt  rng_state*.pth training state
                      trainer_state.json  config.json  training_args.bin    step and metrics, architecture, settings
    state/            model.safetensors  optimizer.bin  scheduler.bin  random_states_0.pkl  custom_checkpoint_0.pkl

model.safetensors.index.json          {"metadata": {"total_size": …}, "weight_map": {tensor: file}}
model-00001-of-00006.safetensors …    the shards of an index

The tree has a part for each: {"model": …, "optimizer": …, "scheduler": …, "rng": …, "trainer_state": …, "config": …}.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.distributed_folder import open_distributed
from holdfast.checkpoints.formats.files import OLDER_OR_COPY, BadJson, few, is_inside, missing_ranks, read_json, shown
from holdfast.checkpoints.formats.find import FSDP, INDEX, SHARD, TRAINER, weights_in
from holdfast.checkpoints.formats.joining import add_file, add_part, denied, join, open_part
from holdfast.checkpoints.formats.one_file import open_file

_FETCH = "copy or download the missing files again; if this is where it was saved, use an older checkpoint"

_PARTS = (  # file, key in the tree; what is in brackets is put behind the key, or chosen among several
    (re.compile(r"optimizer(_\d+)?\.(?:pt|bin)$"), "optimizer"),
    (re.compile(r"scheduler(_\d+)?\.(?:pt|bin)$"), "scheduler"),
    (re.compile(r"scaler()\.pt$"), "scaler"),
    (re.compile(r"(?:rng_state|random_states)(_\d+)?\.(?:pth|pkl)$"), "rng"),
    (re.compile(r"training_args()\.bin$"), "training_args"),
    (re.compile(r"(?:sampler|dl_state_dict)(_\d+)?\.bin$"), "loader"),
    (re.compile(r"custom_checkpoint(_\d+)\.pkl$"), "custom_checkpoint"),
)
_SETTINGS = ("config.json", "adapter_config.json", "generation_config.json", "trainer_state.json")


def open_hugging_face(path: Path) -> Contents:
    """All files of the folder as one checkpoint. Raises OSError where the folder cannot be listed."""
    names = sorted(entry.name for entry in path.iterdir())
    contents = Contents(path=path, format="hugging face", tree={})
    _add_weights(contents, path, names)
    for name in names:
        for pattern, key in _PARTS:
            if match := pattern.match(name):
                _add_part(contents, path / name, key + (match[1] or ""))
    for name in _SETTINGS:
        if name in names:
            _add_settings(contents, path / name)
    contents.producer = _producer(names)
    _tell_what_is_missing(contents, path.name, names)
    return contents


def _producer(names: list[str]) -> str:
    if "trainer_state.json" in names or "training_args.bin" in names:
        return "transformers"
    state = re.compile(r"random_states_\d+\.pkl|(optimizer|scheduler)(_\d+)?\.bin")
    return "accelerate" if any(map(state.fullmatch, names)) else "transformers"


def _add_weights(contents: Contents, folder: Path, names: list[str]) -> None:
    """The weights as these libraries look for them: safetensors before pickles, a whole file before an index of shards."""
    shards = [name for name in names if FSDP.match(name) and name.startswith("pytorch_model")]
    files = weights_in(names)
    plain = [name for name in files if not re.search(r"_\d+\.", name)]
    for name in (plain[:1] or shards[:1]) + [name for name in files if name not in plain]:
        number = re.search(r"(_\d+)\.", name)
        _add_part(contents, folder / name, "model" + (number[1] if number and name in files else ""))
    if len(plain) > 1:
        contents.notes.append(f"it holds its weights more than once: {plain[0]} is read, not {', '.join(plain[1:])}")
    for name in names:
        if FSDP.match(name) and name.startswith("optimizer"):
            _add_part(contents, folder / name, "optimizer")
    if not files and not shards and any(map(SHARD.match, names)):
        lonely, message = _lonely_shards(names)
        contents.trouble("torn", message, OLDER_OR_COPY, lonely[0])
        for name in lonely:
            _add_part(contents, folder / name, "model")


def _add_part(contents: Contents, path: Path, key: str) -> None:
    tree = add_part(contents, path, key, _open_part)
    earlier = contents.tree.get(key)
    if tree is not None:
        contents.tree[key] = {**earlier, **tree} if isinstance(earlier, dict) and isinstance(tree, dict) else tree


def _open_part(path: Path) -> Contents:
    if path.is_dir():
        return open_distributed(path)
    return open_index(path) if INDEX.match(path.name) else open_file(path)


def _add_settings(contents: Contents, path: Path) -> None:
    """A JSON file of the folder. One that cannot be read makes the checkpoint torn: it was written last, or not to its end."""
    key = path.stem
    try:
        value = read_json(path)
        if not isinstance(value, dict):
            raise BadJson("it is not a JSON object")
    except OSError as error:
        denied(contents, error, path.name)
        return
    except BadJson as error:
        add_file(contents, path)
        contents.trouble("torn", f"{path.name} is truncated or damaged: {error}.", OLDER_OR_COPY, path.name)
        return
    add_file(contents, path)
    contents.tree[key] = value
    for name in ("transformers", "peft", "diffusers"):
        version = value.get(f"{name}_version", value.get(f"_{name}_version"))
        if isinstance(version, str):
            contents.versions[name] = version


def _tell_what_is_missing(contents: Contents, name: str, names: list[str]) -> None:
    """What other files of the folder imply. Weights must be there; what else is not there may have been left out on purpose."""
    tree: dict[str, Any] = contents.tree
    if "model" not in tree and not any(
        trouble.where.startswith(("model", "pytorch_model", "adapter")) for trouble in contents.troubles
    ):
        contents.trouble("torn", "The folder has no weights: the file was removed or never written.", OLDER_OR_COPY)
    if TRAINER.match(name) and "training_args.bin" in names and "trainer_state.json" not in names:
        message = "trainer_state.json, which the Trainer writes last, is missing: the save was interrupted before the end."
        contents.trouble("torn", message, OLDER_OR_COPY, "trainer_state.json")
    step = tree["trainer_state"].get("global_step") if "trainer_state" in tree else None
    if step or contents.producer == "accelerate":
        since = f"trainer_state.json says step {step}, but " if step else ""
        lacking = [part for part in ("optimizer", "scheduler", "rng") if not any(key.startswith(part) for key in tree)]
        if contents.producer == "accelerate":
            lacking = [part for part in lacking if part == "optimizer"]
        if lacking and not contents.troubles:
            contents.notes.append(f"{since}{' and '.join(lacking)} state is missing: a resume would start it fresh")
    missing = missing_ranks(r"^(?:rng_state|random_states)_(\d+)\.", names)
    if missing:
        contents.notes.append(f"the random state of {', '.join(missing)} is missing, but that of a higher rank exists")


# --- weights in several files, with an index beside them


def open_index(path: Path) -> Contents:
    """All shards that an index names, as one. Raises OSError."""
    contents = Contents(path=path, format="sharded safetensors" if ".safetensors." in path.name else "sharded torch")
    add_file(contents, path)
    try:
        index = read_json(path)
    except BadJson as error:
        contents.trouble("torn", f"The index is damaged: {error}.", _FETCH, path.name)
        return contents
    wanted = _shards(index)
    if wanted is None:
        contents.trouble("unreadable", "The index does not say which tensor is in which file (`weight_map`).", _FETCH, path.name)
        return contents
    contents.tree = {}
    for name, tensors in wanted.items():
        _add_shard(contents, path.parent, name, tensors)
    return contents


def _lonely_shards(names: list[str]) -> tuple[list[str], str]:
    """Shards in a folder without an index: their names, and what to say about it."""
    shards = {name: match for name in names if (match := SHARD.match(name))}
    total = max((int(match[3]) for match in shards.values()), default=0)
    there = {int(match[2]) for match in shards.values()}
    missing = total - len(there)
    message = f"The folder has {len(there)} of {total} shards and no index that says which tensor is in which."
    if missing > 0:
        message = f"The folder has {len(there)} of {total} shards and no index: the save or the download was interrupted."
    return sorted(shards), message


def _shards(index: Any) -> dict[str, list[str]] | None:
    """The tensors of each file; None if the index is not one. A file may lie nowhere but beside the index."""
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        return None
    wanted: dict[str, list[str]] = defaultdict(list)
    for tensor, file in table.items():
        wanted[file].append(tensor)
    return dict(sorted(wanted.items()))


def _add_shard(contents: Contents, folder: Path, name: str, wanted: list[str]) -> None:
    if not is_inside(name) or Path(name).name != name:
        contents.trouble("unreadable", f"The index names a file outside its folder: {shown(name)}.", "do not load it", name[:60])
        return
    if not (folder / name).exists():
        contents.trouble("torn", f"{shown(name)} is missing, and with it {len(wanted)} tensors: {few(wanted)}.", _FETCH, name)
        return
    part = open_part(contents, folder / name, open_file)
    if part is None:
        return
    tree = join(contents, part, file=name)
    if isinstance(tree, dict):
        contents.tree.update({key: value for key, value in tree.items() if key != "__metadata__"})
    if not part.troubles:
        _compare_names(contents, name, wanted, [tensor.name for tensor in part.tensors])


def _compare_names(contents: Contents, name: str, wanted: list[str], there: list[str]) -> None:
    missing = sorted(set(wanted) - set(there))
    more = sorted(set(there) - set(wanted))
    if missing:
        message = f"{name} does not hold {len(missing)} tensors that the index says are in it: {few(missing)}."
        contents.trouble("torn", message, "the files are from two different saves: copy them all again", name)
    if more:
        message = f"{name} holds {len(more)} tensors that the index does not name: {few(more)}"
        contents.notes.append(message)
