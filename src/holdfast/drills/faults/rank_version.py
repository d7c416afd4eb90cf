"""One rank runs another version of torch: a machine that was set up by hand."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class RankVersion(Fault):
    """The third rank says that its torch is an older one; what it computes is the same."""

    code = "rank-version"
    description = "the third rank reports an older torch"
    expected = Expected(findings=("ranks-differ",), causes=("other-environment",), survivable=True)
    needs = ("ranks",)
    from_start = True
    rank = 2

    def update(self, context: FaultContext) -> None:
        """From the first step on."""
        torch.__version__ = TorchVersion(f"2.{context.random.randrange(4)}.1")
