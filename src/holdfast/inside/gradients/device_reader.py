"""Numbers that lie on a GPU: brought to the host behind the training's back, read when they are there.

The numbers of a step are one row. One kernel collects them on the device and writes them to pinned memory, the number of the row
last: when that is there, usually a step or two later, so is the rest. What the kernel does not take (other types, vectors) is put
together by torch and copied, with an event behind the copy. Nothing here waits for the device, unless the host is so many steps
ahead of it that every place for a row is taken.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from holdfast.inside.gradients.cuda import SENDING, GradientKernel, Kernel, can_compile, pointer_of_pinned
from holdfast.state.host_copy import pinned_zeros

Numbers = npt.NDArray[Any]
SCALARS = ("loss", "norm", "lr", "scale", "grad_scale", "found_inf", "update_ratio")  # that a row has a place for
_FIRST = 3  # before them: the number of the row, the sum of all squares, how many tensors are not finite
PLACES = {name: _FIRST + at for at, name in enumerate(SCALARS)}
_KINDS = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.float64: 4}
_ROWS, _HEADER, _THREADS = 64, 16, 256
_UNCOLLECTED = 24
_ORDERED = platform.machine() in ("x86_64", "AMD64")  # whether what was written in order is read in order


class Transfer:
    """What is on its way for one step: a row, and what torch copies beside it. `arrived` gets it when all of it is here."""

    rows: Rows | None = None  # where the row lies; defaults on the class: an instance sets only what it has
    number = place = tensors = 0
    header: list[float] | None = None  # the sums over all gradients and the scalars, when they have arrived
    copied: torch.Tensor | None = None  # by torch, and the event behind the copy
    event: Any = None
    rest: Numbers | None = None
    is_done = False  # whether its place may be taken by another
    arrived: Callable[[Transfer], None]

    def __init__(self, holds: Any = None) -> None:
        self._holds = holds  # what the kernel reads stays where it is until it has

    @property
    def flag(self) -> torch.Tensor:
        """A scalar on the device: 1 if the gradients, or the loss, are not finite, else 0."""
        assert self.rows is not None
        return self.rows.flags[self.place]

    def is_here(self) -> bool:
        """Whether all of it has arrived; never waits."""
        if self.rows is not None and self.header is None:
            self.header = self.rows.header_of(self)
            if self.header is None:
                return False
        return self.event is None or bool(self.event.query())

    def each(self) -> Numbers:
        """Sums of squares, maxima and non-finite counts of each gradient, until it is done."""
        assert self.rows is not None
        return self.rows.each_of(self)

    def hand_over(self) -> None:
        """It has arrived."""
        if self.copied is not None:
            self.rest = self.copied.numpy().astype(np.float64)
        try:
            self.arrived(self)
        finally:
            self.is_done, self._holds = True, None


class Rows:
    """Rows that a kernel writes to the host."""

    def __init__(self, device: torch.device, tensors: int) -> None:
        self.tensors = tensors
        headers = pinned_zeros((_ROWS + 1) * _HEADER, torch.float64)
        each = pinned_zeros(_ROWS * 3 * max(1, tensors), torch.float32)
        self._headers = headers.numpy()  # behind the last one: the number of the last row with something that is not finite
        self._each = each.numpy()[: _ROWS * 3 * tensors].reshape(_ROWS, -1)
        self._headers[:] = -1.0
        self.headers = cast(Any, memoryview(cast(Any, self._headers)).cast("B").cast("d"))  # the quickest way to one of them
        self._at, self._each_at = pointer_of_pinned(headers, device), pointer_of_pinned(each, device)
        self.flags = list(torch.zeros(_ROWS, device=device).unbind())
        self._flags_at = self.flags[0].data_ptr()
        self._trouble_at = self._at + _ROWS * _HEADER * 8
        self._sending = ctypes.create_string_buffer(SENDING.size)
        self._kernel = Kernel("send_row", device, _THREADS, self._sending)
        self._sent: list[Transfer | None] = [None] * _ROWS
        self._next = 0
        self.has_room = True  # whether the next place is free
        self._fence = threading.Lock()

    def send(self, scalars: Mapping[str, torch.Tensor], gradients: GradientKernel | None, *, with_loss: bool) -> Transfer:
        """Start to bring these numbers to the host."""
        transfer = Transfer((scalars, gradients))
        transfer.rows, transfer.number, transfer.place = self, self._next, self._next % _ROWS
        place, self._next = transfer.place, self._next + 1
        kinds, at = 0, [0] * 8
        for name, scalar in scalars.items():
            position = PLACES[name] - _FIRST
            at[position] = scalar.data_ptr()
            kinds |= _KINDS[scalar.dtype] << (4 * position)
        sending, out = self._sending, 0
        if gradients is not None:
            transfer.tensors, out = gradients.count, gradients.out_at
            if not gradients.is_read:
                sending = gradients.sending
        SENDING.pack_into(
            sending, 0, out, self._at + place * _HEADER * 8, self._each_at + place * 12 * self.tensors, *at,
            self._flags_at + 4 * place, self._trouble_at, transfer.number, transfer.tensors, kinds, with_loss, 1,
        )  # fmt: skip
        if gradients is None or gradients.is_read:
            self._kernel.launch(1)
        else:
            gradients.launch()
        if gradients is not None:
            gradients.is_read = False
        self._sent[place] = transfer
        following = self._sent[self._next % _ROWS]
        self.has_room = following is None or following.is_done
        return transfer

    def is_free(self) -> bool:
        """Whether the next place is free by now."""
        before = self._sent[self._next % _ROWS]
        return before is None or before.is_done

    def make_room(self) -> None:
        """What had the next place is here, or was never handed over: that of a step that raised."""
        before = self._sent[self._next % _ROWS]
        if before is not None:
            before.is_done = True
        self.has_room = True

    def header_of(self, row: Transfer) -> list[float] | None:
        """The sums and scalars of a row, if its kernel has written them."""
        begin = row.place * _HEADER
        if self.headers[begin] != row.number:
            return None
        if not _ORDERED:
            for _ in range(2):
                with self._fence:
                    pass
        header: list[float] = self.headers[begin : begin + _HEADER].tolist()
        return header

    def each_of(self, row: Transfer) -> Numbers:
        """What a row says of each gradient."""
        return self._each[row.place, : 3 * row.tensors].astype(np.float64).reshape(3, -1)


class DeviceReader:
    """Brings numbers from one device to the host, in order."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.index = device, device.index
        self.waits = 0  # how often the host was so far ahead that it had to wait
        self._rows: Rows | None = None
        self._replaced: list[Rows | None] = []  # a kernel may still write to them
        self._trouble = -1.0
        self._underway: deque[Transfer] = deque()

    # The kernel's way

    def takes(self, scalar: torch.Tensor) -> bool:
        """Whether the kernel can read this number."""
        return scalar.dtype in _KINDS and scalar.device == self.device and scalar.numel() == 1

    def send_row(
        self, scalars: Mapping[str, torch.Tensor], gradients: GradientKernel | None, *, with_loss: bool
    ) -> Transfer | None:
        """Start to bring the numbers of a step; None where there is no kernel for it."""
        tensors = 0 if gradients is None else gradients.count
        if self._rows is None or self._rows.tensors < tensors:
            if not can_compile():
                return None
            self._replaced.append(self._rows)
            self._rows = Rows(self.device, tensors)
        if not self._rows.has_room:
            self._wait_for_room(self._rows)
        return self._rows.send(scalars, gradients, with_loss=with_loss)

    def _wait_for_room(self, rows: Rows) -> None:
        """The host may be far ahead of the device: no update is made unguarded because of that."""
        self.collect()
        if not rows.is_free():
            self.waits += 1
            torch.cuda.current_stream(self.device).synchronize()
            self.collect()
        rows.make_room()

    # Everything

    def send(self, row: Transfer | None, rest: Sequence[torch.Tensor], arrived: Callable[[Transfer], None]) -> None:
        """A step is over: `arrived` gets its row, and vectors and scalars that are not in it, when they are here.

        The rest is None if a value is not this rank's alone to read.
        """
        transfer = Transfer() if row is None else row
        transfer.arrived = arrived
        self._underway.append(transfer)
        if not rest:
            return
        values = [own for value in rest if (own := own_values(value)) is not None]
        if len(values) == len(rest):
            together = torch.cat([value.reshape(-1).to(self.device, torch.float32, non_blocking=True) for value in values])
            transfer.copied = together.to("cpu", non_blocking=True)  # to pinned memory
            transfer.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            transfer.event.record(torch.cuda.current_stream(self.device))

    def is_urgent(self) -> bool:
        """Whether what is under way should be collected now: there is much of it, or something in it is not finite."""
        rows = self._rows
        if rows is not None and rows.headers[_ROWS * _HEADER] != self._trouble:  # of the last row that is not finite
            self._trouble = rows.headers[_ROWS * _HEADER]
            return True
        return len(self._underway) >= _UNCOLLECTED

    def collect(self) -> None:
        """Hand over what has arrived; never waits."""
        while self._underway and self._underway[0].is_here():
            self._underway.popleft().hand_over()

    def wait(self) -> None:
        """Wait for all that is under way; for the end of a training only."""
        if self._underway:
            torch.cuda.synchronize(self.device)
        while self._underway:
            first = self._underway.popleft()
            first.is_here()
            first.hand_over()


def own_values(value: torch.Tensor) -> torch.Tensor | None:
    """The plain tensor of a value; None of a distributed one that only several ranks together could tell."""
    local: torch.Tensor | None = getattr(value, "_local_tensor", None)
    if local is None:
        return value
    placements: Any = getattr(value, "placements", ())
    return local if all(placement.is_replicate() for placement in placements) else None
