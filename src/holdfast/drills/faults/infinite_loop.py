"""A loop that does not end: a condition that never comes true."""

from __future__ import annotations

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.as_script import as_script
from holdfast.drills.injection.context import FaultContext

_SOURCE = """
def wait_for_change():
    tried = 0
    while tried >= 0:
        tried += 1
"""


class InfiniteLoop(Fault):
    """Count without an end, in the training thread."""

    code = "infinite-loop"
    description = "the training thread runs in an endless loop"
    expected = Expected(findings=("hang",), causes=("stuck-compute",), survivable=True)

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        as_script("wait_for_change", _SOURCE, context.folder)()
