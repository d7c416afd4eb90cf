"""Turn sealed segments into Parquet while the run continues, in a thread that never disturbs it.

A run whose tables are one segment each stays as it is: there is little to save, and loading pyarrow takes a quarter second.
"""

from __future__ import annotations

import socket
import threading
import time

from holdfast.probe.niceness import be_nice
from holdfast.signals.many_ranks import MANY_RANKS, pause_after
from holdfast.signals.registry import is_alive
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.trouble import Trouble

_EVERY_SECONDS = 3.0
_LAST_PASS_SECONDS = 5.0


class Upkeep:
    """Compact every few seconds, and once more at the end within a bounded time; readers do what is left."""

    def __init__(self, run: RunFolder, trouble: Trouble, *, hurry: threading.Event) -> None:
        self._run, self._trouble, self._hurry = run, trouble, hurry
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-upkeep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """One last pass; leaves early when `hurry` is set."""
        self._stop.set()
        deadline = time.monotonic() + _LAST_PASS_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline and not self._hurry.is_set():
            self._thread.join(0.1)

    @property
    def busy(self) -> bool:
        """Still at work after `finish` gave up on it."""
        return self._thread.is_alive()

    def _work(self) -> None:
        be_nice()
        pause = 0.0
        while not self._stop.wait(max(_EVERY_SECONDS, pause)):
            self._trouble.write_pending()
            started = time.thread_time()
            num_ranks = self._compact()
            pause = pause_after(time.thread_time() - started, num_ranks)
        self._trouble.write_pending()
        self._compact(last=True)

    def _compact(self, *, last: bool = False) -> int:
        """Compact what is sealed; the number of recordings."""
        recordings: list[Recording] = []
        try:
            recordings = self._run.recordings() if self._run.path.is_dir() else []
            if any(self._run.path.glob(f"*/*/{1:06d}.*")):  # some table has a second segment
                from holdfast.probe.compact import compact, compact_run

                compact_run(self._run, at_least=2 if len(recordings) > MANY_RANKS else 1)  # one that is written still
                for gone in filter(writer_is_gone, recordings) if last else ():
                    compact(gone.path, final=True)
        except Exception as error:  # noqa: BLE001 - readers can do without it
            self._trouble.step_back("turning tables into Parquet", error)
        return len(recordings)


def writer_is_gone(recording: Recording) -> bool:
    """Whether the process that records here has ended.

    Not if it is another machine's, which shares the folder: its number says nothing here, and its own outside tidies up after it.
    """
    info = recording.info()
    pid, host = info.get("pid"), info.get("host")
    return isinstance(pid, int) and host in (None, socket.gethostname()) and not is_alive(pid)
