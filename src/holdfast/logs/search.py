"""Find the logs in a folder: files that other tools write, and runs of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.logs.open import SUFFIXES

_AT_MOST = 5000
_NOT_LOGS = {"package.json", "package-lock.json", "tsconfig.json", "labels.csv", "requirements.txt", "args.yaml", "config.json"}
_HIDDEN = (".", "__pycache__", "node_modules", "site-packages")


def find_logs(folder: Path) -> Iterator[Path]:
    """Run folders of ours and files with the ending of a log, in order of their path."""
    for number, (where, folders, files) in enumerate(os.walk(folder)):
        if number > _AT_MOST:
            return
        here = Path(where)
        if "run.json" in files:
            folders.clear()
            yield here
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        yield from (here / name for name in sorted(files) if name.lower().endswith(SUFFIXES) and name not in _NOT_LOGS)
