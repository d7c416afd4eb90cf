"""Folders that Hugging Face's libraries write: the Trainer's, Accelerate's `save_state`, and `save_pretrained`.

    checkpoint-500/   model.safetensors (or shards, or pytorch_model.bin)   weights
                      optimizer.pt  scheduler.pt  scaler.pt  rng_state*.pth training state
                      trainer_state.json  config.json  training_args.bin    step and metrics, architecture, settings
    state/            model.safetensors  optimizer.bin  scheduler.bin  random_states_0.pkl  custom_checkpoint_0.pkl

The tree has a part for each: {"model": …, "optimizer": …, "scheduler": …, "rng": …, "trainer_state": …, "config": …}.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.distributed_folder import open_distributed
from holdfast.checkpoints.formats.files import BadJson, missing_ranks, read_json
from holdfast.checkpoints.formats.find import FSDP, INDEX, SHARD, TRAINER, weights_in
from holdfast.checkpoints.formats.joining import add_file, denied, join, open_part
from holdfast.checkpoints.formats.one_file import open_file
from holdfast.checkpoints.formats.sharded import lonely_shards, open_index

_OLDER = "use an older checkpoint; if this one was copied, copy it again"

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
        lonely, words = lonely_shards(names)
        contents.trouble("torn", words, _OLDER, lonely[0])
        for name in lonely:
            _add_part(contents, folder / name, "model")


def _add_part(contents: Contents, path: Path, key: str) -> None:
    part = open_part(contents, path, _open_part)
    if part is None:
        return
    tree = join(contents, part, file=path.name, key=key)
    known = contents.tree.get(key)
    contents.tree[key] = {**known, **tree} if isinstance(known, dict) and isinstance(tree, dict) else tree


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
            raise BadJson("it is not a table of names")
    except OSError as error:
        denied(contents, error, path.name)
        return
    except BadJson as error:
        add_file(contents, path)
        contents.trouble("torn", f"{path.name} is cut short or damaged: {error}.", _OLDER, path.name)
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
        told.where.startswith(("model", "pytorch_model", "adapter")) for told in contents.troubles
    ):
        contents.trouble("torn", "The folder has no weights: the file was removed or never written.", _OLDER)
    if TRAINER.match(name) and "training_args.bin" in names and "trainer_state.json" not in names:
        words = "trainer_state.json, which the Trainer writes last, is missing: the save was interrupted before the end."
        contents.trouble("torn", words, _OLDER, "trainer_state.json")
    step = tree["trainer_state"].get("global_step") if "trainer_state" in tree else None
    if step or contents.producer == "accelerate":
        since = f"trainer_state.json says step {step}, but " if step else ""
        lacking = [part for part in ("optimizer", "scheduler", "rng") if not any(key.startswith(part) for key in tree)]
        if contents.producer == "accelerate":
            lacking = [part for part in lacking if part == "optimizer"]
        if lacking and not contents.troubles:
            contents.notes.append(f"{since}{' and '.join(lacking)} state is not there: a resume would begin it anew")
    missing = missing_ranks(r"^(?:rng_state|random_states)_(\d+)\.", names)
    if missing:
        contents.notes.append(f"the random state of {', '.join(missing)} is not there, that of a higher rank is")
