"""Which policies are asked, in which order: the first that answers decides."""

from __future__ import annotations

import difflib
import runpy
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.recovery.ending import KeepBest, SaveCheckpoint, StopEarly
from holdfast.recovery.gentle import ClipSpikes, LowerLearningRate, ShrinkMicroBatch
from holdfast.recovery.policy import Policy
from holdfast.recovery.roll_back import RollBack

NAMES = ("observe", "guard", "heal")


def defaults() -> tuple[Policy, ...]:
    """What `heal` asks. Going back comes before gentler things: they only answer where the loss has not diverged."""
    return (RollBack(), ShrinkMicroBatch(), ClipSpikes(), LowerLearningRate())


def stopping_early(patience: int) -> tuple[Policy, ...]:
    """The defaults, the best checkpoint kept, and an early stop with a checkpoint before it."""
    stop = StopEarly(patience=patience)
    return (*defaults(), KeepBest(), SaveCheckpoint(before=(stop,)), stop)


def load(policy: str) -> tuple[Policy, ...]:
    """The policies that a name or a Python file stands for. `observe` and `guard` decide nothing outside the training."""
    if policy in ("observe", "guard"):
        return ()
    if policy == "heal":
        return defaults()
    if not policy.endswith(".py"):
        near = difflib.get_close_matches(policy, NAMES, 1)
        raise UsageError(
            f"there is no policy {policy!r}.",
            fix=f"--policy {near[0] if near else 'heal'}, or a Python file that defines `policies`",
        )
    return _from_file(Path(policy))


def _from_file(path: Path) -> tuple[Policy, ...]:
    try:
        defined = runpy.run_path(str(path))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist.", fix="name a Python file that defines `policies`") from None
    except Exception as error:
        raise UsageError(
            f"{path} cannot be run: {type(error).__name__}: {error}.", fix=f"run it to see the error: python {path}"
        ) from error
    policies = defined.get("policies")
    if not isinstance(policies, (list, tuple)):
        raise UsageError(f"{path} does not define `policies`.", fix="policies = [RollBack(), …] at the top of the file")
    for policy in policies:
        if isinstance(policy, type) or not isinstance(policy, Policy):
            raise UsageError(
                f"{policy!r} in {path} is not a policy.",
                fix="an object with `decide(diagnosis, past)` that returns an Action or None",
            )
    return tuple(policies)
