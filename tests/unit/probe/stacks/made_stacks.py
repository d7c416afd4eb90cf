"""Stacks made by hand, as py-spy gives them."""

from __future__ import annotations

from holdfast.probe.stacks.frames import Frame, ProcessStacks, Thread

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
WORKER = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
FETCH = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
QUEUES = "/usr/lib/python3.11/multiprocessing/queues.py"


def thread(pid: int, *frames: Frame, name: str = "MainThread", number: int | None = None, **more: object) -> Thread:
    fields = {"holds_gil": False, "active": False, **more}
    return Thread(pid, pid if number is None else number, name, frames=frames, **fields)  # type: ignore[arg-type]


def rank(number: int, *frames: Frame, **more: object) -> ProcessStacks:
    pid = 1000 + number
    fields = {"state": "sleeping", "threads": (thread(pid, *frames, call="futex"),), **more}
    return ProcessStacks(pid, f"rank {number}", number, **fields)  # type: ignore[arg-type]


def in_all_reduce(number: int, operation: str = "all_reduce") -> ProcessStacks:
    return rank(
        number, Frame(operation, C10D, 3252), Frame("average", "/job/train.py", 26), Frame("<module>", "/job/train.py", 40)
    )


def reading(number: int) -> ProcessStacks:
    one = rank(number, Frame("wait_for_settings", "/job/train.py", 31), Frame("<module>", "/job/train.py", 40))
    return ProcessStacks(one.pid, one.role, one.rank, (thread(one.pid, *one.threads[0].frames, call="read /job/settings"),))


def waiting_for_loader(number: int = 0) -> ProcessStacks:
    frames = (Frame("Queue.get", QUEUES, 113), Frame("_MultiProcessingDataLoaderIter._next_data", LOADER, 1505))
    return rank(number, *frames, Frame("<module>", "/job/train.py", 9))


def worker(number: int, *inside: Frame, pid: int | None = None, call: str | None = "poll") -> ProcessStacks:
    """A forked worker: below its loop are the frames of the training that forked it."""
    own = 2000 + number if pid is None else pid
    loop = Frame("_worker_loop", WORKER, 374, locals=(("worker_id", str(number)), ("idx", "3"), ("index", "[12, 13]")))
    below = (Frame("_MultiProcessingDataLoaderIter.__init__", LOADER, 1176), Frame("<module>", "/job/train.py", 9))
    stack = (*(inside or (Frame("Queue.get", QUEUES, 113),)), loop, *below)
    role = f"rank 0 loader worker {number}"
    return ProcessStacks(own, role, 0, (thread(own, *stack, call=call),), worker=number, parent=1000, state="sleeping")


def fetching(sample: str, *user: Frame) -> tuple[Frame, ...]:
    return (*user, Frame("_MapDatasetFetcher.fetch.<locals>.<listcomp>", FETCH, 54, locals=(("idx", sample),)))
