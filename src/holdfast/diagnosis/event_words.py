"""Events of the journal as sentences, with their numbers: the same for `journal`, `tail` and the screen.

A row that another version or a user's own policy wrote never raises an error: unknown fields are shown as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.diagnosis import checkpoint_words, control_words
from holdfast.probe.journal import Event, Folding
from holdfast.probe.values import for_json, number
from holdfast.probe.words import SILENT, action_words, finding_words, plain
from holdfast.units import DASH

STYLES = {
    "critical": "bold red",
    "refused": "bold red",
    "warning": "yellow",
    "posted": "cyan",
    "done": "green",
    "info": "blue",
    "diagnosis": "magenta",
    "change": "blue",
    "eval": "blue",
    "healthy": "green",
    "explosion": "bold red",
    "checkpoint": "dim",
}
_MARKS = {"finding": "!", "action": "*", "diagnosis": "?", "change": "~", "eval": "~", "checkpoint": "+"}
_LIST, _HISTORY, _TEXT = 4, 3, 80
_IN_ORDER = ("loss", "norm", "lr")
_SHOWN_SEPARATELY = (
    *("parameter", "module", "bad_parameters", "input", "batch", "what", "error", "so_far", "words", "began_in"),
    *checkpoint_words.SHOWN_HERE,
)


def word(event: Event) -> str:
    """The one word that says how to take it: a finding's severity, an action's state, else its kind."""
    verdict = event.row.get("verdict") if event.kind == "checkpoint" else None
    return plain(str(event.severity or event.state or (verdict if verdict != "watching" else None) or event.kind))


def style(event: Event) -> str:
    """The colour of that word."""
    return STYLES.get(word(event), "")


def sentence(event: Event, *, brief: bool = False) -> str:
    """The whole event in words; `brief` leaves out what only an investigation needs."""
    if event.kind == "finding":
        return _finding(event, brief=brief)
    if event.kind == "action":
        return _action(event)
    if event.kind == "diagnosis":
        return _diagnosis(event)
    if event.kind == "eval" or (event.kind == "change" and "do" in event.row):
        return control_words.row_words(event.row)
    return checkpoint_words.row_words(event.row) if event.kind == "checkpoint" else _other(event)


def live_line(event: Event, reflex: Event | None = None, *, ranks: int = 1) -> str:
    """The line that `tail` writes; `reflex` is what was done about a finding on the spot."""
    at = f"step {event.step:,}  " if event.step is not None else ""
    severity = "" if event.kind != "finding" or event.severity == "critical" else f"{word(event)}: "
    whom = rank_words(event, ranks)
    text = _with_reflex(event, reflex) if reflex is not None else sentence(event, brief=True)
    return f"{_MARKS.get(event.kind, '-')} {at}{severity}{text}{f'  [{whom}]' if whom else ''}"


def shown_live(event: Event) -> bool:
    """Whether `tail` shows it. A diagnosis shows in its action, a worse verdict in its finding."""
    verdict = event.kind == "checkpoint" and event.row.get("verdict") in ("warning", "explosion") and not event.row.get("over")
    return event.kind != "diagnosis" and not verdict


def with_reflexes(events: Sequence[Event]) -> Iterator[tuple[Event, Event | None]]:
    """Events, with what was done on the spot beside the finding that it was done for."""
    reflexes = [one for one in events if one.kind == "action" and one.row.get("number") is None and one.state == "done"]
    taken: dict[int, Event] = {}
    for event in events:
        if event.kind == "finding":
            fits = (one for one in reflexes if id(one) not in taken and _on_the_spot(one, event))
            if (reflex := next(fits, None)) is not None:
                taken[id(reflex)] = event
    joined = {id(finding): reflex for reflex in reflexes if (finding := taken.get(id(reflex))) is not None}
    for event in events:
        if id(event) not in taken:
            yield event, joined.get(id(event))


def rank_words(event: Event, ranks: int) -> str:
    """Whom it concerns, in a run of several ranks."""
    if ranks < 2 or not event.ranks:
        return ""
    return f"rank {next(iter(event.ranks))}" if len(event.ranks) == 1 else f"{len(event.ranks)} ranks"


def step_words(event: Event) -> str:
    """The step, if it has one."""
    return f"step {event.step:,}" if event.step is not None else ""


def _on_the_spot(action: Event, finding: Event) -> bool:
    return action.step is not None and action.step == finding.step and action.row.get("because") in (finding.code, None)


def _finding(event: Event, *, brief: bool) -> str:
    evidence = event.evidence
    if "say" in evidence or "ended" in evidence:
        texts = [str(evidence[name]).rstrip(".") for name in ("say", "ended", "error") if evidence.get(name)]
        return f"{_head(event)}: {plain('; '.join(texts))}"
    if (words := _in_words(event)) is not None:
        return f"{_head(event)}: {words}"
    figures = ", ".join(_measurements(evidence, brief=brief))
    parts = [*([figures] if figures else []), *checkpoint_words.evidence_words(evidence, brief=brief)]
    if event.code == "non-finite-input":
        parts.append(value(evidence.get("input")))
    elif not brief:
        parts += _apart(evidence)
    parts += _batch(evidence)[: 1 if brief else None]
    if "what" in evidence or "error" in evidence:
        parts.insert(0, ": ".join(value(evidence[name]) for name in ("what", "error") if evidence.get(name)))
    if event.differs and parts and not brief:
        parts.append(f"numbers of rank {value(event.row.get('rank'))}")
    return f"{_head(event)}: {'; '.join(parts)}" if parts else _head(event)


def _in_words(event: Event) -> str | None:
    """The sentence of `holdfast diagnose`; None if there is none, or its evidence is missing."""
    from holdfast.diagnosis.curve_sentences import sentence_of

    if event.code in ("checkpoint-torn", "checkpoint-non-finite"):  # `checkpoint_words` has more to say
        return None
    words = sentence_of(event.code, event.step, event.evidence)
    return None if words is None else plain(words)


def _with_reflex(event: Event, reflex: Event) -> str:
    batch = "".join(f" ({part})" for part in _batch(event.evidence)[:1])
    return f"{_head(event)}: {done_words(reflex)}{batch}"


def _head(event: Event) -> str:
    """What was found and where; the code behind it, by which it can be looked up, unless the words are the code."""
    words = finding_words(event.code)
    code = "" if words.replace(" ", "-") == event.code else f" [{plain(event.code)}]"
    place = event.evidence.get("parameter") or event.evidence.get("module")
    return f"{words}{f' in {value(place)}' if place else ''}{code}"


def _measurements(evidence: Mapping[str, Any], *, brief: bool) -> Iterator[str]:
    names = [*(name for name in _IN_ORDER if name in evidence), *(name for name in evidence if name not in _IN_ORDER)]
    for name in names:
        newest, history = evidence[name], evidence.get(f"{name}_before")
        if (
            name in _SHOWN_SEPARATELY
            or newest is None
            or _history_of(name, evidence)
            or (brief and isinstance(newest, (list, dict)))
        ):
            continue
        label, path = plain(str(name)).replace("_", " "), [] if brief or history is None else history
        path = path[-_HISTORY:] if isinstance(path, list) else [path]
        if isinstance(newest, bool):
            yield label if newest else f"not {label}"
        else:
            yield f"{label} {' → '.join(map(value, [*path, newest]))}"


def _history_of(name: str, evidence: Mapping[str, Any]) -> bool:
    """Whether it is the history of another value: `loss_before` of `loss`."""
    return str(name).endswith("_before") and str(name).removesuffix("_before") in evidence


def _apart(evidence: Mapping[str, Any]) -> Iterator[str]:
    count = evidence.get("bad_parameters")
    if isinstance(count, int) and count > 1:
        yield f"{count:,} parameters are not finite"
    if evidence.get("so_far") is not None:
        yield f"{value(evidence['so_far'])} of these so far"
    finiteness = evidence.get("input")
    if finiteness is not None:
        yield f"input {value(finiteness)}" if finiteness in ("finite", "unknown") else f"input: {value(finiteness)}"


def _batch(evidence: Mapping[str, Any]) -> list[str]:
    """Which batch: the indices if they are known, and the file that holds a copy."""
    batch = evidence.get("batch")
    if not isinstance(batch, dict):
        return [f"batch {value(batch)}"] if batch else []
    parts = [f"bad samples of the data set: {value(batch['bad_samples'])}"] if batch.get("bad_samples") else []
    if batch.get("indices"):
        parts.append(f"batch indices {value(batch['indices'])}")
    return [*parts, f"batch saved as {value(batch['file'])}"] if batch.get("file") else parts


def _action(event: Event) -> str:
    because = event.row.get("because")
    reason = f", because {value(because)}" if because else ""
    detail = event.row.get("detail")
    outcome = f": {value(detail)}" if event.state == "refused" and detail else f" ({value(detail)})" if detail else ""
    return f"{done_words(event)}{reason}{outcome}{_disagreement(event)}"


def done_words(event: Event) -> str:
    """What is done, or to be done, with its settings."""
    words = action_words(event.code)
    head = {"done": words.done, "posted": f"will {words.to_do}", "refused": f"could not {words.to_do}"}.get(
        event.state, words.done
    )
    settings, details = event.settings, ""
    if settings.get("to") == "disk":  # which checkpoint that was, is known afterwards
        settings = {**settings, "to": event.row.get("to", "of a checkpoint on disk")}
    for name, text in words.more.items():
        if settings.get(name) is not None and (event.code, name, settings[name]) not in SILENT:
            details += text.format(value(settings[name]))
    for name in settings:
        if name not in words.more and (event.code, name, settings[name]) not in SILENT:
            details += f", {plain(str(name)).replace('_', ' ')} {value(settings[name])}"
    return f"{head}{details}"


def _disagreement(event: Event) -> str:
    """Ranks that did not do the same."""
    by_rank = {rank: state for rank, state in event.states.items() if rank is not None}
    if len(set(by_rank.values())) < 2:
        return ""
    done = sorted(rank for rank, state in by_rank.items() if state == "done")
    return f"; done on {'rank' if len(done) == 1 else 'ranks'} {value(done)}" if done else ""


def _diagnosis(event: Event) -> str:
    causes, findings = _names(event.row.get("causes")), _names(event.row.get("findings"))
    onset = event.row.get("onset")
    of = (f" of {', '.join(findings[:3])}" if findings else "") + (f" since step {value(onset)}" if onset is not None else "")
    if not causes:
        return f"no known cause{of}"
    others = f" (or {', '.join(causes[1:3])})" if causes[1:] else ""
    return f"likely cause{of}: {causes[0]}{others}"


def _names(entries: Any) -> list[str]:
    """Codes, from a list of codes or of objects that hold one."""
    if not isinstance(entries, list):
        return [value(entries)] if entries else []
    return [value(entry.get("code", entry) if isinstance(entry, dict) else entry) for entry in entries]


def _other(event: Event) -> str:
    """A change, or a row of a kind that this version does not know: its fields."""
    row = event.row
    head = value(row["what"]) if row.get("what") else ""
    shown = ("time", "kind", "step", "rank", "state", "what", "part", "number")
    fields = ", ".join(f"{plain(str(name)).replace('_', ' ')} {value(row[name])}" for name in row if name not in shown)
    return ": ".join(part for part in (head, fields) if part) or event.kind


def row_for_json(row: dict[str, Any]) -> dict[str, Any]:
    """An entry as it was written, and its words."""
    content: dict[str, Any] = for_json({**row, "words": sentence(Folding([row]).events[0])})
    return content


def value(content: Any) -> str:
    """Any value of a row, short and on one line; of a list the first few."""
    if content is None:
        return DASH
    if isinstance(content, (int, float)) and not isinstance(content, bool):
        return number(content)
    if isinstance(content, (list, tuple)):
        return ", ".join([value(one) for one in content[:_LIST]] + ["…"] * (len(content) > _LIST))
    text = plain(content if isinstance(content, str) else json.dumps(content, default=str, ensure_ascii=False))
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
