"""Bring the weights of two sides together: what fits, what is missing, what nobody asked for, what has another shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from holdfast.checkpoints.formats.files import few
from holdfast.matching.renames import COUNTERS, Rename, Shape, find_rename, same_shape
from holdfast.matching.sides import Side, Weight, modules_of
from holdfast.units import count

Weights = Mapping[str, Weight]
REBUILT = re.compile(
    r"(^|\.)(num_batches_tracked|position_ids|inv_freq|masked_bias|relative_position_index|attn_mask|causal_mask)$"
)
_KINDS = {"bfloat": "float", "float": "float", "half": "float", "uint": "int", "int": "int", "complex": "complex"}
_ALIKE = ({"bool", "uint8"},)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """How the weights of two sides go together. Names are those of the other side, but for `unexpected`."""

    rename: Rename
    pairs: dict[str, str]  # of the file: of the model; all of equal shape and kind
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    kinds: dict[str, tuple[str, str]] = field(default_factory=dict)  # dtypes that cannot stand for each other
    dtypes: dict[str, tuple[str, str]] = field(default_factory=dict)  # dtypes that are converted
    notes: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether every weight finds its place, by a rule that is safe."""
        return self.rename.is_safe and not (self.missing or self.unexpected or self.shapes or self.kinds)


def match(
    saved: Weights,
    other: Side,
    *,
    leave_out: Sequence[str] = (),
    only: Sequence[str] | None = None,
    strict: bool = True,
    part: str = "",
) -> Matched:
    """Bring together what a file holds with what the other side wants.

    `leave_out` and `only` name modules or weights of the other side, or patterns (`*.bias`). Without `strict`, what is missing
    on either side is no matter; shapes always are. `part` names the only module of the file that is looked at.
    """
    saved = {name: weight for name, weight in saved.items() if not part or covers(part, name)}
    wanted = other.weights
    rename = find_rename(
        {name: weight.shape for name, weight in saved.items()}, {name: weight.shape for name, weight in wanted.items()}
    )
    chosen = {name: there for name, there in rename.names.items() if _is_chosen(there, leave_out, only)}
    pairs = {name: there for name, there in chosen.items() if there in wanted}
    served = set(pairs.values())
    matched = Matched(rename=rename, pairs={})
    for name, there in pairs.items():
        _put_together(matched, name, there, saved[name], wanted[there])
    if strict:
        missing = [name for name in wanted if name not in served and _is_chosen(name, leave_out, only)]
        matched.missing.extend(_without_known(missing, wanted, served, matched.notes))
        unexpected = [name for name in chosen if name not in pairs] if only is None else []
        matched.unexpected.extend(_unasked(unexpected, saved, pairs, rename, other, matched.notes))
    return matched


def _put_together(matched: Matched, name: str, there: str, saved: Weight, wanted: Weight) -> None:
    if not same_shape(saved.shape, wanted.shape):
        matched.shapes[there] = (saved.shape, wanted.shape)
    elif _kind(saved.dtype) != _kind(wanted.dtype) and {saved.dtype, wanted.dtype} not in _ALIKE:
        matched.kinds[there] = (saved.dtype, wanted.dtype)
    else:
        matched.pairs[name] = there
        if saved.dtype != wanted.dtype:
            matched.dtypes[there] = (saved.dtype, wanted.dtype)


def _kind(dtype: str) -> str:
    """float, int, complex, bool: kinds that cannot stand for each other."""
    return next((kind for start, kind in _KINDS.items() if dtype.startswith(start)), dtype)


def _is_chosen(name: str, leave_out: Sequence[str], only: Sequence[str] | None) -> bool:
    if any(covers(pattern, name) for pattern in leave_out):
        return False
    return only is None or any(covers(pattern, name) for pattern in only)


def covers(pattern: str, name: str) -> bool:
    """Whether a module's or weight's name, or a pattern, covers a weight."""
    pattern = pattern.rstrip(".")
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def _without_known(missing: Sequence[str], wanted: Weights, served: set[str], notes: list[str]) -> list[str]:
    """What is really missing: not the second name of a tensor that is there, nor what the model makes by itself."""
    tied = {wanted[name].same_as: name for name in served if wanted[name].same_as is not None}
    modules = _modules_of(served) if missing else set()
    rest, second, made = [], [], []
    for name in missing:
        if wanted[name].same_as in tied:
            second.append(f"{name} (the same as {tied[wanted[name].same_as]})")
        elif REBUILT.search(name) and wanted[name].is_buffer is not False and modules_of(name)[-1] in modules:
            made.append(name)
        else:
            rest.append(name)
    if second:
        notes.append(f"saved under one of its names: {few(second)}")
    if made:
        notes.append(f"{count(len(made), 'buffer')} not in the file, kept as the model made {_it(made)}: {few(made)}")
    return rest


def _unasked(
    unexpected: Sequence[str], saved: Weights, pairs: Mapping[str, str], rename: Rename, other: Side, notes: list[str]
) -> list[str]:
    """What nobody asked for: not the second name of a tensor that is used, nor what the model makes by itself, nor counters."""
    used = {saved[name].same_as for name in pairs if saved[name].same_as is not None}
    modules = _modules_of(pairs) if unexpected else set()
    rest, second, made = [], [], []
    for name in unexpected:
        new = rename.names[name]
        if saved[name].same_as is not None and saved[name].same_as in used:
            second.append(name)
        elif (
            name.rpartition(".")[2] in COUNTERS
            or (REBUILT.search(name) and modules_of(name)[-1] in modules)
            or (new in other.rebuilt and same_shape(saved[name].shape, other.rebuilt[new]))
        ):
            made.append(name)
        else:
            rest.append(name)
    if second:
        notes.append(f"saved under a second name: {few(second)}")
    if made:
        notes.append(f"{count(len(made), 'buffer')} in the file that the model creates itself, ignored: {few(made)}")
    return rest


def _modules_of(names: Iterable[str]) -> set[str]:
    return {module for name in names for module in modules_of(name)}


def _it(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"
