"""The server of one run, beside its supervisor: `python -m holdfast.web.beside FOLDER HOST:PORT`.

It says nothing: its address is in `serve.json` in the run folder, and what it could not do is in the journal. The supervisor ends
it. If the supervisor was killed it stays as long as the training lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.probe.niceness import be_nice
from holdfast.probe.serve.stopping import StopSignal
from holdfast.probe.state import read_state
from holdfast.signals.run_folder import RunFolder
from holdfast.web.start import Settings, serving, shown

FILE = "serve.json"
_LOOK_SECONDS = 1.0


def main(arguments: list[str]) -> int:
    """Serve until told to stop. Exits 0, or 2 if it could not."""
    try:
        run, listen = RunFolder.open(Path(arguments[0])), arguments[1]
    except (IndexError, OSError, HoldfastError):
        return 2
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the supervisor has blocked those that it hands on
    stop = StopSignal(signal.SIGTERM, signal.SIGINT)
    be_nice()
    try:
        serve(run, settings_from(listen), stop, parent)
    except (HoldfastError, OSError) as error:
        _step_back(run, f"listening on {listen}", error)
        return 2
    return 0


def settings_from(listen: str) -> Settings:
    """What the environment says besides the address: HOLDFAST_CERT and HOLDFAST_KEY for TLS, HOLDFAST_READ_ONLY=1."""
    cert, key = os.environ.get("HOLDFAST_CERT"), os.environ.get("HOLDFAST_KEY")
    return Settings(
        listen=listen,
        read_only=os.environ.get("HOLDFAST_READ_ONLY") == "1",
        cert=Path(cert) if cert else None,
        key=Path(key) if key else None,
    )


def serve(run: RunFolder, settings: Settings, stop: StopSignal, parent: int) -> None:
    """Answer until `stop`, or until neither the supervisor nor the training is left."""
    with serving(settings, lambda: [run]) as server:
        path = run.path / FILE
        with contextlib.suppress(OSError):
            path.write_text(json.dumps({"address": shown(server, settings), "pid": os.getpid()}) + "\n", encoding="utf-8")
        while not stop.wait(_LOOK_SECONDS):
            if os.getppid() != parent and not read_state(run).alive:
                break
        with contextlib.suppress(OSError):
            path.unlink()


def _step_back(run: RunFolder, part: str, error: Exception) -> None:
    message = f"{error} (fix: {error.fix})" if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        run.journal.write("finding", code="holdfast-degraded", severity="warning", evidence={"what": part, "error": message})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
