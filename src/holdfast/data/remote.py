"""Data that lies elsewhere (`s3://…`, `hf://…`, any address of fsspec): copied once, and again where it changed.

A scan opens every file by the system's own calls, from several processes, and more than once. So the files are copied into the
cache folder first; without a cache, into a folder that is removed when the process ends.
"""

from __future__ import annotations

import atexit
import json
import posixpath
import shutil
import tempfile
from pathlib import Path
from typing import Any

from holdfast.data.cache import fingerprint
from holdfast.errors import StorageError, UsageError

_LIST = ".holdfast-copied.json"  # names to what fsspec says of their content; a name with a dot is never part of the data
_INSTALL = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub"}
_temporary: dict[str, Path] = {}


def is_remote(path: str) -> bool:
    """Whether a path is an address: `protocol://place`."""
    return "://" in path


def local_copy(address: str, cache: Path | None) -> Path:
    """The folder or file that an address stands for, on this machine."""
    filesystem, place = _opened(address)
    try:
        is_folder = filesystem.isdir(place)
        entries = filesystem.find(place, detail=True) if is_folder else {place: filesystem.info(place)}
    except Exception as error:  # noqa: BLE001 - each package has errors of its own for a missing key, bucket or network
        raise UsageError(f"{address} cannot be listed: {_words(error)}", fix="check the address and your access to it") from None
    if not entries:
        raise UsageError(f"{address} holds no file", fix="name a folder with files, or one file")
    above = place if is_folder else posixpath.dirname(place)
    files = {posixpath.relpath(path, above or "/"): path for path in entries}
    folder = _folder(address, cache)
    _update(filesystem, files, folder, address)
    return folder if is_folder else folder / posixpath.basename(place)


def _opened(address: str) -> tuple[Any, str]:
    protocol = address.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise UsageError(f"{address} needs the package fsspec", fix="pip install fsspec") from None
    try:
        filesystem, place = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        package = _INSTALL.get(protocol)
        fix = f"pip install {package}" if package else "one of s3://, gs://, hf://, file://, or a path of this machine"
        raise UsageError(f"{protocol}:// cannot be read: {_words(error)}", fix=fix) from None
    return filesystem, str(place).rstrip("/")


def _folder(address: str, cache: Path | None) -> Path:
    if cache is not None:
        return cache / "remote" / fingerprint(address)
    if address not in _temporary:
        _temporary[address] = Path(tempfile.mkdtemp(prefix="holdfast-remote-"))
        atexit.register(shutil.rmtree, _temporary[address], ignore_errors=True)
    return _temporary[address]


def _update(filesystem: Any, files: dict[str, str], folder: Path, address: str) -> None:
    """Copy what is new or changed, and remove what is gone. Names that would lead out of the folder are refused."""
    before = _listed(folder)
    now: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            if name.startswith(("/", "..")) or "\0" in name:
                raise UsageError(f"{address} holds a file named {name[:80]!r}, which points outside it", fix="rename that file")
            now[name] = str(filesystem.ukey(path))
            to = folder / name
            if before.get(name) != now[name] or not to.is_file():
                to.parent.mkdir(parents=True, exist_ok=True)
                filesystem.get_file(path, str(to))
        for name in before.keys() - now.keys():
            (folder / name).unlink(missing_ok=True)
        (folder / _LIST).write_text(json.dumps(now), encoding="utf-8")
    except (UsageError, KeyboardInterrupt):
        raise
    except OSError as error:
        raise StorageError(
            f"{address} cannot be copied to {folder}: {_words(error)}", fix="check access and free space"
        ) from None


def _listed(folder: Path) -> dict[str, str]:
    try:
        content = json.loads((folder / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
