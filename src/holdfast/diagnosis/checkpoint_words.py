"""Rows and findings about checkpoints as sentences: saved, kept, loaded, resumed, and whether the resume is healthy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.probe.journal import whole_number
from holdfast.probe.values import duration, number
from holdfast.probe.words import plain
from holdfast.units import size

SHOWN_HERE = ("path", "diverted_to", "tensors", "bad_tensors", "note", "suspects", "folder")
_NAMED = 3


def row_words(row: Mapping[str, Any]) -> str:
    """A row of the kind `checkpoint` in words; one of an event that this version does not know is its fields."""
    event = str(row.get("event"))
    if event == "saved":
        return f"saved {_file(row.get('path'))}{_facts(row)}"
    if event == "verified":
        return f"verified {_file(row.get('path'))}: complete and finite"
    if event == "diverted":
        return f"kept {_file(row.get('path'))}: the non-finite state was saved separately, as {_name(row.get('diverted_to'))}"
    if event == "loaded":
        return f"loaded {_file(row.get('path'))}"
    if event == "unreadable":
        return f"could not load {_file(row.get('path'))}: {plain(str(row.get('error')))}"
    if event == "set-aside":
        return f"moved {_file(row.get('path'))} to {_name(row.get('set_aside'))}"
    if event == "resumed":
        return _resumed(row)
    if event == "resume-watch":
        return _watch(row)
    fields = {name: value for name, value in row.items() if name not in ("time", "kind", "rank", "step", "event")}
    return plain(f"{event} {', '.join(f'{name} {value}' for name, value in fields.items())}").strip()


def evidence_words(evidence: Mapping[str, Any], *, brief: bool = False) -> Iterator[str]:
    """What a finding about a checkpoint says apart from its numbers."""
    if evidence.get("diverted_to"):
        yield f"{_file(evidence.get('path'))} is kept; the new state was saved as {_name(evidence['diverted_to'])}"
    elif evidence.get("path") or evidence.get("folder"):
        yield _file(evidence.get("path") or evidence.get("folder"))
    tensors, count = evidence.get("tensors"), whole_number(evidence.get("bad_tensors"))
    if isinstance(tensors, list) and tensors and not brief:
        named = ", ".join(_tensor(tensor) for tensor in tensors[:_NAMED] if isinstance(tensor, dict))
        yield f"{named} and {count - _NAMED} more" if count is not None and count > _NAMED else named
    suspects = evidence.get("suspects")
    if isinstance(suspects, list) and suspects:
        yield f"probably not restored: {', '.join(plain(str(suspect)).replace('-', ' ') for suspect in suspects)}"
    if evidence.get("note"):
        yield plain(str(evidence["note"]))


def _resumed(row: Mapping[str, Any]) -> str:
    at, before = whole_number(row.get("at")), row.get("before")
    head = "resumed" if at is None else f"resumed at step {at:,}"
    source = f" from {_file(row['path'])}" if row.get("path") else ""
    run = f" of run {plain(Path(str(before['run'])).name)}" if isinstance(before, dict) and before.get("run") else ""
    return "; ".join([f"{head}{source}{run}", *_missing_weights(row)])


def _missing_weights(row: Mapping[str, Any]) -> Iterator[str]:
    """What was not seen to be restored."""
    weights = row.get("weights")
    if isinstance(weights, dict) and weights.get("missing"):
        yield f"{weights['missing']} of {weights.get('of')} weights were missing in the checkpoint"
    if isinstance(weights, dict) and weights.get("missing_statistics"):
        yield f"{weights['missing_statistics']} running statistics were missing in the checkpoint"
    if row.get("optimizer") == "empty":
        yield "the optimizer has no state"
    for part in ("scheduler", "scaler"):
        if row.get(part) == "as new":
            yield f"the {part} was not restored"


def _watch(row: Mapping[str, Any]) -> str:
    verdict, after = str(row.get("verdict")), whole_number(row.get("after"))
    against = row.get("against")
    if verdict == "watching":
        if not isinstance(against, dict):
            return "no earlier run was found: the first steps are checked for an explosion only"
        loss = against.get("loss")
        level = f", where the loss was {number(loss)}" if isinstance(loss, (int, float)) else ""
        run = f"run {plain(str(against.get('run')))} at its step {against.get('step')}"
        return f"comparing the first {whole_number(row.get('steps'))} steps with {run}{level}"
    words = "too few steps to judge the resume" if verdict == "unknown" else f"verdict on the resume: {plain(verdict)}"
    words += f", after {after} steps" if after is not None else ""
    if not row.get("over") or verdict not in ("warning", "explosion"):
        return words
    if not isinstance(row.get("loss"), (int, float)):
        return f"{words}; the loss {'recovered' if row.get('came_back') else 'did not recover'}"
    usual = f" from {number(against['loss'])}" if isinstance(against, dict) and against.get("loss") is not None else ""
    return f"{words}; the loss rose{usual} to {number(row['loss'])}, and {'recovered' if row.get('came_back') else 'stays high'}"


def _facts(row: Mapping[str, Any]) -> str:
    facts = [size(row["size"])] if isinstance(row.get("size"), int) else []
    if isinstance(row.get("seconds"), (int, float)) and row["seconds"] >= 0.05:
        facts.append(f"in {duration(float(row['seconds']))}")
    text = f" ({' '.join(facts)})" if facts else ""
    if (count := whole_number(row.get("count"))) is not None and count > 1:
        text += f", the last of {count} saves"
    if others := whole_number(row.get("and_others")):
        text += f", and {others} other files"
    if bad := whole_number(row.get("non_finite")):
        text += f", {bad} tensors non-finite"
    return text


def _tensor(one: Mapping[str, Any]) -> str:
    counts = [f"{one[kind]} {word}" for kind, word in (("nan", "NaN"), ("inf", "Inf")) if one.get(kind)]
    of = one.get("of", one.get("count"))
    return plain(f"{one.get('name')} ({' and '.join(counts)}{f' of {of}' if of else ''})")


def _file(path: Any) -> str:
    """A path relative to the current folder, if it is inside."""
    whole = Path(str(path))
    try:
        return plain(str(whole.relative_to(Path.cwd())))
    except (ValueError, OSError):
        return plain(str(whole))


def _name(path: Any) -> str:
    return plain(Path(str(path)).name)
