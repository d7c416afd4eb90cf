"""After a bad end: whether the newest files that the script has saved are whole, so that nobody resumes from one that is not.

A process that is killed in the middle of a save leaves the first part of a file under its final name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.errors import HoldfastError
from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.resume import changed, is_of_trainer, saved_by_the_script

_LOOKED_AT = 3  # files, the newest ones
_BYTES = 8 << 30  # that are read at most: every byte of a file is
_ARCHIVE = b"PK\x03\x04"
_TORN = ("torn", "unreadable")


def damaged_files(run: RunFolder, *, since: float, end: Finding) -> Iterator[Finding]:
    """One finding for each of the newest files that an attempt, begun at `since`, has left damaged; `end` is how it ended."""
    left = _BYTES
    newest = [path for path in saved_by_the_script(run) if changed(path) >= since and _is_verifiable(path)]
    for path in newest[:_LOOKED_AT]:
        left -= _size(path)
        if left < 0:
            return
        if (trouble := _trouble(path)) is not None:
            evidence: dict[str, Any] = {"path": str(path), "why": trouble, "end": end.code}
            if "do not match" in trouble or _was_whole(run, path):
                evidence["checksum"] = "differs"
            yield Finding("checkpoint-torn", step=end.step, severity="critical", evidence=evidence)


def damage_found_loading(run: RunFolder, finding: Finding, *, since: float) -> Finding:
    """The finding of an attempt that ended as it could not load a file; what torch says of a damaged one may be anything, such as
    that `weights_only` does not allow its objects.
    """
    failed = [row for row in run.journal if row.get("event") == "unreadable" and float(row["time"]) >= since]
    path = Path(str(failed[-1]["path"])) if failed and finding.code == "checkpoint-incompatible" else None
    trouble = _trouble(path) if path is not None and _size(path) <= _BYTES else None
    if path is None or trouble is None:
        return finding
    evidence = {key: value for key, value in finding.evidence.items() if key != "known_text"}
    evidence |= {"path": str(path), "why": trouble, **({"checksum": "differs"} if _was_whole(run, path) else {})}
    return replace(finding, code="checkpoint-torn", evidence=evidence)


def _is_verifiable(path: Path) -> bool:
    """Whether damage would show: in a file that `torch.save` has begun to write (an archive, or nothing yet), in one of
    safetensors, in the folder of a trainer."""
    if path.suffix == ".safetensors" or is_of_trainer(path):
        return True
    try:
        with path.open("rb") as file:
            return _ARCHIVE.startswith(file.read(len(_ARCHIVE)))
    except OSError:  # another folder, or gone
        return False


def _size(path: Path) -> int:
    try:
        return sum(file.stat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0


def _was_whole(run: RunFolder, path: Path) -> bool:
    """Whether the save of this file had ended, and the file is as long as it was then: the damage came later."""
    marks = [str(row.get("mark")) for row in run.journal if row.get("event") == "saved" and row.get("path") == str(path)]
    return bool(marks) and marks[-1].startswith(f"{_size(path)}-")


def _trouble(path: Path) -> str | None:
    from holdfast.checkpoints.formats.open import open_checkpoint
    from holdfast.checkpoints.verify import verify

    try:
        verdict = verify(open_checkpoint(path))
    except (HoldfastError, OSError):  # gone, or of another kind: nothing is known
        return None
    return next((trouble.text for trouble in verdict.troubles if trouble.state in _TORN), None)
