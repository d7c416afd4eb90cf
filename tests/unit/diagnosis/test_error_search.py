"""The search for known texts: the most telling first, in bounded memory, in errors that torch really raises here."""

from __future__ import annotations

import io
import tempfile
import traceback
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from every_case import every_case
from torch import nn
from torch.utils.data import DataLoader

from holdfast.diagnosis.diagnosis import diagnose
from holdfast.diagnosis.endings import Ended, finding_of
from holdfast.diagnosis.error_search import ErrorSearch, search_file, search_text
from holdfast.diagnosis.oom_message import amounts_in, hint_from_amounts


def saved_and_cut() -> None:
    path = Path(tempfile.mkdtemp()) / "a.pt"
    torch.save(nn.Linear(64, 64).state_dict(), path)
    path.write_bytes(path.read_bytes()[:5000])
    torch.load(path)


def lfs_pointer() -> None:
    path = Path(tempfile.mkdtemp()) / "a.pt"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    torch.load(path, weights_only=False)


def unsafe_file() -> None:
    path = Path(tempfile.mkdtemp()) / "a.pt"
    torch.save(nn.Linear(2, 2), path)
    torch.load(path)


def backward_twice() -> None:
    loss = (nn.Linear(2, 1)(torch.ones(1, 2)) ** 2).sum()
    loss.backward()
    loss.backward()


def changed_in_place() -> None:
    x = torch.ones(2, requires_grad=True).exp()
    y = x.exp()
    x += 1
    (x * y).sum().backward()


def anomaly() -> None:
    x = torch.zeros(1, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            (x.sqrt() * 0.0).sum().backward()


def scaler_without_gradients() -> None:
    model = nn.Linear(2, 1)
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)


def clip_of_nan() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), torch.nan)
    nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def other_optimizer() -> None:
    first = torch.optim.Adam(nn.Linear(2, 1).parameters())
    second = torch.optim.Adam(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)).parameters())
    second.load_state_dict(first.state_dict())


REAL: dict[str, Callable[[], object]] = {
    "checkpoint-torn": saved_and_cut,
    "not-a-checkpoint": lfs_pointer,
    "weights-only": unsafe_file,
    "backward-twice": backward_twice,
    "changed-in-place": changed_in_place,
    "backward-made-nan": anomaly,
    "no-inf-checks": scaler_without_gradients,
    "clip-found-non-finite": clip_of_nan,
    "optimizer-does-not-fit": other_optimizer,
    "size-mismatch": lambda: nn.Linear(2, 2).load_state_dict(nn.Linear(2, 3).state_dict()),
    "keys-differ": lambda: nn.Linear(2, 2).load_state_dict({"module.weight": torch.ones(2, 2)}),
    "shapes-for-a-product": lambda: nn.Linear(3, 2)(torch.ones(4, 5)),
    "shapes-differ": lambda: torch.ones(3) + torch.ones(4),
    "channels-differ": lambda: nn.Conv2d(3, 4, 3)(torch.ones(1, 1, 8, 8)),
    "shape-invalid": lambda: torch.ones(10).view(3, 4),
    "other-dtype": lambda: nn.Linear(3, 2)(torch.ones(4, 3, dtype=torch.float64)),
    "batch-of-one": lambda: nn.BatchNorm1d(4)(torch.ones(1, 4)),
    "index-out-of-range": lambda: nn.Embedding(4, 2)(torch.tensor([7])),
    "label-out-of-range": lambda: nn.functional.cross_entropy(torch.ones(1, 3), torch.tensor([5])),
    "probability-assert": lambda: nn.functional.binary_cross_entropy(torch.tensor([2.0]), torch.tensor([1.0])),
    "target-of-another-kind": lambda: nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long)),
    "no-graph-to-the-loss": lambda: torch.ones(1).sum().backward(),
    "loss-is-no-number": lambda: nn.Linear(2, 2)(torch.ones(1, 2)).backward(),
    "numpy-of-a-graph": lambda: nn.Linear(2, 2)(torch.ones(1, 2)).numpy(),
    "optimizer-without-parameters": lambda: torch.optim.SGD([], lr=0.1),
    "samples-of-different-size": lambda: next(iter(DataLoader([torch.ones(2), torch.ones(3)], batch_size=2))),  # type: ignore[arg-type]
    "no-samples": lambda: DataLoader([], shuffle=True),  # type: ignore[arg-type]
    "distribution-of-nan": lambda: torch.distributions.Normal(
        torch.tensor(torch.nan), 1.0, validate_args=True
    ),  # torch.compile turns it off
    "host-out-of-memory": lambda: torch.empty(1 << 60, dtype=torch.uint8),
    "cannot-pickle": lambda: torch.save(lambda: None, io.BytesIO()),
    "not-started-by-torchrun": lambda: torch.distributed.get_rank(group=None) if torch.distributed.barrier() else None,
    "checkpoint-missing": lambda: torch.load("nowhere/last.pt"),
    "module-not-found": lambda: __import__("no_such_package_at_all"),
}


@every_case("name", REAL)
def test_what_this_version_of_torch_says_is_known(name: str) -> None:
    try:
        REAL[name]()
    except Exception:  # noqa: BLE001 - of any kind
        answer = search_text(traceback.format_exc())
        assert answer.matches and answer.matches[0].text.name == name
        assert answer.unknown is None
    else:
        pytest.fail("nothing was raised")


def test_warnings_that_torch_gives_are_known() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
        nn.functional.mse_loss(torch.ones(4, 1), torch.ones(4))
    names = [search_text(f"UserWarning: {one.message}").matches[0].text.name for one in caught]
    assert names == ["scheduler-before-optimizer", "loss-broadcasts"]


class Endless(io.RawIOBase):
    """A log that nobody could hold: so many megabytes of one pattern."""

    def __init__(self, pattern: bytes, megabytes: int) -> None:
        self._part, self._left = pattern * ((1 << 20) // len(pattern)), megabytes

    def read(self, size: int = -1) -> bytes:
        self._left -= 1
        return self._part[: size if size > 0 else None] if self._left >= 0 else b""


@every_case(
    ("pattern", "megabytes"),
    [
        (b"epoch 3 loss 0.12\n", 12),
        (b"no line end at all ", 12),
        (b"\rstep 12 loss 0.3", 12),
        (b"CUDA out of memory\n", 3),  # each of 160,000 lines is found, which takes its time
    ],
)
def test_memory_stays_bounded_however_long_the_log(pattern: bytes, megabytes: int) -> None:
    search_text("warm up")
    tracemalloc.start()
    try:
        search_file(Endless(pattern, megabytes))  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8e6


def test_a_text_that_two_parts_share_is_found_and_lines_are_counted() -> None:
    search = ErrorSearch()
    for part in ("one\r\ntwo\nRuntimeError: CUDA out ", "of mem", "ory. Tried\nlast"):
        search.feed(part)
    answer = search.answer()
    assert (answer.matches[0].text.name, answer.matches[0].number, answer.lines) == ("gpu-out-of-memory", 3, 4)


DEAD_WORKER = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    for batch in loader:
  File "/x/torch/multiprocessing/reductions.py", line 538, in rebuild_storage_fd
    fd = df.detach()
  File "/x/multiprocessing/connection.py", line 395, in _recv
    chunk = read(handle, remaining)
{error}
"""


@every_case(
    ("error", "name"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "worker-is-gone"),
        ("EOFError", "worker-is-gone"),
        ("RuntimeError: received 0 items of ancdata", "too-many-open-files"),
    ],
)
def test_a_worker_that_dies_while_its_batch_is_read_is_no_rank_that_is_gone(error: str, name: str) -> None:
    answer = search_text(DEAD_WORKER.format(error=error))
    assert [(found.text.name, found.line) for found in answer.matches] == [(name, error)] and answer.unknown is None


def test_a_connection_that_breaks_while_a_batch_is_waited_for_is_a_workers_and_no_ranks() -> None:
    error = "ConnectionResetError: [Errno 104] Connection reset by peer"
    waits = DEAD_WORKER.replace("multiprocessing/reductions.py", "utils/data/dataloader.py").replace("rebuild_storage_fd", "{}")
    for frame, name in (("_try_get_data", "worker-hung-up"), ("read_metrics", "peer-is-gone")):
        answer = search_text(waits.replace("{}", frame).format(error=error))
        assert [found.text.name for found in answer.matches] == [name]
        assert answer.matches[0].text.page == ("loader-stall" if frame == "_try_get_data" else "collective-stall")


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.class_embed, self.word_embed = nn.Embedding(3, 4), nn.Embedding(3, 4)

    def of_class(self, ids: torch.Tensor) -> torch.Tensor:
        return self.class_embed(ids)  # type: ignore[no-any-return]

    def of_word(self, ids: torch.Tensor) -> torch.Tensor:
        return self.word_embed(ids)  # type: ignore[no-any-return]


@every_case(
    ("method", "ids", "name", "cause"),
    [
        ("of_class", torch.tensor([3]), "embedded-label-out-of-range", "labels-out-of-range"),
        ("of_word", torch.tensor([3]), "index-out-of-range", "tokenizer-mismatch"),
        ("of_class", torch.tensor([1.0]), "other-dtype", None),
    ],
)
def test_a_class_that_its_embedding_does_not_have_is_a_label_and_no_token(
    method: str, ids: torch.Tensor, name: str, cause: str | None
) -> None:
    with pytest.raises((IndexError, RuntimeError)) as raised:
        getattr(Conditional(), method)(ids)
    answer = search_text("".join(traceback.format_exception(raised.value)))
    assert answer.matches[0].text.name == name
    if cause is not None:
        assert diagnose([finding_of(Ended(exit_code=1, search=answer))]).causes[0] == cause


def test_of_two_errors_the_later_counts_and_repeats_are_counted() -> None:
    answer = search_text("OSError: [Errno 28] No space left on device\n" * 3 + "IndexError: index out of range in self\n")
    assert [found.text.page for found in answer.matches] == ["token-out-of-range", "disk-full"]
    assert (answer.matches[1].times, answer.matches[1].number) == (3, 3)


NEW = (
    "CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total capacity of 24.00 GiB of which {free} GiB is free. "
    "Including non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated memory {used} GiB is allocated by "
    "PyTorch, and {idle} GiB is reserved by PyTorch but unallocated."
)


@every_case(
    ("message", "says"),
    [
        (NEW.format(asked=2, free=1, own=12, used=11, idle=0.5), "Other processes hold 11"),
        (NEW.format(asked=2, free=1, own=23, used=16, idle=6), "fragmented"),
        (NEW.format(asked=80, free=20, own=4, used=3, idle=0.5), "more than the whole GPU"),
        (NEW.format(asked=2, free=1, own=23, used=22, idle=0.5), None),
        (
            "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 8.00 GiB total capacity; 4.00 GiB already allocated; 500 MiB "
            "free; 7.00 GiB reserved in total by PyTorch)",
            "fragmented",
        ),
        ("CUDA error: out of memory", None),
    ],
)
def test_the_numbers_of_a_message_tell_causes_apart(message: str, says: str | None) -> None:
    said = hint_from_amounts(message)
    assert said is None if says is None else said is not None and says in said


def test_numbers_are_read_in_their_units() -> None:
    numbers = amounts_in("Tried to allocate 512.00 MiB (GPU 0; 2.00 GiB total capacity")
    assert numbers == {"asked": 0.5, "total": 2.0}
