"""Nodes that share no folder: what another node has recorded comes in here, and what the first node has decided goes out.

Only into one run, only under the names that nodes write, and only with a token that may change it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoints.manifest import MANIFEST
from holdfast.errors import NoSuchRun, UsageError
from holdfast.probe.serve.reply import Denied, Json, Request, Stream
from holdfast.signals.actions import QUEUE
from holdfast.signals.nodes import FOLDER, PLAN
from holdfast.signals.run_folder import RunFolder

_NAME = r"[A-Za-z0-9_][\w.-]*"
_PUSHED = re.compile(
    rf"rank-\d+(\.\d+)?/({_NAME}/)?{_NAME}|{FOLDER}/\d+\.json|{FOLDER}/stacks/[0-9a-f]+\.\d+\.json|train-\d+\.log|faults/{_NAME}"
)
_ODD = "install the same version on both machines"


def sync(request: Request) -> Json:
    """Write pieces of files and rows of the journal that a node brings; answer with the plan and what is asked of it."""
    run, body = _only(request), request.body
    for name, pieces in sorted(dict(body.get("files") or {}).items()):
        if not _PUSHED.fullmatch(name) or name == f"{FOLDER}/0.json":
            raise UsageError(f"a node does not write {name[:80]!r}.", fix=_ODD)
        write_pieces(run.path / name, pieces)
    for row in body.get("journal") or ():
        fields = {str(name): value for name, value in dict(row).items() if name not in ("kind", "time")}
        run.journal.write(str(row.get("kind")), **fields)
    return Json({"files": dict(_answer(run)), "queue": _queue(run, int(body.get("queue") or 0))})


def write_pieces(path: Path, pieces: Iterable[Mapping[str, Any]]) -> None:
    """Write pieces at their places, the first one last: it holds the number of rows that are valid. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        for piece in sorted(pieces, key=lambda piece: -int(piece["at"])):
            os.pwrite(descriptor, base64.b64decode(piece["data"]), int(piece["at"]))
            if "size" in piece:
                os.ftruncate(descriptor, int(piece["size"]))
    finally:
        os.close(descriptor)


def checkpoint(request: Request) -> Json:
    """The files of a checkpoint with their sizes."""
    folder = _checkpoint(request)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return Json({str(path.relative_to(folder)): path.stat().st_size for path in files})


def checkpoint_file(request: Request) -> Stream:
    """One file of a checkpoint."""
    folder, name = _checkpoint(request), request.options.get("file", [""])[0]
    path = folder / name
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        raise NoSuchRun(f"{folder.name} has no file {name[:80]!r}.", fix=_ODD)

    def write(out: Any) -> None:
        with path.open("rb") as file:
            shutil.copyfileobj(file, out, 1 << 20)

    return Stream(write, "application/octet-stream")


def _only(request: Request) -> RunFolder:
    if len(request.runs) != 1:
        raise Denied(400, "a node belongs to one run.", fix="join with HOST:PORT of a `holdfast run --listen`")
    return request.runs[0]


def _checkpoint(request: Request) -> Path:
    name = request.path_parts[0]
    folder = _only(request).path / "checkpoints" / name
    if name.startswith(".") or not (folder / MANIFEST).is_file():
        raise NoSuchRun(f"there is no checkpoint {name}.", fix="holdfast checkpoints list, on the first node")
    return folder


def _answer(run: RunFolder) -> Iterable[tuple[str, str]]:
    """What the first node tells the others, by name."""
    folder = run.path / FOLDER
    requests = sorted((folder / "stacks").glob("[0-9a-f]*.request")) if (folder / "stacks").is_dir() else []
    for path in (folder / "0.json", folder / PLAN, *requests):
        with contextlib.suppress(OSError):
            yield str(path.relative_to(run.path)), path.read_text(encoding="utf-8")


def _queue(run: RunFolder, have: int) -> dict[str, Any]:
    """The action queue behind the bytes that a node has; one that is shorter was begun anew."""
    with contextlib.suppress(OSError):
        content = (run.path / QUEUE).read_bytes()
        begin = have if have <= len(content) else 0
        return {"at": begin, "data": content[begin:].decode(errors="replace")}
    return {"at": 0, "data": ""}
