"""What every thread of this process is doing, as text: where no tool may look from outside, the process tells it itself."""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import threading
from typing import Any

from holdfast.inside.control.frames import all_frames


def all_stacks() -> dict[str, Any]:
    """The stacks as `faulthandler` writes them, and the threads with their names and frames, the innermost first."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file.fileno(), all_threads=True)
        file.seek(0)
        text = file.read().decode(errors="replace")
    known = {thread.ident: thread for thread in threading.enumerate()}
    threads: list[dict[str, Any]] = []
    names: list[str] = []
    for ident, frame in sys._current_frames().items():
        thread = known.get(ident)
        name, native = (thread.name, thread.native_id) if thread is not None else ("", None)
        frames = [[one.f_code.co_name, one.f_code.co_filename, one.f_lineno] for one in all_frames(frame)]
        threads.append({"ident": ident, "name": name, "native_id": native, "frames": frames})
        names.append(f"Thread 0x{ident:016x} is {name or 'unnamed'} (os thread {native})")
    return {"ok": True, "value": text + "\n" + "\n".join(names), "threads": threads, "output": "", "error": None}
