"""Keep a bad step on disk: `step-000123.pt` with its batches and the model's state, and a `.json` beside it that says what it is.

Values are copied to the host when `save_batches` is called; the file is written later, in the helper thread, under another
name until it is whole. At most three per folder, and what is larger than its limit is left out, in words.
"""

from __future__ import annotations

import copy as copying
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.inside.observers.batch_contents import PLAIN, bad_fields, is_plain, look_at_input, same_shape, size_of

FORMAT = 1
AT_MOST = 3
BATCH_BYTES, STATE_BYTES = 256 << 20, 2 << 30
_INDICES = 4096
_NAME = re.compile(r"step-(\d+)\.pt$")


@dataclass(slots=True)
class Drawn:
    """One batch: its values (None once the limit of bytes was passed), its samples, and where it came from."""

    batch: Any
    indices: list[Any] | None
    dataset_indices: list[Any] | None  # in the data set under all `Subset`s; the same as `indices` without one
    position: int  # in its pass over the loader
    loader: int = 0  # which of the iterators that this step drew from
    dataset: str = ""
    randomness: dict[str, Any] = field(default_factory=dict)  # as it was when the batch was handed out


@dataclass(slots=True)
class SavedBatches:
    """What is kept of a step: `file` is None if nothing is, and `left_out` says what and why."""

    step: int
    file: str | None = None
    indices: list[list[Any] | None] = field(default_factory=list)  # one list for each batch of the step
    dataset_indices: list[list[Any] | None] = field(default_factory=list)
    dataset: str = ""
    input: str = "unknown"
    bad_samples: list[Any] = field(default_factory=list)  # indices in the data set, or places in the batch if those are unknown
    fields: list[str] = field(default_factory=list)
    pickled: bool = False
    left_out: list[str] = field(default_factory=list)


def save_batches(
    folder: Path,
    step: int,
    batches: Sequence[Drawn],
    *,
    state: Mapping[str, Any],
    randomness: Mapping[str, Any],
    run_later: Callable[[Callable[[], None]], None],
    scale: float | None = None,
) -> SavedBatches:
    """Copy everything now, write it later."""
    saved = describe(step, batches)
    path = folder / f"step-{step:06d}.pt"
    if len(steps_in(folder) | _promised.get(str(folder), set())) >= AT_MOST:
        saved.left_out.append(f"{AT_MOST} batches of this run are saved already")
        return saved
    content: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "batches": _copied_batches(batches, saved),
        "state": _copied_state(state, saved),
        "randomness": _plain_randomness(randomness),
        "scale": scale,
    }
    saved.pickled = not is_plain(content, depth=16)
    saved.file = str(path)
    _promised.setdefault(str(folder), set()).add(step)
    run_later(lambda: _write(path, content, saved))
    return saved


_promised: dict[str, set[int]] = {}  # steps whose file is on its way, by folder


def steps_in(folder: Path) -> set[int]:
    """The steps that are saved in a folder."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - only names are needed
    except OSError:
        return set()
    return {int(match[1]) for name in names if (match := _NAME.match(name))}


def describe(step: int, batches: Sequence[Drawn]) -> SavedBatches:
    """Which batches these are, and whether their values are finite; nothing is copied."""
    saved = SavedBatches(step)
    saved.indices = [None if drawn.indices is None else drawn.indices[:_INDICES] for drawn in batches]
    saved.dataset_indices = [None if drawn.dataset_indices is None else drawn.dataset_indices[:_INDICES] for drawn in batches]
    saved.dataset = next((drawn.dataset for drawn in batches if drawn.dataset), "")
    looks = [look_at_input(drawn.batch) for drawn in batches if drawn.batch is not None]
    bad = [look for look in looks if look not in ("finite", "unknown")]
    saved.input = "; ".join(bad) if bad else "finite" if "finite" in looks else "unknown"
    for drawn in batches if bad else ():
        fields = bad_fields(drawn.batch)
        saved.fields += [found.name for found in fields if found.name not in saved.fields]
        for place in sorted({sample for found in fields for sample in found.samples}):
            known = drawn.dataset_indices
            saved.bad_samples.append(known[place] if known is not None and place < len(known) else place)
    return saved


def _copied_batches(batches: Sequence[Drawn], saved: SavedBatches) -> list[dict[str, Any]]:
    copies: list[dict[str, Any]] = []
    total = 0
    for number, drawn in enumerate(batches):
        total += size_of(drawn.batch)
        if drawn.batch is None or total > BATCH_BYTES:
            saved.left_out.append(f"batch {number} of the step: larger than {BATCH_BYTES >> 20} MB in all")
            continue
        copies.append(
            {
                "batch": on_host(drawn.batch),
                "loader": drawn.loader,
                "dataset": drawn.dataset,
                "position": drawn.position,
                "randomness": _plain_randomness(drawn.randomness),
            }
        )
    if not batches:
        saved.left_out.append("the batch: it did not come from a loader that can be seen")
    return copies


def _copied_state(state: Mapping[str, Any], saved: SavedBatches) -> dict[str, Any]:
    if size_of(dict(state)) > STATE_BYTES:
        saved.left_out.append(f"the model's state: larger than {STATE_BYTES >> 30} GB")
        return {}
    copied: dict[str, Any] = on_host(_plain_containers(state))
    return copied


def on_host(value: Any) -> Any:
    """A copy of all tensors in it, in host memory; a tensor that is there twice is copied once."""
    known: dict[int, torch.Tensor] = {}

    def copy(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            if id(part) not in known:
                known[id(part)] = part.detach().to("cpu", copy=True)
            return known[id(part)]
        try:
            return part if isinstance(part, PLAIN) else copying.deepcopy(part)
        except Exception:  # noqa: BLE001 - something of the user's own that cannot be copied is kept as it is
            return part

    return same_shape(value, copy, depth=16)


def _plain_containers(state: Any) -> Any:
    return {key: _plain_containers(part) for key, part in state.items()} if isinstance(state, Mapping) else state


def _plain_randomness(randomness: Mapping[str, Any]) -> Any:
    """Generator states without arrays, so that they can be read back without running anything."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.astype(np.int64))
        return value.item() if isinstance(value, np.generic) else value

    return same_shape(_plain_containers(randomness), plain)


def _write(path: Path, content: dict[str, Any], saved: SavedBatches) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            torch.save(content, spare)
        except Exception as error:  # noqa: BLE001 - a batch of the user's own classes may refuse to be pickled in any way
            saved.left_out.append(f"the batch: it cannot be written ({type(error).__name__}: {error})")
            saved.pickled = False
            torch.save({**content, "batches": []}, spare)
        spare.replace(path)
    finally:
        spare.unlink(missing_ok=True)
    how = "python pickle: torch.load(weights_only=False)" if saved.pickled else "plain tensors: torch.load(weights_only=True)"
    text = {**asdict(saved), "file": path.name, "how": how, "replay": f"holdfast replay --step {saved.step}"}
    spare = path.with_name(f".{path.stem}.json.{os.getpid()}")
    spare.write_text(json.dumps(text, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8", errors="replace")
    spare.replace(path.with_suffix(".json"))
