"""Calls that are known to read, decode or augment, whoever makes them: a clock is put around them from outside, for a while.

Some libraries open files by themselves in one call with the decoding (OpenCV, pyarrow, torch.load); all of it counts as decoding.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from holdfast.data.loading.clock import AUGMENT, DECODE, READ, Clock, TimedCall
from holdfast.data.loading.timed_files import timed_open

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
        uproot.behaviors.TBranch:HasBranches.arrays holdfast.data.loading.table_reading:following
    """,
    AUGMENT: """
        torchvision.transforms:Compose.__call__ torchvision.transforms.v2:Compose.forward albumentations:Compose.__call__
        albumentations.core.composition:Compose.__call__ holdfast.data.loading.image_reading:prepared
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
