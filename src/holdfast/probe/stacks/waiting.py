"""What kind of thing a thread waits for: a sleep, a lock, a file, the network, another process; or that it computes."""

from __future__ import annotations

import re

from holdfast.probe.stacks.frames import Thread
from holdfast.probe.stacks.locks import waiting_for
from holdfast.probe.stacks.whereabouts import doing, own_part, source_line, user_frame

SLEEP, LOCK, FILE, NETWORK, PROCESS, COMPUTE = "sleep", "lock", "file", "network", "process", "compute"
_NETWORK = re.compile(
    r"[/\\](socket|ssl)\.py$|[/\\]http[/\\]client\.py$|"
    r"-packages[/\\](urllib3|requests|httpx|httpcore|aiohttp|botocore|boto3|s3fs|gcsfs|fsspec|paramiko|grpc)[/\\]"
)
_PROCESS = re.compile(r"[/\\](subprocess|popen_\w+)\.py$")
_BY_CALL = {"sleep": SLEEP, "flock": LOCK, "fcntl": LOCK, "wait": PROCESS, "fsync": FILE, "open": FILE, "stat": FILE}
_BY_CALL |= dict.fromkeys(("connect", "accept", "recv", "recvmsg"), NETWORK)
_READS = ("read", "pread", "readv", "write")
_TAKES = re.compile(r"\.acquire\(|\bwith\b.*\block\b", re.IGNORECASE)


def waits_for(thread: Thread, *, on_disk: bool = False) -> str | None:
    """The kind, or None if the stack does not say. `on_disk` if the system says that its process waits for a disk."""
    files = [frame.file for frame in own_part(thread)]
    if on_disk:
        return FILE
    if waiting_for(thread) is not None:
        return LOCK
    if any(_PROCESS.search(file) for file in files):
        return PROCESS
    call, _, file = (thread.call or "").partition(" ")
    if file.startswith("socket:") or any(_NETWORK.search(one) for one in files):
        return NETWORK
    if call in _READS:
        return PROCESS if file.startswith("pipe:") else FILE
    return _BY_CALL.get(call) or _by_line(thread)


def _by_line(thread: Thread) -> str | None:
    """Where the system does not tell the call: by its C functions, or by the text of the line."""
    if thread.active:
        return COMPUTE
    frame, said = user_frame(thread), doing(thread)
    text = source_line(frame) if frame is not None else ""
    if said == "sleeps" or "sleep(" in text:
        return SLEEP
    if said in ("is in open()", "is in read()"):
        return FILE
    return LOCK if _TAKES.search(text) else None
