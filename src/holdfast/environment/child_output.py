"""How a child process reports to its parent: a line of JSON after each stage."""

from __future__ import annotations

import json
from typing import Any


def tell(stage: str, **facts: Any) -> None:
    """Say that a stage is done, and what was found in it."""
    print(json.dumps({"stage": stage, **facts}), flush=True)
