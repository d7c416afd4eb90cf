"""The thread that watches for hangs while a run lives. What it needs is loaded when a training has lasted a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.probe.niceness import be_nice
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.begun import wait_for_training

if TYPE_CHECKING:
    from holdfast.detectors.finding import Finding
    from holdfast.detectors.hang import Standing
    from holdfast.supervisor.hang_watch import HangWatch

_SHORT_SECONDS = 2.0  # of a training that is over before it can hang


class Hangs:
    """Looks until the run is over; `on_hang` is called, in this thread, with what was found."""

    def __init__(self, run: RunFolder, trouble: Trouble) -> None:
        self._run, self._trouble = run, trouble
        self.on_hang: Callable[[Finding], None] | None = None
        self.others: Callable[[], list[Standing]] = list  # ranks of other nodes
        self._watch: HangWatch | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-hang", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """The run is over."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(3.0)

    def begin_again(self) -> None:
        """Another attempt begins."""
        if self._watch is not None:
            self._watch.begin_again()

    def _work(self) -> None:
        be_nice()
        try:
            if not wait_for_training(self._run, self._stop, seconds=_SHORT_SECONDS, starting=True):
                return
            from holdfast.supervisor.hang_watch import HangWatch, limits_from

            limits = limits_from(self._run.info().get("hang_after"))
            if limits is None:
                return
            self._watch = HangWatch(self._run, self._trouble, limits=limits, on_hang=self._found, others=lambda: self.others())
            while not self._stop.wait(self._watch.tick):
                self._look(self._watch)
        except Exception as error:  # noqa: BLE001 - the training continues without this watch
            self._trouble.step_back("watching for hangs", error)

    def _look(self, watch: HangWatch) -> None:
        try:
            watch.look()
        except OSError as error:  # a share that was away comes back: the next look may be a good one
            self._trouble.step_back("looking for hangs", error)

    def _found(self, finding: Finding) -> None:
        if self.on_hang is not None and not self._stop.is_set():
            self.on_hang(finding)
