"""Holdfast keeps PyTorch training alive.

`holdfast run -- python train.py` watches a script that nobody changed; `holdfast.watch` does the same from one line in
the code. Importing this package imports nothing else: torch and the rest are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.inside.watch import Run, watch

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "watch"]


def __getattr__(name: str) -> Any:
    if name in ("Run", "watch"):
        from holdfast.inside import watch as module

        return getattr(module, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
