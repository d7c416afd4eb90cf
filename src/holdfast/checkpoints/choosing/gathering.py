"""Candidates from checkpoints that were opened and verified."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.checkpoints.choosing.candidates import Candidate
from holdfast.checkpoints.contents import Contents, TensorInfo, Trouble, worst
from holdfast.checkpoints.parts import parts_of
from holdfast.checkpoints.summary import scalar_of, summarise
from holdfast.checkpoints.verify import Verdict

_RANK = re.compile(r"rank-(\d+)$")


def gather(looked_at: Iterable[tuple[Contents, Verdict]], noted: Mapping[Path, int] | None = None) -> list[Candidate]:
    """Candidates from what was opened and verified. `noted` are steps at which some were seen being written, by resolved path.

    What several ranks wrote each for itself is one checkpoint.
    """
    found = [_candidate(contents, verdict, noted or {}) for contents, verdict in looked_at]
    best = _marked_best([one.path for one in found])
    return _joined([replace(one, marked_best=one.path.resolve() in best) for one in found])


def _candidate(contents: Contents, verdict: Verdict, noted: Mapping[Path, int]) -> Candidate:
    manifest = _manifest_of(contents)
    return Candidate(
        path=contents.path,
        verdict=verdict,
        summary=summarise(contents),
        producer=contents.producer,
        modified=contents.modified,
        noted_step=noted.get(contents.path.resolve()),
        rate=_rate_in(contents),
        number=number if isinstance(number := manifest.get("number"), int) else None,
    )


def _rate_in(contents: Contents) -> float | None:
    """The learning rate that the checkpoint brings back: that of the first group of its first optimizer."""
    for part in parts_of(contents.tree):
        if part.role != "optimizer":
            continue
        value = part.value[0] if isinstance(part.value, (list, tuple)) and part.value else part.value
        groups = (value.get("param_groups") or value.get("groups")) if isinstance(value, dict) else None
        group = groups[0] if isinstance(groups, list) and groups and isinstance(groups[0], dict) else {}
        own = group.get("settings")
        rate = (own if isinstance(own, dict) else group).get("lr")
        rate = scalar_of(contents, rate) if isinstance(rate, TensorInfo) and rate.count == 1 else rate
        if isinstance(rate, (int, float)) and 0 < rate < math.inf:
            return float(rate)
    return None


def _manifest_of(contents: Contents) -> dict[str, Any]:
    """What Holdfast's own store writes beside a checkpoint; empty for anybody else's."""
    manifest = contents.tree.get("manifest") if contents.producer == "holdfast" and isinstance(contents.tree, dict) else None
    return manifest if isinstance(manifest, dict) else {}


def _marked_best(paths: Sequence[Path]) -> set[Path]:
    """The ones that whoever wrote them calls the best: Holdfast in best.json, a Trainer in its trainer_state.json."""
    found = set()
    for folder in dict.fromkeys(path.parent for path in paths):
        name = _read(folder / "best.json").get("checkpoint")
        found |= {(folder / name).resolve()} if isinstance(name, str) else set()
    states = [(state, path) for path in paths if (state := _read(path / "trainer_state.json"))]
    for state, path in sorted(states, key=lambda one: _whole(one[0].get("global_step")))[-1:]:
        name = state.get("best_model_checkpoint")
        found |= {(path.parent / Path(name).name).resolve()} if isinstance(name, str) and name else set()
    return found


def _joined(found: Sequence[Candidate]) -> list[Candidate]:
    """Ranks with sharded weights write each their part: `step-9` of rank 0, `rank-1/step-9` of the next. One is the whole."""
    others: dict[Path, dict[str, Candidate]] = {}
    for one in found:
        if _RANK.match(one.path.parent.name):
            others.setdefault(one.path.parent.parent / one.path.name, {})[one.path.parent.name] = one
    first = {one.path: one for one in found if not _RANK.match(one.path.parent.name)}
    ranks = {(whole.parent, rank) for whole, parts in others.items() for rank in parts}
    joined = []
    for path, one in first.items():
        wanted = sorted(rank for folder, rank in ranks if folder == path.parent)
        joined.append(_with_parts(one, wanted, others.get(path, {})))
    alone = [part for whole, parts in others.items() if whole not in first for part in parts.values()]
    return [*joined, *(_lacking(one, "rank 0") for one in alone)]


def _with_parts(one: Candidate, ranks: Sequence[str], parts: Mapping[str, Candidate]) -> Candidate:
    """Rank 0's part with the verdicts of the others."""
    for rank in ranks:
        part = parts.get(rank)
        if part is None:
            return _lacking(one, rank.replace("-", " "))
        if not part.clean:
            verdict = replace(
                one.verdict,
                state=worst((one.verdict.state, part.verdict.state)),
                troubles=[*one.verdict.troubles, *part.verdict.troubles],
                bad=[*one.verdict.bad, *part.verdict.bad],
            )
            one = replace(one, verdict=verdict)
    return one


def _lacking(one: Candidate, whose: str) -> Candidate:
    trouble = Trouble("torn", f"The part of {whose} is missing.", "use an older one")
    state = worst((one.verdict.state, trouble.state))
    return replace(one, verdict=replace(one.verdict, state=state, troubles=[*one.verdict.troubles, trouble]))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else -1
