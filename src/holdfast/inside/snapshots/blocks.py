"""The memory of snapshots: blocks that are made ahead, used again, and never more than fit."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.inside.snapshots.host_copy import Block
from holdfast.inside.snapshots.host_memory import share_for_snapshots


class Blocks:
    """Free blocks, and how many there are in all; `off` once there is no memory for any."""

    def __init__(
        self,
        keep: int,
        memory_limit: int | None,
        *,
        run_later: Callable[[Callable[[], None]], None],
        say: Callable[[str], None],
        lock: threading.RLock,
    ) -> None:
        self.keep, self.memory_limit = keep, memory_limit
        self.free: list[Block] = []
        self.count, self.being_made, self.off = 0, 0, False
        self._run_later, self._say, self._lock = run_later, say, lock

    def fitting(self, size: int) -> int:
        """How many snapshots of that size are kept: fewer if memory is short."""
        if self.memory_limit is None:
            self.memory_limit = share_for_snapshots()
        fitting = min(self.keep, self.memory_limit // max(1, size))
        if fitting < 1 and not self.off:
            self.off = True
            self._say(
                f"No snapshots are kept: one takes {size / 1e9:.2f} GB and {self.memory_limit / 1e9:.2f} GB of host memory "
                "may be used. Roll-backs can only go to checkpoints on disk."
            )
        return fitting

    def make_one(self, size: int, *, pin: bool) -> None:
        """Have a block made in the helper thread."""
        with self._lock:
            self.being_made += 1

        def make() -> None:
            try:
                block = Block(size, pin=pin)
                with self._lock:
                    if not self.off:
                        self.free.append(block)
                        self.count += 1
            except MemoryError:
                self.keep = self.count
                self.off = self.count == 0
                self._say(f"Memory is short: {self.count} snapshots of {size / 1e9:.2f} GB are kept.")
            finally:
                self.being_made -= 1

        self._run_later(make)

    def take(self, size: int, *, pin: bool) -> Block:
        """A free block that is large enough, or a new one; the lock is held as long as it is looked for."""
        with self._lock:
            while self.free:
                block = self.free.pop()
                if block.size >= size:
                    return block
                block.release()
                self.count -= 1
            self.count += 1
        return Block(size, pin=pin)

    def give_back(self, block: Block, *, still_read: bool) -> None:
        """A snapshot was dropped. One whose memory someone still reads is not used again: it goes when its reader is done."""
        if still_read:
            self.count -= 1
        else:
            self.free.append(block)

    def release_all(self) -> None:
        """Give the memory of the free ones back, and make no more."""
        self.off = True
        with self._lock:
            free, self.free, self.count = self.free, [], 0
        for block in free:
            block.release()
