"""A run in a Jupyter notebook: curves and health under its cell, and Ctrl-C that leaves a checkpoint.

IPython is never imported: in a notebook it is there. The page is drawn by another process, at low priority.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.signals.own_thread import OwnThread

_SECONDS = 60.0
_EVERY_SECONDS, _SHARE = 5.0, 0.05  # of one core, for drawing


def shell() -> Any:
    """IPython's shell in the kernel of a notebook; None anywhere else, a terminal included."""
    found = sys.modules["IPython"].get_ipython() if "ipykernel" in sys.modules and "IPython" in sys.modules else None
    return found if hasattr(found, "kernel") else None


def current_cell() -> tuple[str, int] | None:
    """The cell that is executed, by its id or else its code, and the count of this execution; None outside a notebook."""
    if (ipython := shell()) is None:
        return None
    with contextlib.suppress(AttributeError, KeyError, IndexError, TypeError):
        identity = ipython.kernel.get_parent("shell").get("metadata", {}).get("cellId")
        return str(identity or ipython.user_ns["In"][-1]), int(ipython.execution_count)
    return None


@functools.cache
def before_each_cell(call: Callable[[], None]) -> None:
    """Call it before every cell: the kernel sets Python's own handler of Ctrl-C for each."""
    if (ipython := shell()) is not None:
        ipython.events.register("pre_run_cell", lambda *_: call())


def draw(folder: Path) -> str | None:
    """The page of a run so far, in a frame; None if it cannot be drawn."""
    command = [sys.executable, "-m", "holdfast.diagnosis.page", str(folder)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False)
        return done.stdout.decode(errors="replace") if done.returncode == 0 else None
    return None


def show_live(run: Any) -> None:
    """Show the run under the cell, and again every few seconds until it is closed."""
    ipython = shell()
    if ipython is None:
        raise NotImplementedError  # IPython then shows the text
    transient = {"display_id": f"holdfast-{run.name}-{time.monotonic_ns()}"}

    def publish(update: bool) -> float:
        begun = time.monotonic()
        html = run._repr_html_()
        data = {"text/plain": repr(run), **({"text/html": html} if html else {})}
        ipython.display_pub.publish(data, metadata={}, transient=transient, update=update)
        return time.monotonic() - begun

    def follow(seconds: float) -> None:
        drawn = HEARTBEAT.beats
        while not run.wait_closed(max(_EVERY_SECONDS, seconds / _SHARE)):
            if HEARTBEAT.beats != drawn:  # something was trained since
                drawn, seconds = HEARTBEAT.beats, publish(True)
        publish(True)

    OwnThread(follow, publish(False), name="holdfast-notebook").start()
