"""Where the time of a sample goes, measured in a process that loads by itself; in a worker the same things happen.

A transform that the data set holds counts as augmenting. What else its `__getitem__` does, and cannot be told from outside, is
"sample"; what is left (drawing indices, walking through a stream) is "other".
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import itertools
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.data.loading.setting import Phases
from holdfast.data.loading.source import Source

# A clock that knows what is being done: each moment counts for the innermost phase only.

READ, DECODE, AUGMENT, REST, COLLATE, TRANSFER, OTHER = "read", "decode", "augment", "sample", "collate", "transfer", "other"
PHASES = (READ, DECODE, AUGMENT, REST, COLLATE, TRANSFER, OTHER)


class Clock:
    """Adds up seconds by phase, of the thread that made it. Other threads go by unnoticed: that one waits for them."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._stack: list[str] = []
        self._since = 0.0
        self._thread = threading.get_ident()

    @property
    def runs(self) -> bool:
        """Whether this moment counts for anything."""
        return bool(self._stack) and threading.get_ident() == self._thread

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside counts for this phase, unless another one begins in it."""
        self._turn()
        self._stack.append(name)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function that counts for a phase while the clock runs; a generator that it returns counts as it is drawn from."""

        @functools.wraps(function, updated=())
        def counted(*values: Any, **named: Any) -> Any:
            if not self.runs:
                return function(*values, **named)
            with self.phase(name):
                result = function(*values, **named)
            return self._drawn(result, name) if hasattr(result, "send") and hasattr(result, "__next__") else result

        return counted

    def _drawn(self, generator: Any, name: str) -> Iterator[Any]:
        while True:
            try:
                with self.phase(name):
                    one = next(generator)
            except StopIteration:
                return
            yield one

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


class TimedCall:
    """Something that can be called, with a clock around it; in all else it is what it was."""

    def __init__(self, inner: Any, clock: Clock, phase: str) -> None:
        self._inner, self._call = inner, clock.timed(inner.__call__ if hasattr(inner, "__call__") else inner, phase)  # noqa: B004

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Call it."""
        return self._call(*values, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# Files whose reading is timed. They are Python's own readers over a raw file that knows the clock, so nobody notices.


def timed_open(clock: Clock, real: Callable[..., Any]) -> Callable[..., Any]:
    """An `open` with a clock; what is opened for writing, or in an unusual way, is left as it is."""
    raw_file = _raw_type(clock)

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        plain = set(mode) <= set("rbt") and buffering in (-1, 0) and "r" in mode
        if not clock.runs or not plain or (buffering == 0 and "b" not in mode):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        with clock.phase(READ):
            raw = raw_file(file, "r", closefd, opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedReader(raw, getattr(raw, "_blksize", 0) or io.DEFAULT_BUFFER_SIZE)
        return buffered if "b" in mode else _text(buffered, mode, encoding, errors, newline)

    return opened


def _text(buffered: Any, mode: str, encoding: str | None, errors: str | None, newline: str | None) -> io.TextIOWrapper:
    text = io.TextIOWrapper(buffered, encoding, errors, newline)
    text.mode = mode  # type: ignore[misc]
    return text


def _raw_type(clock: Clock) -> type[io.FileIO]:
    class TimedFile(io.FileIO):
        """A raw file with a clock."""

        def readinto(self, buffer: Any) -> int:
            with _reading(clock):
                return super().readinto(buffer)

        def readall(self) -> bytes:
            with _reading(clock):
                return super().readall()

        def read(self, size: int | None = -1) -> bytes:
            with _reading(clock):
                return super().read(-1 if size is None else size)

    return TimedFile


def _reading(clock: Clock) -> Any:
    return clock.phase(READ) if clock.runs else contextlib.nullcontext()


# Calls that are known to read, decode or augment, whoever makes them: a clock is put around them from outside, for a while.
# Some libraries open files by themselves in one call with the decoding (OpenCV, pyarrow, torch.load): that counts as decoding.

_CALLS = {
    READ: """
        os:open os:read os:pread os:readv mmap:mmap.read numpy:fromfile socket:SocketIO.readinto urllib.request:urlopen
        requests:get torchvision.io:read_file fsspec.spec:AbstractBufferedFile.read
    """,
    DECODE: """
        PIL.Image:open numpy:load numpy:loadtxt numpy:genfromtxt numpy.lib.npyio:NpzFile.__getitem__ json:load json:loads
        pickle:load pickle:loads zlib:decompress gzip:decompress bz2:decompress lzma:decompress gzip:GzipFile.read
        zipfile:ZipExtFile.read xml.etree.ElementTree:parse xml.etree.ElementTree:fromstring yaml:load yaml:safe_load torch:load
        torchvision.io:read_image torchvision.io:decode_image torchvision.io:decode_jpeg torchvision.io:decode_png
        torchvision.io:read_video torchvision.io.image:decode_image cv2:imread cv2:imdecode imageio:imread imageio.v2:imread
        imageio.v3:imread skimage.io:imread tifffile:imread nibabel:load pydicom:dcmread rasterio:open
        soundfile:read torchaudio:load librosa:load scipy.io:loadmat scipy.io.wavfile:read
        pandas:read_csv pandas:read_parquet pyarrow.parquet:read_table
        pyarrow.parquet:ParquetFile.iter_batches pyarrow.parquet:ParquetFile.read_row_group pyarrow.csv:read_csv
        h5py:Dataset.__getitem__ zarr:Array.__getitem__ safetensors.torch:load_file uproot.behaviors.TBranch:TBranch.array
        uproot.behaviors.TBranch:HasBranches.arrays holdfast.data.loading.opened:following
    """,
    AUGMENT: """
        torchvision.transforms:Compose.__call__ torchvision.transforms.v2:Compose.forward albumentations:Compose.__call__
        albumentations.core.composition:Compose.__call__ holdfast.data.loading.opened:prepared
    """,
}
_HOOKS = ("transform", "transforms", "target_transform", "augment", "augmentation", "augmentations", "preprocess")
_DEEPEST, _MOST = 6, 100


@contextlib.contextmanager
def clocked(clock: Clock, dataset: Any) -> Iterator[bool]:
    """Put the clock around what is known, and around the transforms of the data set; true where it has some."""
    undo = contextlib.ExitStack()
    with undo:
        replaced = {id(io.open): timed_open(clock, io.open)}
        for module in (builtins, io):
            _set(undo, module, "open", replaced[id(io.open)])
        for owner, name, phase in _known():
            real = getattr(owner, name)
            replaced[id(real)] = clock.timed(real, phase)
            _set(undo, owner, name, replaced[id(real)])
        _in_user_modules(undo, replaced)
        augments = sum(_transforms(undo, clock, one) for one in _inner(dataset))
        yield bool(augments)


def _known() -> Iterator[tuple[Any, str, str]]:
    """What of the list is loaded, each once: module or class, name, phase."""
    seen: set[tuple[int, str]] = set()
    for phase, calls in _CALLS.items():
        for call in calls.split():
            module, _, path = call.partition(":")
            owner: Any = sys.modules.get(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part, None)
            if owner is not None and callable(getattr(owner, name, None)) and (id(owner), name) not in seen:
                seen.add((id(owner), name))
                yield owner, name, phase
    for loading in _pillow_loaders():
        yield loading, "load", DECODE


def _pillow_loaders() -> Iterator[Any]:
    """Pillow decodes in `load`, which some of its formats have of their own."""
    files = sys.modules.get("PIL.ImageFile")
    waiting = [files.ImageFile] if files else []
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if "load" in vars(one):
            yield one


def _set(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute for a while; what cannot be set (a class in C) stays without a clock."""
    had, before = name in getattr(owner, "__dict__", {}), getattr(owner, name, None)
    try:
        setattr(owner, name, value)
    except (AttributeError, TypeError):
        return
    undo.callback(setattr, owner, name, before) if had else undo.callback(delattr, owner, name)


def _in_user_modules(undo: contextlib.ExitStack, replaced: dict[int, Any]) -> None:
    """`from cv2 import imread` keeps a function under a name of its own."""
    libraries = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or file.startswith(libraries) or module.__name__.startswith("holdfast.data.loading."):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in replaced:
                _set(undo, module, name, replaced[id(value)])


def _inner(dataset: Any, depth: int = 0) -> Iterator[Any]:
    """A data set and those inside it: subsets, and sets that were joined."""
    from torch.utils.data import Dataset

    yield dataset
    if depth < _DEEPEST:
        own = getattr(dataset, "__dict__", {})
        several = own.get("datasets")
        for one in [own.get("dataset"), *(several[:_MOST] if isinstance(several, (list, tuple)) else ())]:
            if isinstance(one, Dataset):
                yield from _inner(one, depth + 1)


def _transforms(undo: contextlib.ExitStack, clock: Clock, dataset: Any) -> int:
    found = 0
    for name in _HOOKS:
        hook = None
        with contextlib.suppress(Exception):  # a property of the user's may raise anything
            hook = getattr(dataset, name, None)
        if callable(hook) and not isinstance(hook, (type, TimedCall)):
            _set(undo, dataset, name, TimedCall(hook, clock, AUGMENT))
            found += 1
    return found


At = Callable[[Any], None]


class SampleFailed(Exception):
    """A sample that cannot be loaded."""

    def __init__(self, index: Any, error: BaseException) -> None:
        super().__init__(str(error))
        self.index, self.error = index, error


def measured_phases(source: Source, seconds: float, at: At, *, device: str | None) -> Phases:
    """Load for so long, one sample more at the start that does not count. `at` is told each index before it is loaded."""
    for _ in itertools.islice(_groups(source, Clock(), at, lambda: True), 1):
        pass  # imports, file handles, the first look at an index
    clock = Clock()
    until = time.perf_counter() + seconds
    samples = size = 0
    with clocked(clock, source.dataset) as augments, clock.phase(OTHER):
        for group in _groups(source, clock, at, lambda: time.perf_counter() > until):
            with clock.phase(COLLATE):
                batch = source.collate(group)
            with clock.phase(TRANSFER):
                _moved(batch, device)
            count = source.count(batch) if source.ready_made else len(group)
            size, samples = max(size, bytes_of(batch) // max(1, count)), samples + count
            if time.perf_counter() > until:
                break
    per = {name: spent / max(1, samples) for name, spent in clock.seconds.items()}
    unsure = not augments and not source.own_reading and per[REST] > 0.1 * sum(per.values())
    notes = ("the data set has no attribute `transform`: if it augments, that counts as sample",) if unsure else ()
    return Phases(seconds=per, samples=samples, sample_bytes=size, notes=notes)


def _groups(source: Source, clock: Clock, at: At, over: Callable[[], bool]) -> Iterator[Any]:
    """Samples as `collate_fn` gets them; a group is cut short when the time is over."""
    if source.stream:
        yield from _of_stream(source, clock, at, over)
        return
    while True:
        any_group = False
        for indices in source.indices:
            any_group = True
            yield _one(source, indices, clock, at) if source.whole else _several(source, list(indices), clock, at, over)
        if not any_group:
            return


def _several(source: Source, indices: list[Any], clock: Clock, at: At, over: Callable[[], bool]) -> Any:
    if callable(getattr(source.dataset, "__getitems__", None)):
        return _one(source, indices, clock, at, source.dataset.__getitems__)
    group: list[Any] = []
    for index in indices:
        group.append(_one(source, index, clock, at))
        if over():
            break
    return group


def _one(source: Source, index: Any, clock: Clock, at: At, get: Any = None) -> Any:
    at(index)
    with clock.phase(REST):
        try:
            return get(index) if get is not None else source.dataset[index]
        except Exception as error:
            raise SampleFailed(index, error) from error


def _of_stream(source: Source, clock: Clock, at: At, over: Callable[[], bool]) -> Iterator[Any]:
    size, count = source.loader.batch_size, 0
    while True:
        stream, before, group = iter(source.dataset), count, []
        while True:
            at(count)
            with clock.phase(REST):
                try:
                    one = next(stream)
                except StopIteration:
                    break
                except Exception as error:
                    raise SampleFailed(count, error) from error
            count += 1
            if size is None:
                yield one
                continue
            group.append(one)
            if len(group) == size or over():
                yield group
                group = []
        if count == before:
            return


def _moved(batch: Any, device: str | None) -> None:
    if device is not None:
        import torch

        move(batch, device, non_blocking=False)
        torch.cuda.synchronize()


def move(batch: Any, device: str, *, non_blocking: bool) -> Any:
    """All tensors of a batch on another device."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: leaf.to(device, non_blocking=non_blocking) if hasattr(leaf, "to") else leaf, batch)


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors of a batch."""
    from torch.utils._pytree import tree_leaves

    return sum(leaf.nbytes for leaf in tree_leaves(batch) if hasattr(leaf, "nbytes"))
