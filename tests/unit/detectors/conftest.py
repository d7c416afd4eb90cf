from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from holdfast.detectors.finding import Finding
from holdfast.detectors.order import EVERY, OF_STEPS
from holdfast.recovery.window import COLUMNS, Window
from holdfast.signals.schema import TABLES
from holdfast.signals.view import SignalView

KINDS = {column.name: column.kind for column in TABLES["steps"].columns}


@pytest.fixture
def view() -> Callable[..., SignalView]:
    """A view of a run that is given as whole columns."""

    def make(**columns: Any) -> SignalView:
        arrays = {name: np.asarray(values, KINDS[name].dtype) for name, values in columns.items()}
        count = len(next(iter(arrays.values())))
        return SignalView({"step": np.arange(count), **arrays})

    return make


@pytest.fixture
def replay() -> Callable[..., list[Finding]]:
    """Everything that all detectors say about a run, row by row, each code once."""

    def play(*, plays: bool = False, **columns: Any) -> list[Finding]:
        count = len(next(iter(columns.values())))
        given = {"step": np.arange(count), **columns}
        rows = {name: np.asarray(given.get(name, np.full(count, KINDS[name].missing)), KINDS[name].dtype) for name in COLUMNS}
        window, found = Window(plays=plays), dict[str, Finding]()
        for start in range(0, count - count % EVERY, EVERY):
            window.append({name: values[start : start + EVERY] for name, values in rows.items()})
            seen = window.view()
            for asked in OF_STEPS:
                if window.seen % asked.every == 0 and (finding := asked.detector(seen)) is not None:
                    found.setdefault(finding.code, finding)
        return list(found.values())

    return play
