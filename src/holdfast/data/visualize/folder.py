"""Where sheets are written: never into the data, and never over a file that was not made here.

`sheets.json` in the folder says which files were made and how they read; what does not read so any more is somebody else's.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from holdfast.errors import StorageError, UsageError

LIST = "sheets.json"
_MADE_BY = "holdfast visualize"


def default_folder(path: str, data: Path | None) -> Path:
    """`NAME-sheets` here; beside the data where this place is inside of it."""
    here = Path.cwd()
    if data is not None and _is_within(here, data):
        here = data.resolve().parent
    return here / f"{_name(path, data)}-sheets"


def _name(path: str, data: Path | None) -> str:
    """That of the folder, of the file without its ending, or of the factory."""
    if data is not None:
        return data.resolve().name or "data"
    if Path(path).exists():
        return Path(path).stem
    return "".join(letter if letter.isalnum() else "-" for letter in path)


def _is_within(path: Path, folder: Path) -> bool:
    whole, outer = path.resolve(), folder.resolve()
    return whole == outer or outer in whole.parents


def refuse_inside(folder: Path, data: Path | None) -> None:
    """Sheets in the folder of the data would be samples the next time."""
    if data is not None and _is_within(folder, data):
        raise UsageError(f"{folder} is inside the data", fix="name a folder elsewhere: --output FOLDER")


class SheetFolder:
    """The folder: what may be written is checked before anything is, and what was made before and is no longer is removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = _made_before(folder)
        self._made: dict[str, str] = {}

    def check(self, names: list[str]) -> None:
        """Refuse where a file of that name is there that was not made here, or was changed since."""
        for name in (*names, LIST):
            path = self.folder / name
            if path.is_symlink() or (
                path.exists() and not (name == LIST and self._before is not None) and not self._is_ours(name)
            ):
                raise UsageError(f"{path} is there and was not made by {_MADE_BY}", fix="name another folder: --output FOLDER")

    def _is_ours(self, name: str) -> bool:
        known = (self._before or {}).get(name)
        try:
            return known is not None and known == _digest((self.folder / name).read_bytes())
        except OSError:
            return False

    def write(self, name: str, content: bytes) -> None:
        """Write one file, whole or not at all."""
        path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{name}.new")
            new.write_bytes(content)
            new.replace(path)
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}", fix="name a folder that can be written: --output FOLDER"
            ) from None
        self._made[name] = _digest(content)

    def finish(self, row: dict[str, Any]) -> None:
        """Write the list of what was made, and remove what an earlier run made and this one did not."""
        for name in self._before or {}:
            if name not in self._made and self._is_ours(name):
                (self.folder / name).unlink(missing_ok=True)
        content = {"made_by": _MADE_BY, "files": dict(sorted(self._made.items())), **row}
        self.write(LIST, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8", errors="replace"))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _made_before(folder: Path) -> dict[str, str] | None:
    """Names and digests of what an earlier run made; None where there was none."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder", fix="name a folder: --output FOLDER")
    try:
        content = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("made_by") != _MADE_BY or not isinstance(content.get("files"), dict):
        return None
    return {str(name): str(digest) for name, digest in content["files"].items() if Path(name).name == name}
