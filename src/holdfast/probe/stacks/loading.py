"""A training that waits for its loader: which worker is stuck, on what line and at which sample."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.probe.stacks.frames import ON_DISK, STOPPED, Frame, ProcessStacks, Thread
from holdfast.probe.stacks.locks import waiting_for
from holdfast.probe.stacks.verdict import Look, Verdict
from holdfast.probe.stacks.whereabouts import WORKER_LOOP, doing, is_library, own_part, place, source_line, user_frame

_LOADER = "torch/utils/data/"
_WAITS = re.compile(r"_MultiProcessingDataLoaderIter\.|^_try_get_data$|^_get_data$")
_IN_LINE = re.compile(r"_SingleProcessDataLoaderIter\.|^_MapDatasetFetcher|^_IterableDatasetFetcher|^fetch$")
_QUEUE = re.compile(r"[/\\](multiprocessing|selectors|threading|queue|socket)(\.py$|[/\\])")


def loader_verdict(look: Look) -> Verdict | None:
    """What to say of the first rank that waits for its loader; None if none does."""
    for trainer in look.trainers:
        if trainer.main is None:
            continue
        if waits_for_loader(trainer.main):
            return _of_workers(look, trainer)
        if (sample := _in_line(trainer.main)) is not None:
            return _in_the_process(look, trainer, trainer.main, sample)
    return None


def waits_for_loader(thread: Thread) -> bool:
    """Whether a thread waits for a batch of a loader with workers."""
    return any(_LOADER in f.file and _WAITS.search(f.func) for f in own_part(thread))


def idle_worker(worker: ProcessStacks) -> bool:
    """Whether a loader's worker waits for work: its loop is in the queue, with nothing of the data set above it."""
    main = worker.main
    if main is None:
        return False
    own = own_part(main)
    if not own or own[-1].func != WORKER_LOOP:
        return True  # it has not begun, or ends
    return all(_QUEUE.search(frame.file) for frame in own[:-1])


def sample_of(thread: Thread) -> str:
    """The sample that a worker is at, or the batch of samples where only that is known; empty if neither is."""
    inside = {name: text for f in reversed(own_part(thread)) if _LOADER in f.file for name, text in f.locals or ()}
    fetched = [f for f in thread.python if _LOADER in f.file and f.func.rpartition(".")[2] in ("fetch", "<listcomp>")]
    at = next((text for f in fetched if (text := f.local("idx"))), None)
    batch = inside.get("possibly_batched_index") or inside.get("index")
    if at is not None and at != "None":
        return f"sample {at}"
    return f"batch {batch}" if batch and batch.startswith("[") else f"sample {batch}" if batch and batch != "None" else ""


def _in_line(thread: Thread) -> str | None:
    """The sample that a loader without workers is at; None if the thread is in none."""
    frames = thread.python
    if any(_LOADER in f.file and _IN_LINE.search(f.func) for f in frames) and user_frame(thread) is not None:
        return sample_of(thread)
    return None


def _in_the_process(look: Look, stacks: ProcessStacks, thread: Thread, sample: str) -> Verdict:
    frame = user_frame(thread)
    assert frame is not None
    say = (
        f"{stacks.role} loads data itself (num_workers=0){_at(sample)[:-1]} and {_activity(thread, frame)}.{look.silent(stacks)}"
    )
    evidence = {"kind": "loading", "sample": sample, "waits_for": _kind(stacks, thread), **_where(frame)}
    return Verdict("loader-stall", say, stacks.pid, stacks.rank, thread.name, frame, dict(evidence))


def _of_workers(look: Look, stacks: ProcessStacks) -> Verdict:
    workers = look.workers(stacks)
    for worker in workers:
        if worker.state == STOPPED:
            say = f"{stacks.role} waits for its loader: worker {worker.worker} (process {worker.pid}) is stopped (SIGSTOP)."
            again = f" kill -CONT {worker.pid} continues it."
            return _verdict(stacks, worker, say + again, {"kind": "stopped", "worker": worker.worker})
    dead = [worker for worker in workers if worker.state == "gone"]
    if dead:
        say = f"{stacks.role} waits for its loader, but worker {_worker_names(dead)} has ended: its batch never arrives."
        return _verdict(stacks, dead[0], say, {"kind": "worker-died", "worker": dead[0].worker})
    busy = [worker for worker in workers if worker.main is not None and not idle_worker(worker)]
    if busy:
        return _stuck(look, stacks, busy, len(workers))
    if not workers:
        say = f"{stacks.role} waits for its loader, but all its workers have ended.{look.silent(stacks)}"
        return _verdict(stacks, None, say, {"kind": "no-workers"})
    unread = next((worker for worker in workers if worker.main is None), None)
    if unread is not None:
        problem = f"worker {unread.worker} could not be read: {unread.problem}"
        say = f"{stacks.role} waits for its loader; {problem}.{look.silent(stacks)}"
        return _verdict(stacks, unread, say, {"kind": "unread", "worker": unread.worker})
    say = (
        f"{stacks.role} waits for its loader, and all {len(workers)} workers wait for work: a batch was lost "
        f"(a full /dev/shm, or a lock that a killed worker left behind).{look.silent(stacks)}"
    )
    return _verdict(stacks, None, say, {"kind": "lost-batch"})


def _stuck(look: Look, stacks: ProcessStacks, busy: Sequence[ProcessStacks], count: int) -> Verdict:
    """Name the worker that has not moved since the look before, and where it is."""
    slow_worker = next((worker for worker in busy if _has_not_moved(look, worker)), busy[0])
    thread = slow_worker.main
    assert thread is not None
    frame = user_frame(thread)
    if frame is None:
        return _verdict(stacks, slow_worker, f"{stacks.role} waits for loader worker {slow_worker.worker}.", {"kind": "worker"})
    sample = sample_of(thread)
    others = f" {len(busy) - 1} more of {count} workers are busy." if len(busy) > 1 else ""
    who = f"worker {slow_worker.worker} (process {slow_worker.pid}){_at(sample)}"
    disk = f"waits for a disk in {place(frame)}" if slow_worker.state == ON_DISK else ""
    say = f"{stacks.role} waits for its loader: {who} {disk or _activity(thread, frame)}."
    line = {"kind": "worker", "worker": slow_worker.worker, "sample": sample, "doing": doing(thread), **_where(frame)}
    line["waits_for"] = _kind(slow_worker, thread)
    return _verdict(stacks, slow_worker, say + others + look.silent(stacks), line)


def _kind(stacks: ProcessStacks, thread: Thread) -> str | None:
    return waits_for(thread, on_disk=stacks.state == ON_DISK)


def _has_not_moved(look: Look, worker: ProcessStacks) -> bool:
    before, main = look.earlier(worker), worker.main
    return before is None or before.main is None or (main is not None and user_frame(before.main) == user_frame(main))


def _activity(thread: Thread, frame: Frame) -> str:
    text = source_line(frame)
    line = f": `{text}`" if text and not is_library(frame) else ""
    return f"{doing(thread) or 'is'} in {place(frame)}{line}"


def _at(sample: str) -> str:
    return f", at {sample}," if sample else ""


def _where(frame: Frame) -> dict[str, object]:
    return {"file": frame.file, "line": frame.line, "func": frame.func}


def _worker_names(workers: Sequence[ProcessStacks]) -> str:
    return " and ".join(str(worker.worker) for worker in workers)


def _verdict(stacks: ProcessStacks, slow_worker: ProcessStacks | None, say: str, evidence: Mapping[str, object]) -> Verdict:
    main = slow_worker.main if slow_worker is not None else None
    frame = user_frame(main) if main is not None else None
    pid = slow_worker.pid if slow_worker is not None else stacks.pid
    return Verdict("loader-stall", say, pid, stacks.rank, main.name if main else None, frame, dict(evidence))


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
    if file.startswith("socket:") or any(_NETWORK.search(path) for path in files):
        return NETWORK
    if call in _READS:
        return PROCESS if file.startswith("pipe:") else FILE
    return _BY_CALL.get(call) or _by_line(thread)


def _by_line(thread: Thread) -> str | None:
    """Where the system does not tell the call: by its C functions, or by the text of the line."""
    if thread.active:
        return COMPUTE
    frame, activity = user_frame(thread), doing(thread)
    text = source_line(frame) if frame is not None else ""
    if activity == "sleeps" or "sleep(" in text:
        return SLEEP
    if activity in ("is in open()", "is in read()"):
        return FILE
    return LOCK if _TAKES.search(text) else None
