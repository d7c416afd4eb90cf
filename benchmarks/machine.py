"""The words that every measured table begins with: the date and the machine, without the machine's name."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone


def machine(jobs: int) -> str:
    """The system, its architecture, cores and GPU, how many runs at a time, and the versions of Python and torch."""
    import torch

    at_a_time = f" ({jobs} runs at a time)" if jobs > 1 else ""
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    where = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores{at_a_time}{gpu}"
    return f"{where}, Python {platform.python_version()}, torch {torch.__version__}"


def today() -> str:
    """The date, as tables have it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")
