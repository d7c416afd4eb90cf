"""The network between two machines is cut for a while: a switch restarts, a cable is loose."""

from __future__ import annotations

import os
import subprocess

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext

LINK = "HOLDFAST_DRILL_LINK"  # set by whoever started the ranks in network namespaces


class NetworkCut(Fault):
    """The interface of the third rank's network namespace goes down; `strength` is in seconds."""

    code = "network-cut"
    description = "the network of the third rank's machine is cut for 20 s"
    expected = Expected(findings=("collective-stall", "hang"), causes=("network-trouble",), survivable=True, ranks=(2, 3))
    needs = ("ranks",)
    rank = 2
    strength = 20.0

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        link = os.environ.get(LINK)
        if link is None or os.geteuid():
            raise CannotHappen(f"{LINK} does not name a link of a network namespace that may be cut")
        script = f"ip link set {link} down; sleep {self.strong}; ip link set {link} up"
        subprocess.Popen(["sh", "-c", script], start_new_session=True)
