"""A node without a shared folder: it records into a folder of its own, and a thread keeps the first node informed.

Up go the tables of its ranks, its state, its stacks and its journal; down come the plan, requests for stacks, queued actions, and
before an attempt the checkpoint that it resumes from. Only pages that have changed travel.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.checkpoints.read import verify_checkpoint
from holdfast.errors import HoldfastError, Unreachable
from holdfast.probe.remote import Remote
from holdfast.signals.actions import QUEUE
from holdfast.signals.nodes import FOLDER, Plan
from holdfast.signals.run_folder import RunFolder, replace_text
from holdfast.signals.trouble import Trouble

_EVERY_SECONDS = 0.4
_PAGE, _AT_ONCE = 4096, 600_000  # bytes; a server takes requests of 1 MiB, and base64 adds a third
_SEGMENT = re.compile(r"\d{6}\..*")
_ANSWER_SECONDS = 30.0


class NodeLink:
    """Sends and fetches until it is closed. What does not get through is sent again."""

    def __init__(self, run: RunFolder, node: int, remote: Remote, trouble: Trouble) -> None:
        self._run, self._node, self._remote, self._trouble = run, node, remote, trouble
        self._sent: dict[Path, dict[int, int]] = {}  # checksums of pages
        self._journal = len(list(run.journal))  # rows of earlier starts were sent then
        self._queue = 0
        self._stop, self._turn = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._work, name="holdfast-link", daemon=True)
        self._forget_queue()

    def start(self) -> None:
        """Send for the first time, so that a wrong address or token is an error at once; then in a thread. Raises Unreachable."""
        self._sync()
        self._thread.start()

    def close(self) -> None:
        """Send what is left."""
        self._stop.set()
        self._thread.join(_ANSWER_SECONDS)
        with contextlib.suppress(HoldfastError, OSError):
            self._sync()

    def fetch_checkpoints(self, plan: Plan) -> None:
        """Bring the checkpoints of a plan here and verify them. Raises HoldfastError and OSError."""
        folder = f"{plan.run}/checkpoints/"
        paths = {text for text in (*plan.environment.values(), *plan.arguments) if text.startswith(folder)}
        for name in sorted({text.removeprefix(folder).partition("/")[0] for text in paths}):
            if not (self._run.path / "checkpoints" / name).exists():
                self._fetch(name)

    def _fetch(self, name: str) -> None:
        spare = self._run.path / "checkpoints" / f".fetching-{name}"
        shutil.rmtree(spare, ignore_errors=True)
        for file in self._remote.get(f"/v1/node/checkpoint/{name}"):
            path = spare / file
            if not path.resolve().is_relative_to(spare.resolve()):
                raise Unreachable(f"{self._remote} offers a file {file!r}.", fix="join a server that you trust")
            path.parent.mkdir(parents=True, exist_ok=True)
            at = f"/v1/node/checkpoint/{name}/file"
            with self._remote.ask("GET", at, None, {"file": file}) as answer, path.open("wb") as out:
                shutil.copyfileobj(answer, out, 1 << 20)
        verify_checkpoint(spare)
        spare.rename(spare.with_name(name))

    def _work(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            try:
                self._sync()
            except (HoldfastError, OSError) as error:  # the next time may be a good one
                self._trouble.step_back(f"reaching node 0 at {self._remote}", error)

    def _sync(self) -> None:
        with self._turn:
            for files in self._batches():
                rows = list(self._run.journal)[self._journal :]
                body = {"files": {name: pieces for name, (pieces, _) in files.items()}, "journal": rows, "queue": self._queue}
                answer: dict[str, Any] = self._remote.post("/v1/node/sync", body, seconds=_ANSWER_SECONDS)
                self._journal += len(rows)
                for name, (_, sums) in files.items():
                    self._sent.setdefault(self._run.path / name, {}).update(sums)
                self._take(answer)

    def _batches(self) -> Iterator[dict[str, tuple[list[dict[str, Any]], dict[int, int]]]]:
        """Changed pages of all files, in requests of a good size; at least one request."""
        batch: dict[str, tuple[list[dict[str, Any]], dict[int, int]]] = {}
        size, is_first = 0, True
        for path in self._files():
            name = str(path.relative_to(self._run.path))
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                for at in range(0, max(1, len(content)), _PAGE):
                    page = content[at : at + _PAGE]
                    total = zlib.crc32(page)
                    if self._sent.get(path, {}).get(at) == total:
                        continue
                    pieces, sums = batch.setdefault(name, ([], {}))
                    pieces.append({"at": at, "data": base64.b64encode(page).decode(), "size": len(content)})
                    sums[at] = total
                    size += len(page)
                    if size > _AT_ONCE:
                        yield batch
                        batch, size, is_first = {}, 0, False
        if batch or is_first:
            yield batch

    def _files(self) -> Iterator[Path]:
        """What this node tells the first one; of segments that are full only those that were not sent yet."""
        for recording in self._run.recordings():
            for path in sorted(recording.path.rglob("*")):
                if path.is_file() and not path.name.startswith(".") and not (path in self._sent and self._is_full(path)):
                    yield path
        own = self._run.path / FOLDER / f"{self._node}.json"
        answers = (self._run.path / FOLDER / "stacks").glob(f"*.{self._node}.json")
        yield from (path for path in (own, *answers, self._run.path / f"train-{self._node}.log") if path.is_file())

    @staticmethod
    def _is_full(path: Path) -> bool:
        """Whether a later segment is in use: this one will not change any more."""
        if not _SEGMENT.fullmatch(path.name):
            return False
        return path.with_name(f"{int(path.name[:6]) + 2:06d}{path.suffix}").exists()  # the next one is made ready in advance

    def _take(self, answer: dict[str, Any]) -> None:
        files = dict(answer["files"])
        requests = self._run.path / FOLDER / "stacks"
        for name, text in files.items():
            path = self._run.path / name
            if path.is_relative_to(self._run.path / FOLDER) and ".." not in path.parts and path.name != f"{self._node}.json":
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    replace_text(path, text)
        for old in requests.glob("*.request") if requests.is_dir() else ():
            if f"{FOLDER}/stacks/{old.name}" not in files:
                for path in requests.glob(f"{old.stem}.*"):
                    path.unlink(missing_ok=True)
        self._take_queue(answer["queue"])

    def _take_queue(self, queue: dict[str, Any]) -> None:
        if int(queue["at"]) < self._queue:
            self._forget_queue()
        if queue["data"]:
            with (self._run.path / QUEUE).open("ab") as file:
                self._queue += file.write(str(queue["data"]).encode())

    def _forget_queue(self) -> None:
        self._queue = 0
        (self._run.path / QUEUE).unlink(missing_ok=True)
