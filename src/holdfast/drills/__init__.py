"""Faults to inject into any training on purpose, and the score of what was detected and survived.

`holdfast drill -- python train.py` runs them; `holdfast.drills.assert_survives` does the same in a test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.drills.fault import CannotHappen, Expected, Fault
    from holdfast.drills.injection.context import FaultContext
    from holdfast.drills.testing import assert_survives

__all__ = ["CannotHappen", "Expected", "Fault", "FaultContext", "assert_survives"]


def __getattr__(name: str) -> Any:
    """Loaded when used: the training process loads faults, and nothing of what runs and scores them."""
    if name in ("CannotHappen", "Expected", "Fault"):
        from holdfast.drills import fault

        return getattr(fault, name)
    if name == "FaultContext":
        from holdfast.drills.injection.context import FaultContext

        return FaultContext
    if name == "assert_survives":
        from holdfast.drills.testing import assert_survives

        return assert_survives
    raise AttributeError(f"module 'holdfast.drills' has no attribute {name!r}")
