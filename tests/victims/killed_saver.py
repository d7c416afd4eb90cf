"""Saves and saves until it is killed, thousands of times if need be: each child is forked from a process that is warm.

Reads one JSON object a line. {"begin": folder} begins a store there. {"save": n, "after": seconds} kills a child so long after
it has begun its n-th save; {"call": n, "when": "before"} has it kill itself at its n-th call to the disk; {"ranks": 2, …,
"who": [0]} does it to ranks of one training. Answers with what is left in the folder: the newest clean checkpoint, its step,
whether its numbers are right, the last step that was told to be saved, and whether the child came to its end.

All numbers of the state at step n are n, so that a checkpoint that mixes two states is seen.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.checkpoints import write
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.verify import verify
from holdfast.state.store import CheckpointStore

FOLDER = Path()  # as the first order says
ENDLESS = 10**9


class Told:
    """Numbers that outlive the process that writes them."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 32)
        self._numbers = (ctypes.c_int64 * 4).from_buffer(self._memory)

    def __getitem__(self, place: int) -> int:
        return self._numbers[place]

    def __setitem__(self, place: int, value: int) -> None:
        self._numbers[place] = value


SAVED, BEGUN, ENDED = 0, 1, 2
TOLD = Told()


class Training:
    """A model and an optimizer whose numbers all are the step."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.BatchNorm1d(40, affine=False))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.ones(2, 40)).sum().backward()
        self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        moments = [value for entry in self.optimizer.state.values() for value in entry.values()]
        return [*self.model.state_dict().values(), *moments]

    def be(self, step: int) -> None:
        for tensor in self.tensors():
            tensor.fill_(step)

    def is_all(self, step: int) -> bool:
        return all(bool((tensor == step).all()) for tensor in self.tensors())


def save_on(training: Training, first: int, steps: int, *, model: Any = None) -> None:
    """Save one step after the other, and tell which are on the disk."""
    store = CheckpointStore(FOLDER, keep_last=2, best="val_loss")
    for step in range(first, first + steps):
        if os.environ.get("RANK", "0") == "0":
            TOLD[BEGUN] += 1
        training.be(step)
        path = store.save(
            step, model=model or training.model, optimizer=training.optimizer, metrics={"val_loss": (step * 7919) % 101}
        )
        training.be(-1)  # what is done next must not get into the checkpoint
        if step % 3 and os.environ.get("RANK", "0") == "0" and store.wait() and path is not None:
            TOLD[SAVED] = step
        assert not store.troubles, store.troubles
    store.close()
    TOLD[ENDED] = 1


def kill_at_call(number: int, when: str) -> None:
    """Have this process kill itself before, or after, its n-th call to the disk."""
    left = [number]

    def counted(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return original(*args, **kwargs)
            finally:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    def half_written(original: Any) -> Any:
        def call(self: Any, data: Any) -> int:
            left[0] -= len(data) > 64  # torch's writer comes with many small things
            if left[0] == 0:
                left[0] = -1
                self._file.write(memoryview(data).cast("B")[: len(data) // 2])
                self._file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return int(original(self, data))

        return call

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    write._Watched.write = half_written(write._Watched.write)  # type: ignore[method-assign]


def fork(job: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            job()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - told by the exit code
            import traceback

            traceback.print_exc()
            os._exit(3)
    return child


def rank_of_two(training: Training, rank: int, first: int) -> None:
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}.meet", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(training.model)
    save_on(training, first, ENDLESS, model=model)


def left_over(training: Training) -> dict[str, Any]:
    """What a restart finds."""
    store = CheckpointStore(FOLDER)
    newest = store.newest_clean()
    if newest is None:
        return {"newest": None}
    training.be(-2)
    restored = store.restore(model=training.model, optimizer=training.optimizer)
    assert restored is not None
    return {
        "newest": newest.name,
        "step": restored.step,
        "skipped": restored.skipped,
        "right": training.is_all(restored.step) and restored.path == newest,
        "state": verify(open_checkpoint(newest)).state,
        "best": store.best() is not None,
        "spares": sum(path.name.startswith(".") for path in FOLDER.iterdir()),
    }


def killed(order: dict[str, Any], training: Training, first: int) -> list[int]:
    """Start what the order says and kill it; exit codes."""
    if order.get("ranks"):
        Path(f"{FOLDER}.meet").unlink(missing_ok=True)
        children = [fork(lambda rank=rank: rank_of_two(training, rank, first)) for rank in range(2)]
    elif "call" in order:
        children = [fork(lambda: (kill_at_call(order["call"], order["when"]), save_on(training, first, order["steps"])))]
    else:
        children = [fork(lambda: save_on(training, first, ENDLESS))]
    if "after" in order:
        while TOLD[BEGUN] < order["save"]:
            time.sleep(0.0005)
        time.sleep(order["after"])
        for who in order.get("who", [0]):
            os.kill(children[who], signal.SIGKILL)
        time.sleep(order.get("then", 0.0))
        for child in children:  # one whose other rank is gone
            os.kill(child, signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def begin(folder: Path, training: Training) -> None:
    """A store with the checkpoint of step 1."""
    global FOLDER
    FOLDER = folder
    shutil.rmtree(FOLDER, ignore_errors=True)
    training.be(1)
    with CheckpointStore(FOLDER, keep_last=2, best="val_loss") as store:  # also warms everything up
        store.save(1, model=training.model, optimizer=training.optimizer, metrics={"val_loss": 7919 % 101})
    TOLD[SAVED] = 1


def main() -> None:
    torch.set_num_threads(1)
    training, first = Training(), 2
    for line in sys.stdin:
        order = json.loads(line)
        if "begin" in order:
            begin(Path(order["begin"]), training)
            first = 2
            continue
        TOLD[BEGUN], TOLD[ENDED] = 0, 0
        codes = killed(order, training, first)
        found = {**left_over(training), "told": TOLD[SAVED], "codes": codes, "ended": bool(TOLD[ENDED])}
        first = max(found.get("step", 0), TOLD[SAVED], first) + 1
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
