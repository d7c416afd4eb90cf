"""Keep the batches of the step in progress, with the dataset indices of their samples; save those of a bad step for a replay.

Batches are held by reference until their step is over, up to a byte limit. Indices are recorded as the loader draws them from
its sampler; workers fetch ahead, so they stay in that order until their batch arrives.

A bad step is saved as `step-000123.pt` with its batches and the model's state, described by a `.json`. Values are copied to the
host when `save_batches` is called; the helper thread writes the file later and renames it when it is complete. What exceeds a
size limit is omitted, and the description says so.
"""

from __future__ import annotations

import copy
import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import Subset
from torch.utils.data.dataloader import _DatasetKind

from holdfast.inside.observers.batch_contents import SCALARS, input_status, non_finite_fields, num_bytes
from holdfast.inside.taps.registry import Taps

FORMAT = 1
BATCH_BYTES, STATE_BYTES = 256 << 20, 2 << 30
_MAX_BYTES = 1 << 28
_MAX_BATCHES = 256  # of one step
_MAX_INDICES = 4096
_LEARNED = -1


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


class _SampledIndices:
    """The index lists that one iterator drew from its sampler, and how far it reads ahead of the steps."""

    __slots__ = ("ahead", "before_first_step", "drawn", "first", "lists", "sampler")

    def __init__(self, ahead: int) -> None:
        self.sampler: Any = None
        self.lists: deque[Any] = deque()
        self.first = 0  # position of the oldest list that is kept
        self.drawn = 0
        self.before_first_step: int | None = None  # batches drawn before the first step of the pass; _LEARNED: `ahead` is known
        self.ahead = ahead

    def add(self, sampler: Any, indices: Any) -> None:
        if sampler is not self.sampler:  # persistent workers: the same iterator starts another pass
            self.sampler, self.first = sampler, 0
            self.lists.clear()
        self.lists.append(indices)

    def of_batch(self, iterator: Any) -> list[Any] | None:
        """The indices of the batch that has just arrived; None where the loader does not keep the order."""
        if not getattr(iterator, "_in_order", True):
            return None
        received = getattr(iterator, "_rcvd_idx", None)  # workers number their batches; without workers it is the last list
        position = self.first + len(self.lists) - 1 if received is None else int(received) - 1
        while self.lists and self.first < position:
            self.lists.popleft()
            self.first += 1
        if not self.lists or self.first != position:
            return None
        indices = self.lists[0]
        return indices if isinstance(indices, list) else list(indices) if isinstance(indices, tuple) else [indices]

    @property
    def is_in_step(self) -> bool:
        """Whether every step is known to draw its own batches, none ahead."""
        return self.before_first_step == _LEARNED and not self.ahead


class Batches:
    """The batches of the step in progress."""

    def __init__(self, sampled: weakref.WeakKeyDictionary[Any, _SampledIndices] | None = None) -> None:
        self.sampled = weakref.WeakKeyDictionary[Any, _SampledIndices]() if sampled is None else sampled
        self._since_step: list[DrawnBatch] = []
        self._carried: list[DrawnBatch] = []  # drawn before the last step, for the one in progress
        self._ahead = 0
        self._bytes = 0
        self._num_unsampled = 0  # batches that came from no DataLoader

    def install(self, taps: Taps) -> None:
        """Record the indices that loaders draw from their samplers."""
        taps.wrap("torch.utils.data.dataloader._BaseDataLoaderIter._next_index", self._wrap_next_index)

    def _wrap_next_index(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if iterator._dataset_kind == _DatasetKind.Map:
                self._sampled_of(iterator).add(iterator._sampler_iter, indices)
            return indices

        return _next_index

    def note(self, iterator: Any, batch: Any) -> None:
        """Keep a training batch; `iterator` is None where it did not come from a `DataLoader`."""
        if len(self._since_step) >= _MAX_BATCHES:
            del self._since_step[0]
        batch = batch.copy() if type(batch) in (dict, list) else batch  # scripts pop the labels
        if iterator is None:
            drawn = DrawnBatch(batch, None, None, self._num_unsampled, rng_state=_rng_state())
            self._num_unsampled += 1
        else:
            sampled = self._sampled_of(iterator)
            sampled.drawn += 1
            dataset, position = iterator._dataset, max(getattr(iterator, "_num_yielded", 1) - 1, 0)
            indices = sampled.of_batch(iterator)
            dataset_indices = _below_subsets(dataset, indices) if isinstance(dataset, Subset) else indices
            drawn = DrawnBatch(batch, indices, dataset_indices, position, 0, type(dataset).__qualname__, _rng_state(), sampled)
        self._since_step.append(drawn)
        if len(self._since_step) + len(self._carried) > 1:  # a single batch is kept whatever its size
            self._bytes += num_bytes(batch)
            if self._bytes > _MAX_BYTES:
                self._drop_oldest()

    def current(self) -> list[DrawnBatch]:
        """The batches of the step in progress, in the order they were drawn."""
        ahead = self._read_ahead()
        entries = [*self._carried, *self._since_step] if ahead or not self._since_step else self._since_step
        if ahead and self._since_step and len(entries) > ahead:  # at the end of a pass nothing is read ahead
            entries = entries[:-ahead]
        loaders: dict[int, int] = {}
        for drawn in entries:
            drawn.loader = loaders.setdefault(id(drawn.sampled), len(loaders))
        return list(entries)

    def end_step(self) -> None:
        """Release the batches of the finished step, except those read ahead."""
        since, carried = self._since_step, self._carried
        if not carried and (not since or (len(since) == 1 and ((sampled := since[0].sampled) is None or sampled.is_in_step))):
            since.clear()  # the common step
            return
        ahead = self._read_ahead()
        may_be_ahead = self._learn_ahead(len(since))
        self._carried = since[-1:] if ahead or may_be_ahead else []
        self._since_step = []
        self._bytes = sum(num_bytes(drawn.batch) for drawn in self._carried)

    def _sampled_of(self, iterator: Any) -> _SampledIndices:
        sampled = self.sampled.get(iterator)
        if sampled is None:
            sampled = self.sampled[iterator] = _SampledIndices(self._ahead)
        return sampled

    def _newest_sampled(self) -> _SampledIndices | None:
        entries = self._since_step or self._carried
        return entries[-1].sampled if entries else None

    def _read_ahead(self) -> int:
        """How many batches the loader is ahead of the step (Accelerate and Transformers: 1); known from a pass's second step."""
        sampled = self._newest_sampled()
        if sampled is None:
            return 0
        if sampled.before_first_step is not None and sampled.before_first_step > 0 and self._since_step:
            return int(sampled.before_first_step == len(self._since_step) + 1)
        return sampled.ahead

    def _learn_ahead(self, count: int) -> bool:
        """Compare the first two steps of a pass; whether the last batch may belong to the next step."""
        sampled = self._newest_sampled()
        if sampled is None or sampled.before_first_step == _LEARNED:
            return False
        if sampled.before_first_step is None:
            sampled.before_first_step = sampled.drawn
            return sampled.drawn > 1
        if count:
            sampled.ahead = self._ahead = int(sampled.before_first_step == count + 1)
            sampled.before_first_step = _LEARNED
        return False

    def _drop_oldest(self) -> None:
        """Release the values of the oldest batches; the newest is always kept."""
        batches = [*self._carried, *self._since_step]
        self._bytes = sum(num_bytes(drawn.batch) for drawn in batches)
        for drawn in batches[:-1]:
            if self._bytes > _MAX_BYTES:
                self._bytes -= num_bytes(drawn.batch)
                drawn.batch = None


def _below_subsets(dataset: Any, indices: list[Any] | None) -> list[Any] | None:
    while indices is not None and isinstance(dataset, Subset):
        try:
            indices = [int(dataset.indices[index]) for index in indices]
        except (TypeError, ValueError, IndexError, KeyError):
            return None
        dataset = dataset.dataset
    return indices


def _rng_state() -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.default_generator.get_state()}
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        state["cuda"] = {torch.cuda.current_device(): torch.cuda.get_rng_state()}
    return state


# On disk


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

    return tree_map(copy_leaf, _as_dicts(value))


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
            torch.save({**content, "batches": []}, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    facts = {**asdict(saved), "file": path.name, "replay": f"holdfast replay --step {saved.step}"}
    temporary = path.with_name(f".{path.stem}.json.{os.getpid()}")
    temporary.write_text(json.dumps(facts, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8", errors="replace")
    temporary.replace(path.with_suffix(".json"))
