"""The ranks of a training, and how they agree on checkpoints: by notes in the store of `torch.distributed`, without collectives.

A script may save on rank 0 alone: a collective that some ranks never join would hang, an unread note does no harm. Notes neither
meet the training's own collectives nor end with its process groups, so a save in the background outlives
`destroy_process_group`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from holdfast.errors import CannotRestore, HoldfastError, StorageError

Result = TypeVar("Result")
_RANK_0_TIMEOUT = 300.0  # seconds until rank 0 calls restore too
_CHOICE_TIMEOUT = 1800.0  # rank 0 reads every byte of a checkpoint before it chooses it
_NOTES_TIMEOUT = 5.0  # in the background, for the notes of the other ranks
_SHARE_TIMEOUT = 7200.0  # a slow disk may take long to write a shard
_MAX_RANKS = 256  # whose notes go through the memory of rank 0
_PAUSES = (0.005, 0.5)  # seconds between two looks, the first and the longest


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
    return hasattr(parameter, "_local_tensor") or is_flattened(parameter)


def is_flattened(parameter: torch.Tensor) -> bool:
    """Whether it is a shard of FullyShardedDataParallel, which does not know its place in the whole."""
    return hasattr(parameter, "_sharded_size") or hasattr(parameter, "_fsdp_flattened")


_notes = Counter[str]()  # in this process, by kind


class RankNotes:
    """The ranks' notes about one folder of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"holdfast/{folder}"
        self._others_write = True
        self._store: Any = None
        self.rank, self.count = 0, 1

    def connect(self) -> bool:
        """Whether there are other ranks to exchange notes with; called in the training thread, while there is a process group."""
        distributed: Any = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            with contextlib.suppress(AttributeError, KeyError, ValueError):  # another torch version
                self._store = distributed.distributed_c10d._get_default_store()
            if self._store is not None:  # not with MPI
                self.rank, self.count = distributed.get_rank(), distributed.get_world_size()
        return self.count > 1

    # Which checkpoint to restore: rank 0 chooses

    def choose(self, choose: Callable[[], Any]) -> Any:
        """Rank 0's choice, on every rank. Raises CannotRestore if rank 0 does not answer."""
        if not self.connect():
            return choose()
        choosing, chosen = self._next("choosing"), self._next("choice")
        if self.rank == 0:
            self._store.set(choosing, b"")
            choice = None
            try:
                choice = choose()
            finally:
                self._store.set(chosen, pickle.dumps(choice))
            return choice
        if not (self._appears([choosing], _RANK_0_TIMEOUT) and self._appears([chosen], _CHOICE_TIMEOUT)):
            raise CannotRestore(
                "Rank 0 did not choose a checkpoint to restore.", fix="call restore on every rank, in the same order"
            )
        return pickle.loads(self._store.get(chosen))

    # The ranks' own state: rank 0 writes it into the checkpoint

    def leave(self, step: int, state: Any) -> None:
        """Other ranks: leave the state for the checkpoint of a step."""
        if self.connect() and self.count <= _MAX_RANKS:
            self._store.set(f"{self._prefix}/state/{step}/{self.rank}", pickle.dumps(state))

    def collect(self, step: int) -> dict[int, Any]:
        """Rank 0: the states of the others; waits briefly unless the last wait got none."""
        ranks = range(1, self.count)
        if not ranks or self.count > _MAX_RANKS:
            return {}
        keys = [f"{self._prefix}/state/{step}/{rank}" for rank in ranks]
        self._others_write = self._appears(keys, _NOTES_TIMEOUT if self._others_write else 0.0)
        return {rank: pickle.loads(self._take(key)) for rank, key in zip(ranks, keys, strict=True)} if self._others_write else {}

    # A save by all ranks

    def share(self, job: Callable[[], Result]) -> list[Result]:
        """Run a job on every rank and share the results by rank. A failure on one is raised on all.

        Every rank takes every step, even after a failure, so that none waits for nothing.
        """
        result: Any = None
        failure: str | None = None
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            failure = error.problem if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        results = self._exchange((result, failure))
        for rank, (_, text) in enumerate(results):
            if text is not None:
                raise StorageError(text if len(results) == 1 else f"Rank {rank}: {text}", fix="look at that rank")
        return [result for result, _ in results]

    def _exchange(self, own: Any) -> list[Any]:
        """What every rank gives, by rank: rank 0 puts it together, and stays until everybody has read it."""
        if self.count == 1:
            return [own]
        key = self._next("shared")
        if self.rank:
            self._store.set(f"{key}/{self.rank}", pickle.dumps(own))
            self._wait_for(key)
            everything = self._store.get(key)
            self._store.set(f"{key}/read/{self.rank}", b"")
            return list(pickle.loads(everything))
        others = [f"{key}/{rank}" for rank in range(1, self.count)]
        self._wait_for(*others)
        results = [own, *(pickle.loads(self._take(other)) for other in others)]
        self._store.set(key, pickle.dumps(results))
        read = [f"{key}/read/{rank}" for rank in range(1, self.count)]
        self._wait_for(*read)
        for used in (key, *read):
            self._store.delete_key(used)
        return results

    def _next(self, what: str) -> str:
        """The next note of a kind: numbered for the folder, which may be opened more than once."""
        key = f"{self._prefix}/{what}"
        _notes[key] += 1
        return f"{key}/{_notes[key]}"

    def _wait_for(self, *keys: str) -> None:
        if not self._appears(list(keys), _SHARE_TIMEOUT):
            raise StorageError("Another rank did not take part in the save.", fix="save on every rank, at the same step")

    def _appears(self, keys: list[str], timeout: float) -> bool:
        """Wait for notes; looks now and then, since `wait` of the store would block other threads."""
        end, pause = time.monotonic() + timeout, _PAUSES[0]
        while not self._store.check(keys):
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        return True

    def _take(self, key: str) -> Any:
        note = self._store.get(key)
        self._store.delete_key(key)
        return note
