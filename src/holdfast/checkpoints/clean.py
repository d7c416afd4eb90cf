"""Whether a checkpoint can be resumed from: every byte of it is read."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.verify import Verdict, verify
from holdfast.errors import HoldfastError


def is_clean(verdict: Verdict) -> bool:
    """Whether a checkpoint is whole and finite; a script may load objects that it saved itself."""
    return all(trouble.state == "unsafe" for trouble in verdict.troubles)


def verified(path: Path) -> tuple[Verdict | None, str | None]:
    """The verdict on a checkpoint, if it can be opened, and what is wrong with it, if anything."""
    try:
        verdict = verify(open_checkpoint(path))
    except (HoldfastError, OSError) as error:
        return None, str(error)
    return verdict, next((trouble.text for trouble in verdict.troubles if trouble.state != "unsafe"), None)


def newest_clean(paths: Iterable[Path]) -> tuple[Path | None, dict[Path, str]]:
    """The first clean one of some checkpoints, and what is wrong with those before it."""
    problems: dict[Path, str] = {}
    for path in paths:
        _, problem = verified(path)
        if problem is None:
            return path, problems
        problems[path] = problem
    return None, problems


def first_clean(paths: Iterable[Path]) -> str | None:
    """The first checkpoint that is whole and finite, with a warning about those before it; None if there is none."""
    newest, problems = newest_clean(paths)
    for path, problem in problems.items():
        instead = f"{newest} is used instead" if newest is not None else "no checkpoint before it is clean"
        warnings.warn(f"holdfast: {path} is not used: {problem} {instead}.", stacklevel=3)
    return str(newest) if newest is not None else None


def newest(paths: Iterable[Path]) -> str | None:
    """The checkpoint written last that is whole and finite, as `first_clean`."""
    return first_clean(sorted(paths, key=lambda path: (path.stat().st_mtime, path), reverse=True))
