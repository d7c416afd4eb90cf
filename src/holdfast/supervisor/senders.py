"""Processes that send the run to trackers and notifications while it lives; they delay nothing, and end by themselves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from holdfast.signals.run_folder import RunFolder
from holdfast.signals.tracker_names import SENT, not_installed
from holdfast.signals.trouble import Trouble

NOTIFY = "HOLDFAST_NOTIFY"  # commands and addresses, one a line; not in run.json, as an address can be a secret
_LAST_SECONDS = 3.0


class Senders:
    """One process for each tracker that `run.json` names, and one for notifications."""

    def __init__(self, run: RunFolder, trouble: Trouble, *, hurry: threading.Event, notify: Sequence[str] = ()) -> None:
        self._run, self._trouble, self._hurry = run, trouble, hurry
        self._environment = {**os.environ, **({NOTIFY: "\n".join(notify)} if notify else {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start them; they outlive us if we are killed, as long as the training does."""
        named = [str(name) for name in self._run.info().get("to") or ()]
        missing = not_installed(named)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # inherited: one that comes early is not lost
        for name in (*(name for name in named if name not in missing), *(["notify"] if self._environment.get(NOTIFY) else [])):
            try:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "holdfast.integrations.beside", str(self._run.path), name],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                self._trouble.step_back(f"sending to {name}", error)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def finish(self) -> None:
        """Tell them that the run is over, and wait a moment for those to which a tracker answers."""
        for process in self._processes.values():
            with contextlib.suppress(OSError):
                process.terminate()
        deadline = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < deadline and not self._hurry.is_set():
            if all(process.poll() is not None or self._error(name) for name, process in self._processes.items()):
                break
            time.sleep(0.05)
        for process in self._processes.values():
            process.returncode = process.poll() or 0  # it outlives this process on purpose: avoids the ResourceWarning

    def say_left(self) -> None:
        """Print a line for each tracker that does not take what it is sent."""
        for name in self._processes:
            if name != "notify" and (error := self._error(name)):
                later = f"later: holdfast sync {self._run.target} --to {name}"
                line = f"holdfast: not everything was sent to {name}: {error}; {later}\n"
                with contextlib.suppress(OSError):
                    os.write(2, line.encode(errors="replace"))

    def _error(self, name: str) -> str | None:
        try:
            content = json.loads((self._run.path / SENT / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return str(content.get("error") or "") or None
