"""Open anybody's log: recognise what it is, and read it as the curves of one or several runs."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import LogUnreadable
from holdfast.logs import mlflow_store, not_logs, tensorboard_files, wandb_run
from holdfast.logs.csv_file import header_of, looks_like_number_list, looks_like_table, read_number_list, read_table
from holdfast.logs.exports import runs_in_export, tag_of_export
from holdfast.logs.folders import read_folder
from holdfast.logs.json_file import read_lines, read_list, read_trainer_state
from holdfast.logs.lines import encoding_of, head_of, lines_of
from holdfast.logs.notebook import cells_of, is_notebook
from holdfast.logs.rows import curves_of
from holdfast.logs.text_file import read_text
from holdfast.signals.curves import Curves

_LARGEST_JSON = 256 << 20
_COMPRESSED = (".gz", ".bz2", ".xz")
_PLAIN = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".log", ".out")
SUFFIXES = (*_PLAIN, ".ipynb", ".wandb", *(f"{plain}{packed}" for plain in _PLAIN for packed in _COMPRESSED))


def open_log(path: Path, *, name: str | None = None, anything: bool = False) -> list[Curves]:
    """The runs in a file, or in a folder that is a run. Raises LogUnreadable, in words, if it holds none.

    With `anything`, series count also where none of them is known as a loss or a metric.
    """
    name = name or path.name
    if path.is_dir():
        inside = read_folder(path, name=name)
        if isinstance(inside, Path):
            return open_log(inside, name=name, anything=anything)
        runs = inside
    else:
        runs = _read_file(path, name)
    usable = [curves for curves in runs if curves.points or (anything and curves.curves)]
    if not usable:
        raise _no_known_series(path, runs)
    return usable


def _read_file(path: Path, name: str) -> list[Curves]:
    head = head_of(path)
    if tensorboard_files.MARK in path.name:
        return tensorboard_files.read_events([path], name=name)
    if head.startswith(wandb_run.MARK):
        return wandb_run.read_wandb(path, name=name)
    if mlflow_store.is_database(path):
        return mlflow_store.read_database(path, name=name)
    refused = not_logs.refusal(path, head)
    if refused is not None:
        raise refused
    encoding = encoding_of(head)
    if encoding is None:
        raise not_logs.binary(path)
    text = head.decode(encoding, "replace").lstrip("\ufeff")
    start = text.lstrip()[:1]
    runs = _from_json(path, name, start) if start in ("{", "[") and _may_be_json(text) else []
    return runs if any(curves.points for curves in runs) else _from_text(path, name, text) or runs


def _from_text(path: Path, name: str, text: str) -> list[Curves]:
    lines = text.splitlines()
    if len(lines) > 1 and not text.endswith("\n"):
        lines.pop()  # it may have been cut
    if looks_like_table(lines):
        return _from_table(path, name, header_of(lines))
    if looks_like_number_list(lines):
        return curves_of(read_number_list(lines_of(path), path.name.partition(".")[0]), name=name, source="numbers")
    runs = curves_of(read_text(lines_of(path)), name=name, source="text")
    if not any(curves.points for curves in runs):  # only progress bars then
        runs = curves_of(read_text(lines_of(path), bars=True), name=name, source="text")
    return runs


def _from_table(path: Path, name: str, header: list[str]) -> list[Curves]:
    try:
        if tag := tag_of_export(path, header):
            renamed = ({(tag if key.lower() == "value" else key): number for key, number in row.items()} for row in _table(path))
            return curves_of(renamed, name=name, source="tensorboard")
        if runs := runs_in_export(header):
            rows = list(_table(path))
            exported = [
                curves_of(({new: row[old] for old, new in names.items() if old in row} for row in rows), name=run, source="wandb")
                for run, names in runs.items()
            ]
            return list(itertools.chain.from_iterable(exported))
        return curves_of(_table(path), name=name, source="csv")
    except csv.Error as error:
        raise LogUnreadable(f"{path} is not a table: {error}.", fix="check that it is a CSV file") from error


def _table(path: Path) -> Any:
    return read_table(lines_of(path))


def _from_json(path: Path, name: str, start: str) -> list[Curves]:
    whole = _whole_json(path)
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        planned = whole.get("max_steps")
        rows = read_trainer_state(whole)
        return curves_of(rows, name=name, source="hf", planned_steps=planned if isinstance(planned, int) else None)
    if isinstance(whole, dict) and is_notebook(whole):
        return _from_notebook(whole, path, name)
    if isinstance(whole, (dict, list)) and whole:
        return curves_of(read_list(whole), name=name, source="json")
    return curves_of(read_lines(lines_of(path)), name=name, source="jsonl") if start == "{" else []


def _from_notebook(whole: Mapping[str, Any], path: Path, name: str) -> list[Curves]:
    runs: list[Curves] = []
    for kind, lines in cells_of(whole):
        rows = read_table(lines) if kind == "table" else read_text(lines)
        runs += [curves for curves in curves_of(rows, name=name, source="notebook") if curves.points > 1]
    if not runs:
        raise LogUnreadable(f"{path} is a notebook without a loss in its outputs.", fix="run the training in it, then save it")
    if len(runs) == 1:
        return runs
    return [Curves(f"{name} #{n}", run.curves, source=run.source, notes=run.notes) for n, run in enumerate(runs, 1)]


def _may_be_json(head: str) -> bool:
    """Whether the first bytes read as JSON as far as they go; `[2026-11-15 …` does not."""
    try:
        json.loads(head)
    except json.JSONDecodeError as error:
        return error.pos > 0.9 * len(head) or error.msg.startswith(("Unterminated", "Extra data"))
    except RecursionError:
        return False
    return True


def _whole_json(path: Path) -> Any:
    if path.stat().st_size > _LARGEST_JSON:
        return None
    try:
        return json.loads("\n".join(lines_of(path)))
    except (ValueError, RecursionError):
        return None


def _no_known_series(path: Path, runs: list[Curves]) -> LogUnreadable:
    names = list(dict.fromkeys(curve.name for curves in runs for curve in curves.curves))
    if names:
        some = ", ".join(names[:6]) + (" …" if len(names) > 6 else "")
        fix = f"say which series is the loss: --train-loss '{names[0]}'"
        return LogUnreadable(f"{path} has no series recognised as a loss or metric, only {some}.", fix=fix)
    if re.search(r"requirements|readme|licen[cs]e", path.name.lower()):
        return LogUnreadable(f"{path} is not a log: it has no loss or metric.", fix="name a training log")
    return LogUnreadable(f"{path} has no loss or metric.", fix="a loss looks like `loss: 0.12`, or is a column named loss")
