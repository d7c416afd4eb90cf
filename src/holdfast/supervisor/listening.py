"""HOLDFAST_LISTEN: other machines may ask the run while it lives. The server is a process of its own: it cannot disturb it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from holdfast.probe.serve.tokens import add_to_file
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble

VARIABLE = "HOLDFAST_LISTEN"
_END_SECONDS = 1.0
TOKEN = "token"  # a file in the run folder


class Listening:
    """Starts the server of a run if one is wanted, and ends it with the run. What it could not do is in the journal."""

    def __init__(self, run: RunFolder, trouble: Trouble) -> None:
        self._run, self._trouble = run, trouble
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it outlives us if we are killed, as long as the training does."""
        listen = os.environ.get(VARIABLE, "").strip()
        if not listen:
            return
        command = [sys.executable, "-m", "holdfast.web.beside", str(self._run.path), listen]
        try:
            self._server = subprocess.Popen(
                command,
                env={**os.environ, **self._token(listen)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._trouble.step_back(f"listening on {listen}", error)

    def _token(self, listen: str) -> dict[str, str]:
        """A run of several nodes makes its own token, if none is given; the other nodes need a copy of its file."""
        if not self._run.info().get("nodes") or os.environ.get("HOLDFAST_TOKEN") or os.environ.get("HOLDFAST_TOKEN_FILE"):
            return {}
        path = self._run.path / TOKEN
        if not path.exists():
            add_to_file(path, name="node")
        with contextlib.suppress(OSError):
            os.write(2, f"holdfast: without a shared folder, other nodes join with a copy of {path}: --join {listen}\n".encode())
        return {"HOLDFAST_TOKEN_FILE": str(path)}

    def stop(self) -> None:
        """End it."""
        if self._server is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._server.terminate()
                self._server.wait(_END_SECONDS)
