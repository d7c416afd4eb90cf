"""The outside of a run while it lives: samples of the machine, tidy tables, a judgement, and a place in the list of live runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from types import TracebackType

from holdfast.signals import registry
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.hang import Hangs
from holdfast.supervisor.host import HostSampler
from holdfast.supervisor.judging import Judging
from holdfast.supervisor.listening import Listening
from holdfast.supervisor.senders import Senders
from holdfast.supervisor.upkeep import Upkeep


class Outside:
    """Everything that `holdfast run` and the side process of `holdfast.watch` do alike, in background threads."""

    def __init__(
        self, run: RunFolder, root: int, trouble: Trouble, *, hurry: threading.Event, notify: Sequence[str] = ()
    ) -> None:
        self._run = run
        self.hang = Hangs(run, trouble)
        self._host = HostSampler(run, root, trouble)
        self._upkeep = Upkeep(run, trouble, hurry=hurry)
        self.judging = Judging(run, trouble, hurry=hurry)
        self._listening = Listening(run, trouble)
        self.senders = Senders(run, trouble, hurry=hurry, notify=notify)

    def __enter__(self) -> Outside:
        registry.register(self._run, os.getpid())
        self._host.start()
        self._upkeep.start()
        self.judging.start()
        self.hang.start()
        self._listening.start()
        self.senders.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listening.stop()
        self.hang.finish()
        self._host.stop()
        self.judging.finish()
        self._upkeep.finish()
        registry.forget(os.getpid())
        self.senders.finish()

    def follow(self, root: int) -> None:
        """The command was started again."""
        self._host.follow(root)
        self.hang.begin_again()

    @property
    def most_files(self) -> tuple[int, int] | None:
        """Open files and the limit of the process of the command that was nearest to it."""
        return self._host.most_files

    @property
    def busy(self) -> bool:
        """Whether a thread did not come to its end in time; it must then not be waited for."""
        return self._upkeep.busy or self.judging.busy
