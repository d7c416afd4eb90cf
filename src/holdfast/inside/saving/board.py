"""A board on which ranks leave notes for each other: the store that `torch.distributed` keeps. Nobody takes part in a collective.

A script may save on rank 0 alone, or on all ranks: a collective that some do not come to would hang for ever. A note that nobody
reads does no harm, and one that does not come is not waited for long.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from holdfast.errors import CannotRestore
from holdfast.inside.ranks import current_rank, world_size

_PREFIX = "holdfast"
_FOR_RANK_0 = timedelta(minutes=5)  # until it asks for a checkpoint too
_FOR_A_CHOICE = timedelta(minutes=30)  # rank 0 reads every byte of a checkpoint before it chooses it
_FOR_OTHERS = 5.0  # seconds, in the helper thread, for what the other ranks keep for themselves
_RANKS_AT_MOST = 256  # their notes go through the memory of rank 0


class Board:
    """The notes about one folder."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{_PREFIX}/{folder}"
        self._choices = 0
        self._others_come = True

    # What to restore: rank 0 chooses

    def choosing(self) -> None:
        """Rank 0: tell the others that it chooses."""
        self._choices += 1
        self._note("choosing", None)

    def announce(self, choice: Any) -> None:
        """Rank 0: tell the others what was chosen."""
        self._note("choice", choice)

    def choice(self) -> Any:
        """Other ranks: what rank 0 has chosen. Raises CannotRestore if it does not say."""
        self._choices += 1
        store = _store()
        try:
            assert store is not None
            store.wait([self._key("choosing")], _FOR_RANK_0)
            store.wait([self._key("choice")], _FOR_A_CHOICE)
            return _from_bytes(store.get(self._key("choice")))
        except Exception as error:  # noqa: BLE001 - torch raises of several kinds
            raise CannotRestore(
                f"Rank 0 did not say which checkpoint to restore: {error}", fix="call restore on every rank, in the same order"
            ) from None

    def _note(self, what: str, value: Any) -> None:
        if (store := _store()) is not None:
            store.set(self._key(what), _to_bytes(value))

    def _key(self, what: str) -> str:
        return f"{self._prefix}/{what}/{self._choices}"

    # What each rank has for itself: rank 0 writes it down

    def leave(self, step: int, state: Any) -> None:
        """Other ranks: leave what belongs into the checkpoint of a step."""
        store = _store()
        if store is not None and world_size() <= _RANKS_AT_MOST:
            store.set(f"{self._prefix}/state/{step}/{current_rank()}", _to_bytes(state))

    def collect(self, step: int) -> dict[int, Any]:
        """Rank 0: what the others have left. Waits a little, in the helper thread, unless it did so in vain before."""
        store, ranks = _store(), range(1, world_size())
        if store is None or not ranks or len(ranks) >= _RANKS_AT_MOST:
            return {}
        keys = [f"{self._prefix}/state/{step}/{rank}" for rank in ranks]
        self._others_come = _come(store, keys, _FOR_OTHERS if self._others_come else 0.0)
        if not self._others_come:
            return {}
        states = {rank: _from_bytes(store.get(key)) for rank, key in zip(ranks, keys, strict=True)}
        for key in keys:
            store.delete_key(key)
        return states


def speaks() -> bool:
    """Whether ranks can leave notes for each other."""
    return world_size() > 1 and _store() is not None


def _come(store: Any, keys: Iterable[str], seconds: float) -> bool:
    """Whether all notes are there, or come within that time. Asked again and again: who waits in it holds up other threads."""
    end, keys = time.monotonic() + seconds, list(keys)
    while not store.check(keys):
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def _store() -> Any:
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    try:
        return distributed.distributed_c10d._get_default_store()
    except (AttributeError, KeyError, ValueError):  # another kind of torch
        return None


def _to_bytes(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _from_bytes(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)
