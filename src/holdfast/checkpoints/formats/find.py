"""Find the checkpoints in a folder, each once: what belongs to one is not listed beside it. And what lies near a wrong path."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from holdfast.checkpoints.formats.files import holds
from holdfast.checkpoints.formats.kinds import SUFFIXES

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


MOST_ENTRIES = 300_000  # names that are looked at before the search ends
DEEPEST = 24  # folders within folders

NEVER = {"site-packages", "node_modules", "__pycache__"}  # the first holds .pth files that are none
_PART = re.compile(r"^(pytorch_model.*|model.*|consolidated.*)\.bin$")
_DIGITS = re.compile(r"(\d+)")
_LAST = (2, 0, "")  # comes after each name: what lies in a folder is listed before the folder


@dataclass(slots=True)
class Found:
    """What was found, and whether the search came to its end."""

    paths: list[Path] = field(default_factory=list)
    complete: bool = True
    looked_at: int = 0


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder and all below it, by path, "step-9" before "step-10"; the folder itself, if it is one."""
    return search(folder).paths


def search(folder: Path, *, most: int = MOST_ENTRIES, deepest: int = DEEPEST, ends: float = math.inf) -> Found:
    """As `find_checkpoints`, but says whether it had to end early: at `ends`, on the clock. What cannot be read is skipped.

    Links are followed last, and lead nowhere twice: `runs/latest` does not list a run again.
    """
    results = Found()
    seen: set[tuple[int, int]] = set()
    folders: deque[tuple[Path, int]] = deque([(folder, 0)])
    links: deque[tuple[Path, int]] = deque()
    while folders or links:
        if time.monotonic() > ends:
            results.complete = False
            break
        path, depth = folders.popleft() if folders else links.popleft()
        if not _is_new(path, seen):
            continue
        if not path.is_dir():
            results.paths.append(path)
            continue
        listing = _listing(path, results, most)
        below, linked = _one_folder(path, listing, seen, results)
        if depth >= deepest and (below or linked):
            results.complete = False
            continue
        folders.extend((path, depth + 1) for path in below)
        links.extend((path, depth + 1) for path in linked)
    results.paths.sort(key=by_path)
    return results


def by_path(path: Path) -> tuple[list[tuple[int, int, str]], ...]:
    """A key for sorting: by path, numbers by their value, and a folder after what lies in it."""
    parts = [
        [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part] for name in path.parts
    ]
    return (*parts, [_LAST])


def _one_folder(
    path: Path, inside: list[os.DirEntry[str]], seen: set[tuple[int, int]], results: Found
) -> tuple[list[Path], list[Path]]:
    """Add what is a checkpoint in one folder; the folders to look into, and links to look at when all else is done."""
    names = {entry.name for entry in inside}
    kind = folder_kind(path.name, names)
    results.paths += [path] if kind is not None else []
    folders: list[Path] = []
    links: list[Path] = []
    for entry in inside:
        folder = _is(entry, os.DirEntry.is_dir)
        if belongs(kind, entry.name) or not (folder or _is(entry, os.DirEntry.is_file)):
            continue
        if not (_is_open if folder else _is_wanted)(entry.name) or _is_saved_batch(path, entry.name, names):
            continue
        if entry.is_symlink():
            links.append(Path(entry.path))
        elif folder:
            folders.append(Path(entry.path))
        else:
            _is_new(Path(entry.path), seen)
            results.paths.append(Path(entry.path))
    return folders, links


def _is_open(name: str) -> bool:
    """Whether to look into a folder. What a save left half done is none."""
    return not name.startswith(".") and name not in NEVER and not SPARE.match(name)


def _is_wanted(name: str) -> bool:
    low = name.lower()
    return not name.startswith(".") and (low.endswith((*SUFFIXES, ".pth.tar")) or bool(_PART.match(low)))


def _is_saved_batch(folder: Path, name: str, names: Collection[str]) -> bool:
    """Whether it is a batch that was saved for `holdfast replay`, with its description beside it."""
    stem = name.removesuffix(".pt")
    return folder.name == "batches" and bool(HOLDFAST.match(stem)) and f"{stem}.json" in names


def _is(entry: os.DirEntry[str], what: Callable[[os.DirEntry[str]], bool]) -> bool:
    """Whether it is a file or folder, or a link to one; a link to itself is neither."""
    try:
        return what(entry)
    except OSError:
        return False


def _is_new(path: Path, seen: set[tuple[int, int]]) -> bool:
    """Whether a file or folder is met for the first time, whatever its name."""
    try:
        facts = path.stat()
    except OSError:
        return False
    key = (facts.st_dev, facts.st_ino)
    if key in seen:
        return False
    seen.add(key)
    return True


def _listing(path: Path, results: Found, most: int) -> list[os.DirEntry[str]]:
    """What lies in a folder; of more than may be looked at, the first."""
    try:
        with os.scandir(path) as entries:
            inside = list(islice(entries, max(0, most - results.looked_at)))
            results.complete = results.complete and next(entries, None) is None
    except OSError:
        return []
    results.looked_at += len(inside)
    return sorted(inside, key=lambda entry: entry.name)


USUAL = ("checkpoints", "runs", "outputs", "output", "lightning_logs", "weights", "models", "logs")
MOST_NAMES = 50_000
SECONDS = 1.0  # a search on a slow network share ends then, with what it has
_NEAR = 5  # folders within folders: runs/detect/train3/weights/best.pt


def candidates(path: Path, *, here: Path | None = None, most: int = 5, seconds: float = SECONDS) -> list[Path]:
    """Up to `most` checkpoints near a path that is not there: first those of the closest name, then the newest.

    Looked at are the parents of the path that exist, and the usual folders under the current one. Hidden folders are not.
    """
    ends, names = time.monotonic() + seconds, MOST_NAMES
    here = here or Path.cwd()
    nearby: dict[tuple[int, int], tuple[Path, float]] = {}
    for folder in _places(path, here):
        inside = search(folder, most=names, deepest=_NEAR, ends=ends)
        names -= inside.looked_at
        for checkpoint in inside.paths:
            named = checkpoint / path.name  # of a folder that is a checkpoint as a whole, the file that was asked for
            with contextlib.suppress(OSError):
                exact = named if named.is_file() else checkpoint
                facts = exact.stat()
                nearby.setdefault((facts.st_dev, facts.st_ino), (exact, facts.st_mtime))
    ranked = sorted(nearby.values(), key=lambda item: (-_likeness(path, item[0]), -item[1], str(item[0])))
    return [_short(path, here) for path, _ in ranked[:most]]


def _places(path: Path, here: Path) -> Iterator[Path]:
    """Where to look, the most likely first. Of the parents two, and none above here: not all that a disk holds is near."""
    parents = [parent for parent in (here / path).parents if holds(parent.is_dir)][:2]
    above = {here, *here.parents, Path.home()} if "HOME" in os.environ else {here, *here.parents}
    yield from (parent for parent in parents if parent not in above)
    yield from (folder for name in USUAL if (folder := here / name).is_dir())
    yield here


def _likeness(wanted: Path, candidate: Path) -> float:
    """How alike two paths are, in tenths: the name counts most, then the names of the folders."""
    name = _ratio(wanted.name, candidate.name)
    folders = _ratio("/".join(wanted.parts[-4:-1]), "/".join(candidate.parts[-4:-1]))
    return round(10 * (name + 0.3 * folders) / 1.3)


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower(), autojunk=False).ratio()


def _short(path: Path, here: Path) -> Path:
    """The path as one would type it here."""
    return path.relative_to(here) if path.is_relative_to(here) else path
