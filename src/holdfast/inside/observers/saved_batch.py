"""Save a bad step for `holdfast replay`: `step-000123.pt` with its batches and the model's state, described by a `.json`.

Values are copied to the host when `save_batches` is called; the helper thread writes the file later and renames it when it is
complete. What exceeds a size limit is omitted, and the description says so.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.inside.observers.batch_contents import (
    SCALARS,
    input_status,
    loads_weights_only,
    non_finite_fields,
    num_bytes,
    tree_map,
)

FORMAT = 1
BATCH_BYTES, STATE_BYTES = 256 << 20, 2 << 30
_MAX_INDICES = 4096
_MAX_DEPTH = 16


@dataclass(slots=True)
class DrawnBatch:
    """One batch: its values (None once the byte limit was exceeded), its sample indices, and its origin."""

    batch: Any
    indices: list[Any] | None
    dataset_indices: list[Any] | None  # in the dataset below all `Subset`s; equal to `indices` without one
    position: int  # in its pass over the loader
    loader: int = 0  # which of the iterators that this step drew from
    dataset: str = ""
    rng_state: dict[str, Any] = field(default_factory=dict)  # when the batch was drawn
    sampled: Any = None  # what its iterator drew from the sampler; None where it came from no `DataLoader`


@dataclass(slots=True)
class SavedBatches:
    """The description of a saved step; `file` is None if nothing is saved, `not_saved` says what is omitted and why."""

    step: int
    file: str | None = None
    indices: list[list[Any] | None] = field(default_factory=list)  # one list for each batch of the step
    dataset_indices: list[list[Any] | None] = field(default_factory=list)
    dataset: str = ""
    input: str = "unknown"
    bad_samples: list[Any] = field(default_factory=list)  # dataset indices, or positions in the batch where those are unknown
    fields: list[str] = field(default_factory=list)
    pickled: bool = False
    not_saved: list[str] = field(default_factory=list)


def save_batches(
    folder: Path,
    step: int,
    batches: Sequence[DrawnBatch],
    *,
    state: Mapping[str, Any],
    run_later: Callable[[Callable[[], None]], None],
) -> SavedBatches:
    """Copy batches and state to the host now, write them later."""
    saved = describe(step, batches)
    path = folder / f"step-{step:06d}.pt"
    content: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "batches": _copy_batches(batches, saved),
        "state": _copy_state(state, saved),
        "randomness": batches[0].rng_state,
    }
    saved.pickled = not loads_weights_only(content, _MAX_DEPTH)
    saved.file = str(path)
    run_later(lambda: _write(path, content, saved))
    return saved


def describe(step: int, batches: Sequence[DrawnBatch]) -> SavedBatches:
    """Describe the batches of a step and whether their values are finite, without copying anything."""
    saved = SavedBatches(step)
    saved.indices = [None if drawn.indices is None else drawn.indices[:_MAX_INDICES] for drawn in batches]
    saved.dataset_indices = [None if drawn.dataset_indices is None else drawn.dataset_indices[:_MAX_INDICES] for drawn in batches]
    saved.dataset = next((drawn.dataset for drawn in batches if drawn.dataset), "")
    statuses = [input_status(drawn.batch) for drawn in batches if drawn.batch is not None]
    bad = [status for status in statuses if status not in ("finite", "unknown")]
    saved.input = "; ".join(bad) if bad else "finite" if "finite" in statuses else "unknown"
    for drawn in batches if bad else ():
        fields = non_finite_fields(drawn.batch)
        saved.fields += [field.name for field in fields if field.name not in saved.fields]
        indices = drawn.dataset_indices or ()
        positions = sorted({sample for field in fields for sample in field.samples})
        saved.bad_samples += [indices[position] if position < len(indices) else position for position in positions]
    return saved


def _copy_batches(batches: Sequence[DrawnBatch], saved: SavedBatches) -> list[dict[str, Any]]:
    copies: list[dict[str, Any]] = []
    total = 0
    for number, drawn in enumerate(batches):
        total += num_bytes(drawn.batch)
        if drawn.batch is None or total > BATCH_BYTES:
            saved.not_saved.append(f"batch {number} of the step: the batches are larger than {BATCH_BYTES >> 20} MiB in total")
            continue
        copies.append(
            {
                "batch": copy_to_host(drawn.batch),
                "loader": drawn.loader,
                "dataset": drawn.dataset,
                "position": drawn.position,
                "randomness": drawn.rng_state,
            }
        )
    return copies


def _copy_state(state: Mapping[str, Any], saved: SavedBatches) -> dict[str, Any]:
    if num_bytes(dict(state)) > STATE_BYTES:
        saved.not_saved.append(f"the model's state: larger than {STATE_BYTES >> 30} GiB")
        return {}
    copied: dict[str, Any] = copy_to_host(state)
    return copied


def copy_to_host(value: Any) -> Any:
    """Copy all tensors to host memory, and mappings into dicts; a tensor that occurs twice is copied once."""
    copies: dict[int, torch.Tensor] = {}

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in copies:
                copies[id(leaf)] = leaf.detach().to("cpu", copy=True)
            return copies[id(leaf)]
        try:
            return leaf if isinstance(leaf, SCALARS) else copy.deepcopy(leaf)
        except Exception:  # noqa: BLE001 - an object of the user's that cannot be copied is kept as it is
            return leaf

    return tree_map(copy_leaf, _as_dicts(value), _MAX_DEPTH)


def _as_dicts(state: Any) -> Any:
    return {key: _as_dicts(value) for key, value in state.items()} if isinstance(state, Mapping) else state


def _write(path: Path, content: dict[str, Any], saved: SavedBatches) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            torch.save(content, temporary)
        except Exception as error:  # noqa: BLE001 - the user's own classes may refuse to be pickled in any way
            saved.not_saved.append(f"the batch: it cannot be written ({type(error).__name__}: {error})")
            saved.pickled = False
            torch.save({**content, "batches": []}, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    how = "python pickle: torch.load(weights_only=False)" if saved.pickled else "plain tensors: torch.load(weights_only=True)"
    facts = {**asdict(saved), "file": path.name, "how": how, "replay": f"holdfast replay --step {saved.step}"}
    temporary = path.with_name(f".{path.stem}.json.{os.getpid()}")
    temporary.write_text(json.dumps(facts, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8", errors="replace")
    temporary.replace(path.with_suffix(".json"))
