"""Logs in JSON: the Hugging Face Trainer's `trainer_state.json`, and a row of numbers on each line (detectron2, W&B exports)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.logs.rows import Row

_NOT_FINITE = ("nan", "inf", "infinity")
_SUMMARY = "train_runtime"  # in the row that the Trainer writes at its end, over the whole run


def read_trainer_state(state: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a Trainer's history; the one that sums the run up is skipped."""
    for entry in state.get("log_history") or ():
        if isinstance(entry, Mapping) and _SUMMARY not in entry:
            yield numeric_fields(entry)


def read_lines(lines: Iterable[str]) -> Iterator[Row]:
    """One JSON object a line; lines that are none are skipped."""
    for line in lines:
        if line.lstrip()[:1] == "{":
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield numeric_fields(row)


def read_list(rows: Iterable[Any]) -> Iterator[Row]:
    """A list of objects, or an object of lists (Keras' `history`)."""
    if isinstance(rows, Mapping):
        columns = {name: values for name, values in rows.items() if isinstance(values, list)}
        for place in range(max(map(len, columns.values()), default=0)):
            yield numeric_fields({name: values[place] for name, values in columns.items() if place < len(values)})
    else:
        for row in rows:
            if isinstance(row, Mapping):
                yield numeric_fields(row)


def numeric_fields(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of an object, those inside others under their path."""
    values: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, (int, float)) or (isinstance(value, str) and value.lower().lstrip("+-") in _NOT_FINITE):
            values[f"{prefix}{name}"] = float(value)
        elif isinstance(value, Mapping) and len(prefix) < 60:
            values |= numeric_fields(value, f"{prefix}{name}/")
    return values
