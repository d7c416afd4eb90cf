"""Tables as the pages of trackers export them: W&B's with the runs side by side, TensorBoard's with one series in a file."""

from __future__ import annotations

import re
from pathlib import Path

_RANGES = ("__MIN", "__MAX")
_BETWEEN = " - "  # W&B: `name of the run - name of the series`
_TENSORBOARD = {"wall time", "step", "value"}


def runs_in_export(header: list[str]) -> dict[str, dict[str, str]]:
    """The runs in a table that W&B exported: for each, its columns and what they are called; empty for another table."""
    ranges = {name.removesuffix(end) for name in header for end in _RANGES if name.endswith(end)}
    series = [name for name in header[1:] if name in ranges and _BETWEEN in name]
    runs: dict[str, dict[str, str]] = {}
    for column in series:
        run, _, name = column.rpartition(_BETWEEN)
        if not name.startswith("_"):
            runs.setdefault(run, {header[0]: header[0]})[column] = name
    return runs


def tag_of_export(path: Path, header: list[str]) -> str | None:
    """The name of the series in a table that TensorBoard exported: it stands in the file's name."""
    if {name.lower() for name in header} != _TENSORBOARD:
        return None
    stem = path.name.partition(".csv")[0]
    match = re.search(r"tag-(.+)", stem)
    return match[1] if match is not None else stem
