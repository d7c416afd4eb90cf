"""Ask the control server in the process of a rank: code, changes, stacks. The training process itself answers."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from typing import Any

from holdfast.errors import ControlUnreachable
from holdfast.probe.alive import lives
from holdfast.signals.control_socket import ANSWER_BYTES, NoControlSocket, connect_to, is_there, receive, send
from holdfast.signals.run_folder import Recording, RunFolder

_BACKTRACE = "holdfast backtrace -t {pid} shows where it is"


def ask(recording: Recording, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """Send one request to the process of a rank; its answer. Raises ControlUnreachable if none comes within `seconds`."""
    info = recording.info()
    pid = info.get("pid")
    _look_first(recording, info)
    try:
        with connect_to(recording.path, min(seconds, 5.0)) as connection:
            send(connection, {"who": who(), **request})
            answer = receive(connection, at_most=ANSWER_BYTES, seconds=seconds)
    except NoControlSocket as error:
        raise _no_server(recording, pid) from error
    except PermissionError as error:
        raise ControlUnreachable(
            f"the control socket of rank {recording.rank} belongs to another user.",
            fix="run this as the user who trains, or as root",
        ) from error
    except TimeoutError as error:
        raise ControlUnreachable(
            f"rank {recording.rank} (process {pid}) did not answer in {seconds:.0f} s: it hangs, or holds the interpreter lock.",
            fix=_BACKTRACE.format(pid=pid),
        ) from error
    except (OSError, EOFError, ValueError) as error:
        raise ControlUnreachable(
            f"rank {recording.rank} (process {pid}) closed the connection before it answered: {error}.",
            fix="holdfast ps shows whether it is alive",
        ) from error
    if answer.get("refused"):
        raise ControlUnreachable(str(answer.get("error")), fix=str(answer.get("fix") or "holdfast ps"))
    return answer


def listening(run: RunFolder) -> list[Recording]:
    """The ranks that can be asked now, of each the newest training that lives."""
    by_rank: dict[int, Recording] = {}
    for recording in run.recordings() if run.path.is_dir() else ():
        info = recording.info()
        if is_there(recording.path) and lives(info):
            by_rank[recording.rank] = recording
    return [by_rank[rank] for rank in sorted(by_rank)]


def who() -> str:
    """Who asks, as the journal tells it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()} pid {os.getpid()}"


def _look_first(recording: Recording, info: Mapping[str, Any]) -> None:
    pid, host, there = info.get("pid"), info.get("host"), lives(info)
    if there is None:
        raise ControlUnreachable(
            f"rank {recording.rank} trains on {host}.", fix=f"ask there; or run `holdfast serve` there and ask -t {host}:PORT"
        )
    if not there:
        raise ControlUnreachable(
            f"the process of rank {recording.rank} ({pid}) has ended.", fix="holdfast ps lists the live runs"
        )


def _no_server(recording: Recording, pid: Any) -> ControlUnreachable:
    return ControlUnreachable(
        f"rank {recording.rank} (process {pid}) has no control server: its training is over, or HOLDFAST_CONTROL=0 is set.",
        fix="holdfast ps shows what trains; start it without HOLDFAST_CONTROL=0",
    )
