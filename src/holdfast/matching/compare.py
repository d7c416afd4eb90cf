"""Compare a checkpoint with a model, or with another checkpoint: does it fit, what differs, what does that mean, what to type.

    side_of(contents) | side_of_model(model)  ->  Side
    compare(checkpoint, other)                ->  Comparison

Pure: it reads names, shapes and plain values, no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from holdfast.checkpoints.formats.files import few
from holdfast.matching import presence, shapes
from holdfast.matching.renames import Rename
from holdfast.matching.settings import setting_differences, training_differences
from holdfast.matching.sides import Difference, Labels, Side, as_tuple, grouped, unfit
from holdfast.matching.weights import Matched, Weights, match
from holdfast.units import count

Which = Literal["model", "ema"]
_PARTS_LISTED = 6  # in a call
_ALONE_LEFT_OUT = (
    *("head", "missing", "missing-parts", "unexpected", "unexpected-parts", "input", "positions", "vocabulary", "shape"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was found. `differences` come in the order in which they matter; each says what it stops."""

    checkpoint: Side
    other: Side
    labels: Labels
    which: Which
    matched: Matched
    differences: list[Difference]
    notes: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether nothing stops it: as it is, or with a rename that is safe."""
        return not any(difference.stops for difference in self.differences)

    @property
    def weights_fit(self) -> bool:
        """Whether the weights can be put in place, whatever else differs."""
        return not any(difference.stops == "weights" for difference in self.differences)

    @property
    def verdict(self) -> str:
        """One line: fits, fits after a rename, or the first reason why it does not."""
        stopping = [difference for difference in self.differences if difference.stops]
        renamed = f" after {self.matched.rename.words}" if self.matched.rename.words else ""
        if not stopping:
            return f"fits{renamed}" if renamed else "fits as it is"
        more = f" (and {count(len(stopping) - 1, 'other reason')})" if len(stopping) > 1 else ""
        if stopping[0].stops == "weights":
            return f"does not fit: {stopping[0].words}{more}"
        return f"the weights fit{renamed}, but {stopping[0].words}{more}"

    @property
    def fix(self) -> str:
        """What to do: of what stops it, the first that says."""
        return next((difference.fix for difference in self.differences if difference.stops and difference.fix), "")

    def as_row(self) -> dict[str, Any]:
        """For --json."""
        matched = self.matched
        return {
            "checkpoint": self.checkpoint.name,
            "with": self.other.name,
            "fits": self.fits,
            "verdict": self.verdict,
            "which": self.which,
            "rename": {"words": matched.rename.words, "python": matched.rename.python, "safe": matched.rename.is_safe},
            "fitting": len(matched.pairs),
            "missing": matched.missing,
            "unexpected": matched.unexpected,
            "shapes": {name: [list(here), list(other)] for name, (here, other) in matched.shapes.items()},
            "dtypes": {name: list(pair) for name, pair in (matched.dtypes | matched.kinds).items()},
            "differences": [difference.as_row() for difference in self.differences],
            "notes": self.notes,
            "calls": self.calls,
            "fix": self.fix or None,
        }


def compare(
    side: Side,
    other: Side,
    *,
    which: Which | None = None,
    leave_out: Sequence[str] = (),
    only: Sequence[str] | None = None,
    strict: bool = True,
    part: str = "",
) -> Comparison:
    """Compare a checkpoint with what it is to be loaded into.

    Without `which`, averaged weights are taken where it holds no others; for the rest see `match`.
    """
    if not other.weights and other.averages:
        other = replace(other, weights=other.averages)
    chosen: Which = which or ("model" if side.weights or not side.averages else "ema")
    saved = side.weights if chosen == "model" else side.averages
    labels = labels_of(side, other)
    matched = match(saved, other, leave_out=leave_out, only=only, strict=strict, part=part)
    differences = [*_troubles(side, labels.one), *_troubles(other, labels.other)]
    differences += [*_weights(matched, saved, side, other, chosen, labels)]
    differences += training_differences(side, other, labels)
    differences += setting_differences(side.settings, other.settings, labels, tell_lone=not other.is_model)
    comparison = Comparison(
        checkpoint=side, other=other, labels=labels, which=chosen, matched=matched, differences=differences,
        notes=[*matched.notes, *_notes(matched, side, other, labels)],
    )  # fmt: skip
    comparison.calls.extend(_calls(comparison, tuple(leave_out), part))
    return comparison


def labels_of(side: Side, other: Side) -> Labels:
    """The checkpoint and the model; of two checkpoints their names, as short as they can be told apart."""
    if other.is_model:
        return Labels("the checkpoint", "the model")
    here, there = Path(side.name).parts, Path(other.name).parts
    length = next((n for n in range(1, max(len(here), len(there)) + 1) if here[-n:] != there[-n:]), 1)
    return Labels("/".join(here[-length:]), "/".join(there[-length:]))


def _troubles(side: Side, label: str) -> Iterator[Difference]:
    """The first thing that is wrong with the file; the rest follows from it."""
    for trouble in side.troubles[:1]:
        message = f"{label} is {trouble.state}: {trouble.text[:1].lower()}{trouble.text[1:].rstrip('.')}"
        yield unfit(trouble.state, message, trouble.fix)


def _weights(matched: Matched, saved: Weights, side: Side, other: Side, which: Which, labels: Labels) -> Iterator[Difference]:
    if not saved or not other.weights:
        yield _no_weights(side, which, labels.one) if not saved else _no_weights(other, "model", labels.other)
        return
    everything = presence.coverage(matched.rename.pairs, len(saved), len(other.weights), labels)
    if everything is not None:
        yield everything
    elif not matched.rename.is_safe:
        rules = " or ".join((matched.rename.words, *matched.rename.others[:2]))
        message = f"there is more than one way to bring the names together: {rules}"
        fix = f'say which are meant: part="{matched.rename.removed.rstrip(".")}"'
        yield unfit("ambiguous", message, fix)
    else:
        yield from _parts(matched, other, labels)
    if matched.kinds:
        name, (here, there) = next(iter(matched.kinds.items()))
        message = f"{count(len(matched.kinds), 'weight')} of a different type: {name} is {labels.both(here, there)}"
        yield unfit("dtype", message, "quantise or convert both in the same way", matched.kinds)


def _parts(matched: Matched, other: Side, labels: Labels) -> Iterator[Difference]:
    """What the weights that do not find their place mean; another depth first, as shapes may follow from it."""
    names = matched.rename.names
    lone = presence.Lone(matched.missing, [names[name] for name in matched.unexpected], list(names.values()), list(other.weights))
    differences = presence.meanings(lone, labels)
    yield from (difference for difference in differences if difference.kind == "depth")
    yield from shapes.meanings(matched.shapes, other.weights, len(matched.pairs), labels)
    yield from (difference for difference in differences if difference.kind != "depth")


def _no_weights(side: Side, which: Which, label: str) -> Difference:
    if which == "model" and side.averages:
        message, fix = f"{label} holds averaged (EMA) weights only", 'load those: which="ema"'
    elif which == "ema" and side.weights:
        message, fix = f"{label} holds no averaged (EMA) weights", 'load the model\'s own: which="model"'
    else:
        message, fix = f"{label} holds no weights of a model", "see what it holds: holdfast checkpoints inspect"
    return unfit("no-weights", message, fix)


def _notes(matched: Matched, side: Side, other: Side, labels: Labels) -> Iterator[str]:
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, pair in matched.dtypes.items():
        kinds.setdefault(pair, []).append(name)
    for (here, there), names in kinds.items():
        yield f"{count(len(names), 'weight')} {labels.both(here, there)}: converted when loaded"
    if side.averages and not side.weights:
        yield f"{labels.one} holds averaged (EMA) weights only"
    if not other.is_model:
        yield from _progress(side, other, labels)
    elif "optimizer" not in side.holds:
        yield f"{labels.one} holds weights only: a training starts from them with a fresh optimizer and schedule"
    yield from _versions(side, other, labels)


def _progress(side: Side, other: Side, labels: Labels) -> Iterator[str]:
    for what, here, there in (("step", side.step, other.step), ("epoch", side.epoch, other.epoch)):
        if here is not None and there is not None and here != there:
            yield f"{what} {labels.both(f'{here:,}', f'{there:,}')}"
    metrics = [
        f"{name} {labels.both(f'{value:.4g}', f'{other.metrics[name]:.4g}')}"
        for name, value in side.metrics.items()
        if name in other.metrics and value != other.metrics[name]
    ]
    if metrics:
        yield few(metrics)


def _versions(side: Side, other: Side, labels: Labels) -> Iterator[str]:
    for name in side.versions.keys() & other.versions.keys():
        here, there = side.versions[name], other.versions[name]
        if here.split(".")[:2] != there.split(".")[:2]:
            yield f"{name} {labels.both(here, there)}"


def _calls(comparison: Comparison, leave_out: tuple[str, ...], part: str) -> Iterator[str]:
    """What to type: if it fits all of it; if only some parts do not, without those."""
    if comparison.weights_fit and comparison.matched.pairs:
        exact = set(comparison.matched.rename.names.values()) == set(comparison.other.weights)
        line = (
            torch_call(comparison.checkpoint, comparison.matched.rename)
            if exact and comparison.which == "model" and not leave_out
            else None
        )
        yield from [line] if line else []
        yield own_call(comparison.checkpoint, which=comparison.which, leave_out=leave_out, part=part)
        return
    stopping = [difference for difference in comparison.differences if difference.stops == "weights"]
    if [difference.kind for difference in stopping] == ["ambiguous"]:
        yield own_call(comparison.checkpoint, which=comparison.which, part=comparison.matched.rename.removed.rstrip("."))
    elif comparison.matched.pairs and stopping and all(difference.kind in _ALONE_LEFT_OUT for difference in stopping):
        among = {*comparison.other.weights, *comparison.matched.rename.names.values()}
        groups = grouped(dict.fromkeys(name for difference in stopping for name in difference.names), among)
        parts = [group.label for group in groups]
        if len(parts) <= _PARTS_LISTED:
            yield own_call(comparison.checkpoint, which=comparison.which, leave_out=(*leave_out, *parts), part=part)


def own_call(side: Side, *, which: str = "model", leave_out: Sequence[str] = (), part: str = "") -> str:
    """`holdfast.load(model, "PATH")`: reads every format, and runs nothing that is inside."""
    more = f', which="{which}"' if which != "model" else ""
    if part:
        more += f', part="{part}"'
    if leave_out:
        more += f", leave_out={as_tuple(leave_out, len(leave_out))}"
    return f'holdfast.load(model, "{side.name}"{more})'


def torch_call(side: Side, rename: Rename) -> str | None:
    """The same without Holdfast, where one line does it."""
    read = _reading(side)
    if read is None or rename.python is None or not rename.is_safe:
        return None
    if not rename.is_needed:
        return f"model.load_state_dict({read})"
    return f"model.load_state_dict({{{rename.python}: v for k, v in {read}.items()}})"


def _reading(side: Side) -> str | None:
    if side.format == "safetensors":
        return f'safetensors.torch.load_file("{side.name}")'
    if not side.format.startswith("torch ") or side.weights_at is None or not side.is_plain:
        return None
    keys = "".join(f'["{key}"]' for key in side.weights_at)
    return f'torch.load("{side.name}", weights_only=True){keys}'
