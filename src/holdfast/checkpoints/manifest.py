"""The manifest of a checkpoint of Holdfast's own: written last, it says what the files must be. Without it there is none.

checkpoints/
  step-000123/
    weights.safetensors    the model's state dict; further models weights-1 …; a tied weight once, its other names in the notes
    averages.safetensors   averaged copies of the weights, if there are any
    training.pt            optimizers, schedulers, scalers, randomness, loader: plain containers and tensors
    manifest.json          format 2: {"format", "number", "step", "epoch", "time", "metrics", "settings", "versions", "rank",
                           "world_size", "run", "made_by", "files": {name: {"size", "crc32", "tensors": {name: {…}}}}}
  step-000123-2/           the same step saved again; the one before stays until the new one is whole
  best.json                names the best one

`number` counts the checkpoints of a folder, so that the newest is known whatever the clocks and the steps say: a training that
was set back saves lower steps than the ones it left behind.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

FORMAT = 2
MANIFEST = "manifest.json"
_OURS = (MANIFEST, "training.pt")  # one of these lies in what we wrote: others name their folders the same way
_NAME = re.compile(r"step-(\d+)(?:-(\d+))?$")


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole checkpoint in a folder: where it is and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """The step whose state it is."""
        return int(self.manifest["step"])

    @property
    def epoch(self) -> int | None:
        """The epoch in which it was saved, if that was told."""
        epoch = self.manifest.get("epoch")
        return epoch if isinstance(epoch, int) else None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that it was saved with."""
        metrics = self.manifest.get("metrics")
        return {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float))} if isinstance(metrics, dict) else {}

    @property
    def age(self) -> tuple[int, float, int, int]:
        """What orders the checkpoints of a folder, the newest last."""
        number, time = self.manifest.get("number"), self.manifest.get("time")
        step, generation = parse_name(self.path.name) or (self.step, 1)
        by_number = number if isinstance(number, int) else 0
        return by_number, float(time) if by_number and isinstance(time, (int, float)) else 0.0, step, generation


def name_of(step: int, generation: int = 1) -> str:
    """Name of the folder of a step's checkpoint."""
    return f"step-{step:06d}" if generation == 1 else f"step-{step:06d}-{generation}"


def parse_name(name: str) -> tuple[int, int] | None:
    """Step and generation of a folder of that name."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2] or 1)) if match else None


def free_name(parent: Path, step: int) -> str:
    """The name that the next checkpoint of a step gets."""
    generation = 1
    while (parent / name_of(step, generation)).exists():
        generation += 1
    return name_of(step, generation)


class Names:
    """The names that checkpoints in a folder will get, foretold without asking the disk."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._taken: set[tuple[int, int]] | None = None

    def foretell(self, step: int | None = None) -> tuple[int, Path]:
        """The step, by default one more than the highest, and where its checkpoint will be; another process may be faster."""
        taken = self._taken if self._taken is not None else self.look()
        step = step if step is not None else 1 + max((step for step, _ in taken), default=0)
        generation = next(number for number in itertools.count(1) if (step, number) not in taken)
        return step, self._parent / name_of(step, generation)

    def look(self) -> set[tuple[int, int]]:
        """Look at the folder: which names are taken now."""
        taken = set()
        with contextlib.suppress(OSError):
            taken = {named for path in self._parent.iterdir() if (named := parse_name(path.name)) is not None}
        self._taken = taken
        return taken


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; None if the folder is not a whole one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        int(manifest["step"])
        if manifest["format"] != FORMAT:
            return None
        sizes = {_inside(name): int(facts["size"]) for name, facts in manifest["files"].items()}
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if whole else None


def kept_in(parent: Path) -> list[Kept]:
    """The whole checkpoints in a folder, the oldest first."""
    return sorted(_whole_in(parent), key=lambda kept: kept.age)


def list_checkpoints(parent: Path) -> list[Path]:
    """Where the whole checkpoints in a folder are, the oldest first."""
    return [kept.path for kept in kept_in(parent)]


def torn_in(parent: Path) -> list[tuple[int, Path]]:
    """Folders that were checkpoints and are not whole any more, with their steps, in order."""
    torn = []
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            named = parse_name(path.name)
            if named is not None and read_manifest(path) is None and any((path / name).exists() for name in _OURS):
                torn.append((named[0], path))
    return sorted(torn)


def next_number(parent: Path) -> int:
    """The number of the next checkpoint in a folder."""
    counts = [kept.manifest.get("number") for kept in _whole_in(parent)]
    return 1 + max((number for number in counts if isinstance(number, int)), default=0)


def _whole_in(parent: Path) -> Iterator[Kept]:
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            if parse_name(path.name) is not None and (manifest := read_manifest(path)) is not None:
                yield Kept(path, manifest)


def _inside(name: str) -> str:
    """The name of a file, refused if it leads out of the folder."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(name)
    return name
