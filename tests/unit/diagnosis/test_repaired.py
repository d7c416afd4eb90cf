"""Whether a run was repaired: what was done about it counts, unless it was given up in the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.checkup import check_up
from holdfast.signals.curves import Curve, Curves

KILLED = Finding("process-died", step=51, severity="critical", evidence={})
RESTARTED = {"kind": "action", "action": "restart", "step": 51, "because": "process-died", "state": "done"}
REFUSED = {**RESTARTED, "state": "refused"}
STOPPED = {**RESTARTED, "action": "stop"}


@pytest.mark.parametrize(
    ("rows", "repaired"),
    [
        ([], False),
        ([RESTARTED], True),
        ([REFUSED, RESTARTED], True),
        ([RESTARTED, RESTARTED, REFUSED], False),
        ([RESTARTED, STOPPED], False),
    ],
)
def test_what_was_given_up_in_the_end_was_not_repaired(rows: list[dict[str, Any]], repaired: bool) -> None:
    loss = Curve("loss", np.arange(100), np.linspace(2.0, 1.0, 100), role="loss", split="train", better="lower")
    assert check_up(Curves("a", (loss,)), seen=[KILLED], around=rows).repaired is repaired
