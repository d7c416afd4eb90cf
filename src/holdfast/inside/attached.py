"""Arm Holdfast in a process that was started without it. Called by what `holdfast attach` has the process execute."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_OLDEST_TORCH = (2, 4)


def enter(folder: str, policy: str, budget: float) -> dict[str, Any]:
    """Record into a run folder from the next step on; the state of things, as the other side tells it."""
    if _is_armed():
        return {"state": "already"}
    if "torch" not in sys.modules:
        from holdfast.inside.site.holdfast_on_torch import wait_for_torch

        os.environ.update(HOLDFAST_RUN=folder, HOLDFAST_POLICY=policy, HOLDFAST_BUDGET=repr(budget))
        wait_for_torch()
        return {"state": "waits"}
    torch: Any = sys.modules["torch"]
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return {"state": "failed", "error": "torch is being imported right now; try again in a moment"}
    version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    if version < _OLDEST_TORCH:
        return {"state": "failed", "error": f"torch {torch.__version__} is older than 2.4"}
    _arm(Path(folder), policy, budget)
    return {"state": "armed"}


def _arm(folder: Path, policy: str, budget: float) -> None:
    from holdfast.inside.arm import armed
    from holdfast.inside.policy import Policy
    from holdfast.inside.scope import Scope
    from holdfast.signals.run_folder import RunFolder

    armed().runtime.feeds.joins_late = True
    armed().add(Scope(RunFolder(folder), budget=budget, policy=Policy(policy), follows_children=True))


def _is_armed() -> bool:
    arm: Any = sys.modules.get("holdfast.inside.arm")
    there = getattr(arm, "_armed", None)
    waits = any(type(finder).__name__ == "TorchFinder" for finder in sys.meta_path)
    return waits or bool(there is not None and there.runtime.scopes)
