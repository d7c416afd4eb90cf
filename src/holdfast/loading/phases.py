"""Where the time of a sample goes, measured in a process that loads by itself; in a worker the same things happen.

A transform that the data set holds counts as augmenting. What else its `__getitem__` does, and cannot be told from outside, is
"sample"; what is left (drawing indices, walking through a stream) is "other".
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import mmap
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset

from holdfast.loading.setting import PHASES, Phases
from holdfast.loading.source import Source

# Calls that are known to read, decode or augment, whoever makes them: the interpreter tells of each call (sys.setprofile), so
# nothing is patched. Some libraries open and decode a file in one call (OpenCV, torch.load): all of that is decoding.

READ, DECODE, AUGMENT, REST, COLLATE, TRANSFER, OTHER = PHASES
_CALLS = {
    READ: """
        io:open os:open os:read os:pread os:readv numpy:fromfile socket:SocketIO.readinto urllib.request:urlopen
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
        uproot.behaviors.TBranch:HasBranches.arrays
    """,
    AUGMENT: """
        torchvision.transforms:Compose.__call__ torchvision.transforms.v2:Compose.forward albumentations:Compose.__call__
        albumentations.core.composition:Compose.__call__
    """,
}
_HOOKS = ("transform", "transforms", "target_transform", "augment", "augmentation", "augmentations", "preprocess")
_DEEPEST, _MOST = 6, 100
_FILES = (io.FileIO, io.BufferedReader, io.TextIOWrapper, mmap.mmap)


class Clock:
    """Adds up seconds by phase, of the thread that made it; each moment counts for the innermost phase only.

    Other threads go by unnoticed: that one waits for them.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._stack: list[str] = []
        self._since = 0.0
        self._codes: dict[CodeType, str] = {}
        self._builtins: dict[int, str] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside counts for this phase, unless another one begins in it."""
        self._begin(name)
        try:
            yield
        finally:
            self._end()

    @contextlib.contextmanager
    def listening(self, dataset: Any) -> Iterator[bool]:
        """Calls of known functions, and of the transforms of the data set, count for their phases; true where it has some."""
        transforms = [hook for inner in _inner(dataset) for hook in _transforms(inner)]
        for function, phase in (*_loaded_functions(), *((hook, AUGMENT) for hook in transforms)):
            code = _code_of(function)
            if code is not None:
                self._codes[code] = phase
            else:
                self._builtins[id(function)] = phase
        before = sys.getprofile()
        sys.setprofile(self._heard)
        try:
            yield bool(transforms)
        finally:
            sys.setprofile(before)

    def _heard(self, frame: FrameType, event: str, function: Any) -> None:
        """A call or a return; a generator returns whenever it yields, and an error is a return too."""
        phase = self._codes.get(frame.f_code) if event in ("call", "return") else self._phase_of(function)
        if phase is None:
            return
        if event in ("call", "c_call"):
            self._begin(phase)
        elif len(self._stack) > 1:
            self._end()

    def _phase_of(self, function: Any) -> str | None:
        """What a function in C does: one of the list, a file that reads, or zlib that unpacks."""
        if id(function) in self._builtins:
            return self._builtins[id(function)]
        owner, name = getattr(function, "__self__", None), function.__name__
        if isinstance(owner, _FILES):
            return READ if name.startswith("read") else None
        return DECODE if name == "decompress" and type(owner).__name__.startswith(("Decompress", "BZ2D", "LZMAD")) else None

    def _begin(self, name: str) -> None:
        self._turn()
        self._stack.append(name)

    def _end(self) -> None:
        self._turn()
        self._stack.pop()

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


def _code_of(function: Any) -> CodeType | None:
    """What the interpreter tells of a call by; None for what is written in C."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    plain = hasattr(function, "__code__") or inspect.isbuiltin(function)
    code: CodeType | None = getattr(function if plain else type(function).__call__, "__code__", None)
    return code


def _loaded_functions() -> Iterator[tuple[Any, str]]:
    """What of the list is loaded: function and phase. Pillow decodes in `load`, which some of its formats have of their own."""
    for phase, calls in _CALLS.items():
        for call in calls.split():
            module, _, path = call.partition(":")
            function: Any = sys.modules.get(module)
            for part in path.split("."):
                function = getattr(function, part, None)
            if callable(function):
                yield function, phase
    files = sys.modules.get("PIL.ImageFile")
    waiting = [files.ImageFile] if files else []
    while waiting:
        class_ = waiting.pop()
        waiting += class_.__subclasses__()
        if "load" in vars(class_):
            yield class_.load, DECODE


def _inner(dataset: Any, depth: int = 0) -> Iterator[Any]:
    """A data set and those inside it: subsets, and sets that were joined."""
    yield dataset
    if depth < _DEEPEST:
        own = getattr(dataset, "__dict__", {})
        several = own.get("datasets")
        for inner in [own.get("dataset"), *(several[:_MOST] if isinstance(several, (list, tuple)) else ())]:
            if isinstance(inner, Dataset):
                yield from _inner(inner, depth + 1)


def _transforms(dataset: Any) -> Iterator[Any]:
    """What a data set calls its transforms."""
    for name in _HOOKS:
        with contextlib.suppress(Exception):  # a property of the user's may raise anything
            hook = getattr(dataset, name, None)
            if callable(hook) and not isinstance(hook, type):
                yield hook


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
    with clock.listening(source.dataset) as augments, clock.phase(OTHER):
        for group in _groups(source, clock, at, lambda: time.perf_counter() > until):
            with clock.phase(COLLATE):
                batch = source.collate(group)
            with clock.phase(TRANSFER):
                if device is not None:
                    move(batch, device, non_blocking=False)
                    torch.cuda.synchronize()
            count = source.count(batch) if source.ready_made else len(group)
            size, samples = max(size, bytes_of(batch) // max(1, count)), samples + count
            if time.perf_counter() > until:
                break
    per = {name: spent / max(1, samples) for name, spent in clock.seconds.items()}
    unsure = not augments and per[REST] > 0.1 * sum(per.values())
    notes = ("the data set has no attribute `transform`: if it augments, that counts as sample",) if unsure else ()
    return Phases(seconds=per, samples=samples, sample_bytes=size, notes=notes)


def _groups(source: Source, clock: Clock, at: At, over: Callable[[], bool]) -> Iterator[Any]:
    """Samples as `collate_fn` gets them; a group is truncated when the time is over."""
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
                    sample = next(stream)
                except StopIteration:
                    break
                except Exception as error:
                    raise SampleFailed(count, error) from error
            count += 1
            if size is None:
                yield sample
                continue
            group.append(sample)
            if len(group) == size or over():
                yield group
                group = []
        if count == before:
            return


def move(batch: Any, device: str, *, non_blocking: bool) -> Any:
    """All tensors of a batch on another device."""
    return tree_map(lambda leaf: leaf.to(device, non_blocking=non_blocking) if hasattr(leaf, "to") else leaf, batch)


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors of a batch."""
    return sum(leaf.nbytes for leaf in tree_leaves(batch) if hasattr(leaf, "nbytes"))
