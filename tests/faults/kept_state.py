"""The state of a training as a snapshot keeps it."""

from __future__ import annotations

from holdfast.state.host_copy import Block, HostCopier, HostCopy
from holdfast.state.training_state import TrainingState


def kept(state: TrainingState) -> HostCopy:
    """A state copied to the host, as a snapshot does it."""
    reading, copier = state.read(), HostCopier()
    return copier.copy(reading, Block(copier.size(reading), pinned=False))
