"""Which samples a rank has trained on: one line for each batch."""

from __future__ import annotations

import os
from pathlib import Path

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def note_ids(name: str | None, ids: list[int]) -> None:
    """Append the samples of a batch to this rank's file."""
    if name is not None:
        with Path(f"{name}-{RANK}").open("a", encoding="utf-8") as file:
            file.write(" ".join(map(str, ids)) + "\n")
