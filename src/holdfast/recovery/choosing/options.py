"""The ways to resume, as data: which checkpoint, with which settings, why, and why the others were not taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.recovery.choosing.candidates import Candidate
from holdfast.recovery.choosing.history import History
from holdfast.recovery.choosing.setbacks import Setback

Settings = dict[str, dict[str, Any]]

Kind = Literal["newest", "best", "before-change", "earlier", "fresh"]
TITLES: dict[Kind, str] = {
    "newest": "the newest clean checkpoint, settings unchanged",
    "best": "the best clean checkpoint, with a lower learning rate",
    "before-change": "the newest clean checkpoint from before the change",
    "earlier": "an earlier clean checkpoint, with a lower learning rate",
    "fresh": "a fresh start, with safe settings",
}
_LOWER, _LOWER_WITH_AVERAGES, _LOWER_AFTER_EXPLOSION = 0.75, 0.70, 0.25
_FRESH, _FRESH_AFTER_EXPLOSION = 0.25, 0.1
_CLIP = 1.0
_WARM_UP_EPOCHS, _LONGEST_WARM_UP = 5, 0.25  # of the run so far
_FEWEST_STEPS, _NEAR = 100, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to resume. `before` is where the trouble that it avoids began; None if there is none."""

    kind: Kind
    candidate: Candidate | None
    position: int | None
    settings: Settings
    because: tuple[str, ...]
    why_not: str = ""
    before: int | None = None
    folder: Path | None = None

    @property
    def title(self) -> str:
        """The kind in words."""
        return TITLES[self.kind]

    def as_row(self) -> dict[str, Any]:
        """As `--json` gives it."""
        return {
            "kind": self.kind,
            "title": self.title,
            "checkpoint": None if self.candidate is None else str(self.candidate.path),
            "step": None if self.candidate is None else self.candidate.step,
            "epoch": None if self.candidate is None else self.candidate.epoch,
            "settings": self.settings,
            "folder": None if self.folder is None else str(self.folder),
            "because": list(self.because),
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that was not taken, and why."""

    candidate: Candidate
    position: int | None
    why: str

    def as_row(self) -> dict[str, Any]:
        """As `--json` gives it."""
        candidate = self.candidate
        return {"path": str(candidate.path), "step": candidate.step, "state": candidate.verdict.state, "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to do: the recommended way, the others, and every checkpoint that was rejected."""

    recommended: Kind
    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    setbacks: tuple[Setback, ...]
    history: History
    clean: int = field(default=0)  # how many are clean

    @property
    def option(self) -> Option:
        """The recommended one."""
        return next(option for option in self.options if option.kind == self.recommended)

    @property
    def others(self) -> tuple[Option, ...]:
        """Those that were not recommended."""
        return tuple(option for option in self.options if option.kind != self.recommended)

    def as_row(self) -> dict[str, Any]:
        """As `--json` gives it."""
        metric = self.history.metric()
        judged_by = None
        if metric is not None and metric.points:
            judged_by = {"name": metric.name, "lower_is_better": metric.lower_is_better}
        return {
            "recommended": self.recommended,
            "options": [option.as_row() for option in self.options],
            "rejected": [rejected.as_row() for rejected in self.rejected],
            "trouble": [
                {
                    "code": setback.code,
                    "since": setback.begin,
                    "seen": setback.seen,
                    "until": setback.until,
                    "lasts": setback.lasts,
                    "words": setback.text,
                }
                for setback in self.setbacks
            ],
            "unit": self.history.unit,
            "metric": judged_by,
            "history": list(self.history.sources),
            "ended": self.history.end or None,
        }


def gentler(history: History, troubles: Sequence[Setback], candidate: Candidate, position: int | None) -> Settings:
    """What goes with a state from before the trouble: a lower learning rate, and after a collapse a warm-up."""
    codes = {trouble.code for trouble in troubles}
    collapsed, exploded = "metric-collapse" in codes, _exploded(history, troubles)
    factor = _LOWER_WITH_AVERAGES if collapsed and "ema" in candidate.summary.holds else _LOWER
    rate = _rate_of(candidate, history, position)
    settings: Settings = {"lr": multiply(_LOWER_AFTER_EXPLOSION if exploded else factor, rate)}
    if collapsed or exploded:
        settings |= warm_up(history)
    if exploded:
        settings["clip_norm"] = {"op": "set", "value": _CLIP}
    overflowed = any(noted.code == "scaler-collapse" for noted in history.findings)
    return settings | (_half_precision([candidate]) if overflowed else {})


def fresh(history: History, troubles: Sequence[Setback], candidates: Iterable[Candidate]) -> Settings:
    """Settings with which most trainings begin well."""
    codes = {trouble.code for trouble in troubles}
    wild = _exploded(history, troubles) or codes & {"loss-divergence", "non-finite-loss", "non-finite-weights"}
    highest = max((value for _, value in history.rates), default=None)
    lr = multiply(_FRESH_AFTER_EXPLOSION if wild else _FRESH, highest)
    return {"lr": lr, **warm_up(history), "clip_norm": {"op": "set", "value": _CLIP}, **_half_precision(candidates)}


def multiply(factor: float, rate: float | None) -> dict[str, Any]:
    """A factor on the learning rate, with the numbers where they are known."""
    change = {} if rate is None else {"was": rate, "becomes": float(f"{rate * factor:.4g}")}
    return {"op": "multiply", "value": factor, **change}


def _rate_of(candidate: Candidate, history: History, position: int | None) -> float | None:
    """The learning rate with which a checkpoint continues."""
    if candidate.rate is not None:
        return candidate.rate
    return history.rate_at(position) if position is not None else None


def warm_up(history: History) -> Settings:
    """Five epochs; where epochs are long against the run so far, a fraction of its steps."""
    if history.unit == "step" and history.last and history.epochs:
        five = _WARM_UP_EPOCHS * history.last / len(history.epochs)
        if five > _LONGEST_WARM_UP * history.last:
            return {"warmup_steps": {"op": "set", "value": max(_FEWEST_STEPS, round(history.last / 20))}}
    return {"warmup_epochs": {"op": "set", "value": _WARM_UP_EPOCHS}}


def _half_precision(candidates: Iterable[Candidate]) -> Settings:
    """bfloat16 where a gradient scaler shows that float16 was used: it has the range of float32, and needs no scaler."""
    scaled = any("scaler" in candidate.summary.holds for candidate in candidates)
    return {"dtype": {"op": "set", "value": "bfloat16"}} if scaled else {}


def _exploded(history: History, troubles: Sequence[Setback]) -> bool:
    """Whether the gradients exploded where the trouble began."""
    since = min((trouble.begin for trouble in troubles), default=None)
    steps = [noted.step for noted in history.findings if noted.code == "gradient-explosion"]
    return since is not None and any(step >= since - _NEAR for step in steps)
