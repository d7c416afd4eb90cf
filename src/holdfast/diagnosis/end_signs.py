"""Signs in how something ended or broke: an exit code, an error's text, the memory that was held, a file that is left."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.units import size

Sign = tuple[str, str]
_CRASH_TEXT = re.compile(r"SIGSEGV|SIGABRT|SIGBUS|[Ss]ignal (?:6|7|11)\b|exitcode\W+-(?:6|7|11)\b")  # by a launcher, of a rank
_KILL_TEXT = re.compile(r"SIGKILL|[Ss]ignal 9\b|exitcode\W+-9\b")
_MISMATCH_TEXT = re.compile(r"mismatch|doesn't match expected size|preamble|monitoredBarrier")
_PEER_TEXT = re.compile(r"closed by (?:remote )?peer|reset by peer|ncclRemoteError|remote process exited")
_OBJECTS_TEXT = re.compile(r"Weights only load failed|WeightsUnpickler error|Unsupported global: GLOBAL")
_ALLOWED = re.compile(r"([\d.]+ [KMGT]iB) allowed")
_EVEN, _GREW, _ROOM = 1.1, 1.5, 0.5  # times the memory at first, twice; of the machine's memory
_REFUSED = re.compile(r"\b40[13]\b|unauthori[sz]ed|forbidden|permission|api[_ ]?key|login", re.IGNORECASE)
_NOT_PICKLED = re.compile(r"[Cc]an(?:'t|not) pickle|[Cc]an't get local object|PicklingError")
_NO_ROOM = re.compile(r"no space left|disk quota exceeded|errno 28\b|errno 122\b", re.IGNORECASE)
_NOT_WRITABLE = re.compile(r"read-only file system|permission denied|operation not permitted", re.IGNORECASE)
_CRASHES, _INTERRUPTED, _KILLED, _TERMINATED = (
    (132, 134, 135, 136, 139),
    130,
    137,
    143,
)  # exit codes: 128 and the number of a signal
_SIGNALS = 128


def of_death(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """How a process died; for a rank the launcher reports it in words."""
    code, error = int(evidence.get("exit_code") or 0), str(evidence.get("error") or "")
    if code in _CRASHES or _CRASH_TEXT.search(error):
        yield "crashed", f"exit code {code}" if code in _CRASHES else error
    elif code == _KILLED or _KILL_TEXT.search(error):
        yield "killed", "exit code 137" if code == _KILLED else f"a rank was killed: {error}"
    elif code == _TERMINATED:
        yield "terminated", "exit code 143"
    elif code == _INTERRUPTED:
        yield "interrupted", "exit code 130"
    elif 0 < code < _SIGNALS:
        yield "exited", f"exit code {code}, no signal"
    if "lost_ranks" in evidence:
        yield "node-silent", f"{evidence.get('host')} sent nothing for {float(evidence.get('seconds') or 0):.0f} s"
    if int(evidence.get("ranks") or 1) > 1:
        yield "several-ranks", f"{evidence['ranks']} ranks trained"


def of_ranks(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """What an error in a collective says about the other ranks."""
    error = str(evidence.get("error") or "")
    if _MISMATCH_TEXT.search(error):
        yield "collectives-differ", "the ranks were in different collectives"
    elif _PEER_TEXT.search(error):
        yield "rank-is-gone", "the connection to another rank broke"


def of_host_memory(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """From how the memory of the largest process went, and how much the machine has, in bytes."""
    first, last, machine = (float(evidence.get(name) or 0) for name in ("memory_first", "memory_last", "machine_memory"))
    if evidence.get("workers") == 0:
        yield "no-loader-workers", "the loader has no workers"
    if last > _GREW * first > 0:
        yield "memory-grows", f"its memory grew from {size(first)} to {size(last)}"
    elif 0 < last < _EVEN * first:
        yield "memory-was-even", f"its memory did not grow: {size(first)} at the start, {size(last)} at the end"
    if evidence.get("killed_for_memory") is None and 0 < last < _ROOM * machine:
        yield "machine-had-room", f"it held {size(last)} of the machine's {size(machine)}"


def of_gpu_limit(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """Whether torch's error says that the process may use only a part of the GPU."""
    if (allowed := _ALLOWED.search(str(evidence.get("error") or ""))) is not None:
        yield "part-of-the-card-allowed", f"torch limits the process to {allowed[1]}"


_OF_ANY_SERVER = ("certificate", "hub-unreachable", "no-network")  # of a data set or a model as well as of a tracker
_TRACKER = re.compile(r"wandb|mlflow|trackio|neptune|comet", re.IGNORECASE)


def of_tracker(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """Why a tracker could not be written to, from the error."""
    error, server = str(evidence.get("error") or ""), str(evidence.get("server") or "")
    if "locked" in error.lower() or evidence.get("waits_in") in ("sqlalchemy", "sqlite3"):
        yield "database-is-locked", "its database is locked by another process"
    elif _REFUSED.search(error):
        yield "key-refused", "the server rejects the API key, or none is set"
    elif error:
        yield "server-silent", f"{server} stopped answering" if server else "the server does not answer"
        if evidence.get("known_text") in _OF_ANY_SERVER and not _TRACKER.search(error):
            yield "no-tracker-named", "the error names no tracker"


def of_torn_file(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """What is wrong with a file that a process left behind."""
    if evidence.get("checksum"):
        yield "checksum-differs", "the file has changed since it was saved"
    elif evidence.get("end") == "disk-full":
        yield "was-no-room", "the disk was full"
    else:
        yield "left-by-a-dead-process", "the process that wrote the file failed"


def of_own_error(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """Whether the loop does not allow it, or the disk refused what Holdfast wanted to write."""
    if evidence.get("limit"):
        yield "not-possible-here", "this kind of training does not allow it"
    if _NOT_WRITABLE.search(str(evidence.get("error") or "")):
        yield "write-refused", "a folder is not writable"


def of_loading(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """What kept a checkpoint from being loaded, as torch's error says."""
    error = str(evidence.get("error") or "")
    if _OBJECTS_TEXT.search(error):
        yield "objects-refused", "torch.load refuses the objects in the file"


def of_saving(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """What kept a checkpoint from being saved, as the error says."""
    error = str(evidence.get("error") or "")
    if _NOT_PICKLED.search(error):
        yield "not-picklable", "an object in it cannot be pickled"
    elif _NOT_WRITABLE.search(error):
        yield "write-refused", "a folder is not writable"
    elif _NO_ROOM.search(error):
        yield "was-no-room", "the disk was full"
