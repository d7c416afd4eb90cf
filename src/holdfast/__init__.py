"""Holdfast keeps PyTorch training alive.

`holdfast run -- python train.py` watches a script that nobody changed; `holdfast.watch` does the same from one line in
the code. Importing this package imports nothing else: torch and the rest are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.data.cleaned import read_quarantine
    from holdfast.data.predictions import PredictionWriter
    from holdfast.inside.seeding import seed
    from holdfast.inside.watch import Run, watch
    from holdfast.matching.load import Loaded, load
    from holdfast.state.position import Position
    from holdfast.state.store import CheckpointStore

__all__ = [
    "CheckpointStore",
    "Loaded",
    "Position",
    "PredictionWriter",
    "Run",
    "__version__",
    "load",
    "read_quarantine",
    "seed",
    "watch",
]

_WHERE = {
    "CheckpointStore": "holdfast.state.store",
    "Loaded": "holdfast.matching.load",
    "Position": "holdfast.state.position",
    "PredictionWriter": "holdfast.data.predictions",
    "Run": "holdfast.inside.watch",
    "load": "holdfast.matching.load",
    "read_quarantine": "holdfast.data.cleaned",
    "seed": "holdfast.inside.seeding",
    "watch": "holdfast.inside.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
