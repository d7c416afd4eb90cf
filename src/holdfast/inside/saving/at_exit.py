"""At the end of the process: finish the save that is under way. A forked child has none."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from typing import Any, Protocol


class Finishing(Protocol):
    """What has something to finish."""

    def wait_at_exit(self) -> None:
        """Finish it."""

    def begin_again(self) -> None:
        """In a forked child: nothing is under way."""


_savers: weakref.WeakSet[Any] = weakref.WeakSet()
_process = 0


def finish(saver: Finishing) -> None:
    """Have a saver finish what is under way when the process ends, and begin again in a forked child."""
    global _process
    if _process != os.getpid():
        if _process == 0:
            atexit.register(_finish_all)
            os.register_at_fork(after_in_child=_begin_again)
        elif (util := sys.modules.get("multiprocessing.util")) is not None:  # ends its forked children without `atexit`
            util.Finalize(None, _finish_all, exitpriority=0)
        _process = os.getpid()
    _savers.add(saver)


def _finish_all() -> None:
    if _process == os.getpid():
        for saver in list(_savers):
            with contextlib.suppress(Exception):
                saver.wait_at_exit()


def _begin_again() -> None:
    savers = list(_savers)
    _savers.clear()
    for saver in savers:
        saver.begin_again()
