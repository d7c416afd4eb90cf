"""What a folder is, told from the names in it: a checkpoint as a whole, or just a folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

FolderKind = Literal["holdfast", "distributed", "hugging face", "deepspeed"]

INDEX = re.compile(r".+\.(safetensors|bin)\.index(\.[\w-]+)?\.json$")
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
HOLDFAST = re.compile(r"step-\d{6,}(-\d+)?$")
SPARE = re.compile(r"\.(new-|gone-|old-)?step-\d+.*|tmp-checkpoint-\d+$")  # where a save is put together, or removed
UNFINISHED = re.compile(
    r".+\.(tmp|temp|part|partial|incomplete|crdownload|download|(pt|pth|ckpt|safetensors|bin)[._-]?tmp[\w.-]*)$"
)
TRAINER = re.compile(r"checkpoint-\d+$")
DEEPSPEED = re.compile(r".*mp_rank_\d+.*_states\.pt$")
DISTRIBUTED = re.compile(r"(.+\.distcp|(__\d+)?\.metadata(\.tmp)?)$")
FSDP = re.compile(r"(pytorch_model_fsdp|optimizer)_\d+$")  # folders that Accelerate puts shards into
PIECE = re.compile(r"(optimizer|scheduler|scaler|sampler|dl_state_dict|custom_checkpoint)(_\d+)?\.(pt|bin|pkl)$")

_OURS = re.compile(r"((weights|averages)(-\d+)?\.(safetensors|pt)|training\.pt|shards)$")
_WEIGHTS = re.compile(
    r"(model|adapter_model|diffusion_pytorch_model)(_\d+)?\.safetensors$|(pytorch_model(_\w+)?|adapter_model)\.bin$"
)
_CONFIG = {"config.json", "adapter_config.json"}
_STATE = re.compile(
    r"trainer_state\.json|(optimizer|scheduler)(_\d+)?\.bin|random_states_\d+\.pkl|rng_state(_\d+)?\.pth|training_args\.bin"
)


def folder_kind(name: str, inside: Collection[str]) -> FolderKind | None:
    """Which kind of checkpoint a folder of that name is, by what lies in it; None: none, though some may lie in it."""
    if _is_holdfast(name, inside):
        return "holdfast"
    if any(map(DISTRIBUTED.match, inside)):
        return "distributed"
    if any(map(DEEPSPEED.match, inside)):
        return "deepspeed"
    return "hugging face" if _is_hugging_face(inside) else None


def _is_holdfast(name: str, inside: Collection[str]) -> bool:
    """Others name their folders and files alike: one of another name must have all, and one without a manifest most."""
    ours = sum(1 for _ in filter(_OURS.match, inside))
    if "manifest.json" in inside:
        return ours > 0 if HOLDFAST.match(name) else "training.pt" in inside
    return ours > 1 if HOLDFAST.match(name) else ours > 0 and bool(SPARE.match(name))


def _is_hugging_face(inside: Collection[str]) -> bool:
    sharded = any(map(INDEX.match, inside)) or any(map(SHARD.match, inside))
    weights = sharded or any(map(_WEIGHTS.match, inside)) or any(map(FSDP.match, inside))
    state = sum(1 for _ in filter(_STATE.fullmatch, inside))
    return sharded or (weights and (state > 0 or not _CONFIG.isdisjoint(inside))) or state > 1


def belongs(kind: FolderKind | None, name: str) -> bool:
    """Whether a file or folder is part of the checkpoint that its folder is, and none by itself."""
    if kind != "hugging face":
        return kind is not None
    return any(pattern.match(name) for pattern in (_WEIGHTS, INDEX, SHARD, FSDP, _STATE, PIECE))


def weights_in(inside: Iterable[str]) -> list[str]:
    """The names of files with weights, as Hugging Face's libraries name them, in the order in which they look for them."""
    names = [name for name in inside if _WEIGHTS.match(name) or INDEX.match(name)]
    return sorted(names, key=lambda name: (".bin" in name, name.endswith(".json"), len(name), name))
