"""The state of a training as a snapshot keeps it."""

from __future__ import annotations

from holdfast.inside.snapshots.host_copy import Block, Copier, Layout
from holdfast.inside.snapshots.state import TrainingState


class Kept:
    """A state copied to the host, as a snapshot does it."""

    def __init__(self, state: TrainingState) -> None:
        reading = state.read()
        layout = Layout(reading.sources)
        self.tree, self.hosts = reading.tree, Block(layout.size, pin=False).lay_out(layout)
        Copier().copy_out(reading.sources, self.hosts)
