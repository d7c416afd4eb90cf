"""Holdfast keeps PyTorch training alive.

`holdfast run -- python train.py` watches a script that nobody changed; `holdfast.watch` does the same from one line in
the code. Importing this package imports nothing else: torch and the rest are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.checkpoints.load import Loaded, load
    from holdfast.inside.saving.position import Position
    from holdfast.inside.saving.store import CheckpointStore
    from holdfast.inside.watch import Run, watch

__version__ = "0.1.0"
__all__ = ["CheckpointStore", "Loaded", "Position", "Run", "__version__", "load", "watch"]


def __getattr__(name: str) -> Any:
    if name in ("Run", "watch"):
        from holdfast.inside import watch as module

        return getattr(module, name)
    if name == "Position":
        from holdfast.inside.saving.position import Position

        return Position
    if name == "CheckpointStore":
        from holdfast.inside.saving.store import CheckpointStore

        return CheckpointStore
    if name in ("Loaded", "load"):
        from holdfast.checkpoints import load as loading

        return getattr(loading, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
