"""The ranks of a training, and how they agree on checkpoints without using the training's process group.

`RankNotes`: notes in the store of `torch.distributed`, no collectives. A script may save on rank 0 alone: a collective that
some ranks never join would hang; an unread note does no harm.
`SaveGroup`: a separate gloo group for sharded saves, which every rank must join.
"""

from __future__ import annotations

import io
import os
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch

from holdfast.errors import CannotRestore, HoldfastError, StorageError

Result = TypeVar("Result")
_RANK_0_TIMEOUT = timedelta(minutes=5)  # until rank 0 calls restore too
_CHOICE_TIMEOUT = timedelta(minutes=30)  # rank 0 reads every byte of a checkpoint before it chooses it
_NOTES_TIMEOUT = 5.0  # seconds, in the background, for the notes of the other ranks
_MAX_RANKS = 256  # whose notes go through the memory of rank 0
_GROUP_TIMEOUT = timedelta(hours=2)  # a slow disk may take long to write a shard


def world_size() -> int:
    """Number of ranks of this training."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def current_rank() -> int:
    """The rank of this process: from the process group, else from the launcher."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether this rank holds only a shard of the parameter."""
    return any(hasattr(parameter, name) for name in ("_local_tensor", "_sharded_size", "_fsdp_flattened"))


class RankNotes:
    """The ranks' notes about one folder of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"holdfast/{folder}"
        self._choices = 0
        self._others_write = True

    # Which checkpoint to restore: rank 0 chooses

    def choose(self, choose: Callable[[], Any]) -> Any:
        """Rank 0's choice, on every rank. Raises CannotRestore if rank 0 does not answer."""
        if world_size() == 1 or (store := _store()) is None:
            return choose()
        self._choices += 1
        choosing, chosen = f"{self._prefix}/choosing/{self._choices}", f"{self._prefix}/choice/{self._choices}"
        if current_rank() == 0:
            store.set(choosing, b"")
            choice = None
            try:
                choice = choose()
            finally:
                store.set(chosen, _to_bytes(choice))
            return choice
        try:
            store.wait([choosing], _RANK_0_TIMEOUT)
            store.wait([chosen], _CHOICE_TIMEOUT)
            return _from_bytes(store.get(chosen))
        except Exception as error:  # noqa: BLE001 - torch raises several types
            raise CannotRestore(
                f"Rank 0 did not choose a checkpoint to restore: {error}", fix="call restore on every rank, in the same order"
            ) from None

    # The ranks' own state: rank 0 writes it into the checkpoint

    def leave(self, step: int, state: Any) -> None:
        """Other ranks: leave the state for the checkpoint of a step."""
        store = _store()
        if store is not None and world_size() <= _MAX_RANKS:
            store.set(f"{self._prefix}/state/{step}/{current_rank()}", _to_bytes(state))

    def collect(self, step: int) -> dict[int, Any]:
        """Rank 0: the states of the others; waits briefly unless the last wait was in vain."""
        store, ranks = _store(), range(1, world_size())
        if store is None or not ranks or len(ranks) >= _MAX_RANKS:
            return {}
        keys = [f"{self._prefix}/state/{step}/{rank}" for rank in ranks]
        end = time.monotonic() + (_NOTES_TIMEOUT if self._others_write else 0.0)
        while not store.check(keys):  # polled, since `wait` would block other threads
            if time.monotonic() >= end:
                self._others_write = False
                return {}
            time.sleep(0.02)
        self._others_write = True
        states = {rank: _from_bytes(store.get(key)) for rank, key in zip(ranks, keys, strict=True)}
        for key in keys:
            store.delete_key(key)
        return states


class SaveGroup:
    """The process group of background saves, created by all ranks at the same point, in the training thread.

    Two threads of a rank must never use the same group, so it is not the training's. Every rank takes every step, even after a
    failure, so that none waits forever.
    """

    def __init__(self) -> None:
        distributed: Any = torch.distributed
        self.group = distributed.new_group(backend="gloo", timeout=_GROUP_TIMEOUT)
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()

    def share(self, job: Callable[[], Result]) -> list[Result]:
        """Run a job on every rank and share the results by rank. A failure on one is raised on all."""
        result: Any = None
        failure: str | None = None
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            failure = error.problem if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        results: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(results, (result, failure), group=self.group)
        for rank, (_, text) in enumerate(results):
            if text is not None:
                raise StorageError(text if self.count == 1 else f"Rank {rank}: {text}", fix="look at that rank")
        return [result for result, _ in results]


_unfinished: weakref.WeakSet[Any] = weakref.WeakSet()


def finish_before_groups_end(saver: Any) -> None:
    """Make `destroy_process_group` wait for the save in progress, which needs the groups."""
    distributed: Any = torch.distributed
    _unfinished.add(saver)
    original = distributed.destroy_process_group
    if getattr(original, "_waits_for_saves", False):
        return

    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        for unfinished in list(_unfinished):
            unfinished.wait()
        return original(*args, **kwargs)

    destroy_process_group._waits_for_saves = True  # type: ignore[attr-defined]
    distributed.destroy_process_group = destroy_process_group


def _store() -> Any:
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    try:
        return distributed.distributed_c10d._get_default_store()
    except (AttributeError, KeyError, ValueError):  # another torch version
        return None


def _to_bytes(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _from_bytes(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)
