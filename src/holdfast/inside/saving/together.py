"""What ranks do together beside the training: in a process group of their own, on the host, from their helper threads.

The training's own group stays untouched: two threads of one rank must never call into the same group. Every rank takes every
step, also one that has failed, so that none waits for another in vain; what failed on one is raised on all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch

from holdfast.errors import HoldfastError, StorageError

Result = TypeVar("Result")
_PATIENCE = timedelta(hours=2)  # a rank with a slow disk may take long to write its part
_waiting: weakref.WeakSet[Any] = weakref.WeakSet()


class Together:
    """All ranks. To be made by all of them at the same point, in the training thread."""

    def __init__(self) -> None:
        distributed: Any = torch.distributed
        self.group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()

    def share(self, job: Callable[[], Result]) -> list[Result]:
        """Have every rank do its job and give all ranks all results, by rank. Raises on all what failed on one."""
        result: Any = None
        failure: str | None = None
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            failure = error.problem if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        answers: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(answers, (result, failure), group=self.group)
        for rank, (_, words) in enumerate(answers):
            if words is not None:
                raise StorageError(words if self.count == 1 else f"Rank {rank}: {words}", fix="look at that rank")
        return [answer for answer, _ in answers]


def finish_before_groups_go(saver: Any) -> None:
    """Have a script that ends its process groups wait for the save under way: without them it could not be finished."""
    distributed: Any = torch.distributed
    _waiting.add(saver)
    original = distributed.destroy_process_group
    if getattr(original, "_waits_for_saves", False):
        return

    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        for waiting in list(_waiting):
            waiting.wait()
        return original(*args, **kwargs)

    destroy_process_group._waits_for_saves = True  # type: ignore[attr-defined]
    distributed.destroy_process_group = destroy_process_group
