"""Text logs of any usual shape: `loss: 0.12`, `loss=0.12`, `train loss 0.12`, progress bars, dicts, one number a line.

A line gives pairs of name and number. Which epoch and step it belongs to stands in the line, or in one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.logs.numbers import number
from holdfast.logs.roles import role_of, words_of
from holdfast.logs.rows import Row

_NUMBER = r"(?<![\w.])[-+]?(?:\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf(?:inity)?)(?![\w.]*\w)%?"
_NAME = r"[A-Za-z_][\w/.@-]*(?:\([\w@]+\))?(?: [A-Za-z_][\w/.@()-]*){0,3}"
_PAIR = re.compile(rf"(?P<name>{_NAME})['\"]?\s*(?P<sign>[:=]|\bis\b|\s)\s*\[?(?P<value>{_NUMBER})", re.IGNORECASE)
_EPOCH = re.compile(r"\bepochs?\b['\"]?\s*[:=#]?\s*\[?\(?\s*(\d+(?:\.\d+)?)(?:\s*(?:/|of)\s*(\d+))?", re.IGNORECASE)
_STEP = re.compile(r"\b(?:global[ _]?step|step|iter(?:ation)?|it|batch)\b['\"]?\s*[:=#]?\s*\[?\(?\s*(\d+)", re.IGNORECASE)
_BARE = re.compile(rf"^\s*(?P<step>\d+)\s+(?P<name>[A-Za-z_]\w*)\s+(?P<value>{_NUMBER})\s*$", re.IGNORECASE)
_UNDER_WAY = re.compile(r"\bETA\b|\d+%\|")  # a progress bar that is not at its end
_POSITIONS = {"epoch", "epochs", "step", "iter", "iteration", "batch", "global_step", "it"}
_SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "test", "eval": "val"}


def read_text(lines: Iterable[str]) -> Iterator[Row]:
    """Rows of numbers, in the order in which they stand in the log; lines of one epoch that follow each other are one row."""
    epoch: float | None = None
    held: dict[str, float] = {}
    for line in lines:
        for part in line.replace("\b", "").split("\r"):
            said = _EPOCH.search(part)
            if said is not None:
                if epoch != float(said[1]) and held:
                    yield held
                    held = {}
                epoch = float(said[1])
            found = pairs_in(part)
            if not found:
                continue
            here = _positions(part, epoch)
            if held and (found.keys() & held.keys() or here.get("step") != held.get("step")):
                yield held
                held = {}
            held |= here | found
    if held:
        yield held


def pairs_in(line: str) -> dict[str, float]:
    """What a line says about losses, metrics and settings; nothing for a line of another kind."""
    if _UNDER_WAY.search(line) or len(line) > 4000:
        return {}
    bare = _BARE.match(line)
    if bare is not None and (value := number(bare["value"])) is not None:
        name = bare["name"].lower()
        return {f"{_SPLITS[name]} loss" if name in _SPLITS else name: value}
    found: dict[str, float] = {}
    for pair in _PAIR.finditer(line):
        name = _clean(pair["name"], spaced=not pair["sign"].strip())
        value = number(pair["value"])
        if name and value is not None and name not in found:
            found[name] = value
    return found


def _clean(name: str, *, spaced: bool) -> str:
    """The name without what stands before it; empty if it names nothing that is looked for."""
    words = name.split()
    if spaced and role_of(words[-1]).role == "other":
        return ""
    while words and (words[0].lower() in _POSITIONS or words[0].lower() in ("and", "the", "with", "s", "ms", "is", "of")):
        words = words[1:]
    for start in range(len(words)):
        rest = " ".join(words[start:])
        if role_of(rest).role not in ("other", "seconds") and not (set(words_of(rest)) & _POSITIONS and len(words) - start > 2):
            return rest
    return ""


def _positions(line: str, epoch: float | None) -> dict[str, float]:
    step = _STEP.search(line)
    bare = _BARE.match(line)
    at = step[1] if step is not None else bare["step"] if bare is not None else None
    return ({"epoch": epoch} if epoch is not None else {}) | ({"step": float(at)} if at is not None else {})
