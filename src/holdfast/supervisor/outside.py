"""The outside of a run while it lives: samples of the machine, tidy tables, a judgement, and a place in the list of live runs."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from holdfast.signals import registry
from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.host import HostSampler
from holdfast.supervisor.judging import Judging
from holdfast.supervisor.trouble import Trouble
from holdfast.supervisor.upkeep import Upkeep


class Outside:
    """Everything that `holdfast run` and the side process of `holdfast.watch` do alike, in background threads."""

    def __init__(self, run: RunFolder, root: int, trouble: Trouble, *, hurry: threading.Event) -> None:
        self._run = run
        self._host = HostSampler(run, root, trouble)
        self._upkeep = Upkeep(run, trouble, hurry=hurry)
        self._judging = Judging(run, trouble, hurry=hurry)

    def __enter__(self) -> Outside:
        registry.register(self._run, os.getpid())
        self._host.start()
        self._upkeep.start()
        self._judging.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._host.stop()
        self._judging.finish()
        self._upkeep.finish()
        registry.forget(os.getpid())

    @property
    def busy(self) -> bool:
        """Whether a thread did not come to its end in time; it must then not be waited for."""
        return self._upkeep.busy or self._judging.busy
