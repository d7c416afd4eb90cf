"""Where to go on from: a checkpoint, a folder of them, a run, or the earlier runs of the same name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.checkpoints.manifest import MANIFEST, kept_in, parse_name
from holdfast.errors import CannotRestore
from holdfast.signals.run_folder import RunFolder

_CHECKPOINTS = "checkpoints"


def source_of(path: str | os.PathLike[str]) -> tuple[Path, Path | None]:
    """The folder of checkpoints that a path means, and which of them if it names one."""
    named = Path(path).absolute()
    if (named / MANIFEST).exists() or (parse_name(named.name) is not None and named.is_dir()):
        return named.parent, named
    if (named / "run.json").exists():
        return named / _CHECKPOINTS, None
    if not named.is_dir():
        raise CannotRestore(
            f"There is nothing to restore at {named}.",
            fix="name a checkpoint, a folder of them, or a run folder; `holdfast checkpoints list` shows what is there",
        )
    return named, None


def earlier_of(run: RunFolder) -> Path | None:
    """The folder of checkpoints of this run, or of the newest earlier one of its name that has any."""
    return next((folder for folder in _candidates(run) if kept_in(folder)), None)


def _candidates(run: RunFolder) -> Iterator[Path]:
    yield run.path / _CHECKPOINTS
    asked = run.info().get("asked")
    if not isinstance(asked, str):
        return
    found: list[tuple[float, Path]] = []
    for folder in run.path.parent.iterdir():
        info = _info(folder)
        if not folder.is_symlink() and folder != run.path and info.get("asked") == asked:
            found.append((float(info.get("started") or 0.0), folder))
    yield from (folder / _CHECKPOINTS for _, folder in sorted(found, reverse=True))


def _info(folder: Path) -> dict[str, Any]:
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}
