"""The state of a training as a snapshot keeps it."""

from __future__ import annotations

from holdfast.state.host_copy import Block, HostCopy, copy_state
from holdfast.state.training_state import TrainingState


def kept(state: TrainingState) -> HostCopy:
    """A state copied to the host, as a snapshot does it."""
    live_state = state.read()
    return copy_state(live_state, Block(live_state.size, pinned=False))
