from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.recovery.window import COLUMNS, Window
from holdfast.signals.view import Evaluation


def rows(first: int, count: int, **columns: Any) -> dict[str, Any]:
    steps = np.arange(first, first + count)
    return {name: columns.get(name, steps if name == "step" else np.zeros(count)) for name in COLUMNS}


def test_memory_is_bounded_and_the_highest_of_all_rows_is_kept() -> None:
    window = Window(64)
    for first in range(0, 1000, 4):
        window.append(rows(first, 4, lr=np.full(4, 9.0 if first == 100 else 1.0)))
        assert 0 < len(window.view()) <= 128
    view = window.view()
    assert (view.step, window.seen) == (999, 1000)
    assert view.highest("lr", before=1000) == 9.0
    assert view.first("loss", 2)[0].tolist() == [0, 1]


def test_what_was_undone_is_forgotten() -> None:
    window = Window(64)
    window.append(rows(0, 60))
    window.evaluate(Evaluation(40, "val", "loss", 1.0))
    window.evaluate(Evaluation(55, "val", "loss", 9.0))
    window.forget(50, 59)
    window.append(rows(60, 4))
    assert window.view().column("step").tolist() == [*range(50), 60, 61, 62, 63]
    assert window.view().evaluated("val", "loss")[1].tolist() == [1.0]
