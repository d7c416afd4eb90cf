"""Names that differ only by how a model was wrapped when it was saved: find the one rule that makes them fit.

    module.            DataParallel, DistributedDataParallel, AveragedModel        _orig_mod.      torch.compile
    model. net. …      the attribute of a LightningModule, or any other            transformer.    base models of Hugging Face
    a._orig_mod.b      a part that was compiled, sharded or checkpointed itself    gamma, beta     LayerNorm of old files

A rule goes for the whole file, names no two weights alike, and is told in words and as Python. What it brings together must
agree in shape: names are never guessed from shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
COUNTERS = ("n_averaged",)  # of an averaged model; no weight
_AVERAGED = re.compile(r"(^|[._])(ema|averaged?|swa|shadow)([._]|$)")
_DEEPEST = 4  # parts of a prefix
_AT_MOST = 24  # pairs of prefixes that are tried
_ASKED = 400  # names that are asked for them
_OLD_NORM = re.compile(r"(^|\.)(gamma|beta)$")
_WEIGHT_NORM = re.compile(r"(^|\.)parametrizations\.(\w+)\.original([01])$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A rule, and what it brings together: names of the file with names of the model."""

    names: dict[str, str]  # of every weight of the file: its name under the rule
    pairs: dict[str, str]  # of those that the model has
    words: str = ""  # "removing the prefix module."; nothing: the names are as they are
    python: str | None = "k"  # the new name of `k`; None where one expression does not do it
    others: tuple[str, ...] = ()  # other rules that fit as well, and give other weights
    removed: str = ""  # the prefix that goes

    @property
    def is_needed(self) -> bool:
        """Whether any name changes."""
        return any(name != there for name, there in self.pairs.items())

    @property
    def is_safe(self) -> bool:
        """Whether it is the only rule that fits so well."""
        return not self.others


@dataclass(frozen=True, slots=True)
class _Rule:
    """How names become comparable on both sides, and the prefix that goes or comes between them."""

    level: int
    removed: str
    added: str

    @property
    def effort(self) -> tuple[int, int, int]:
        return (self.level, bool(self.removed) + bool(self.added), len(self.removed) + len(self.added))

    @property
    def is_of_averages(self) -> bool:
        return bool(_AVERAGED.search(self.removed) or _AVERAGED.search(self.added))


def find_rename(source: Shapes, target: Shapes) -> Rename:
    """The simplest rule under which most of the names fit, by name and shape; the names as they are if none is better."""
    plain = {name: name for name in source if name in target}
    if len(plain) == len(source) == len(target) or not source or not target:
        return Rename(names={name: name for name in source}, pairs=plain)
    most, best = _fitting(plain, source, target), [(_Rule(0, "", ""), {name: name for name in source})]
    whole = min(len(source), len(target))
    for level in range(len(_LEVELS)):
        if most[0] == whole:
            break  # more cannot fit, and a harder rule is no rival
        for rule, names in _candidates(level, source, target):
            fits = _fitting({name: new for name, new in names.items() if new in target}, source, target)
            if fits > most and 2 * fits[0] >= whole:
                most, best = fits, [(rule, names)]
            elif fits == most:
                best.append((rule, names))
    return _chosen(best, source, target)


def _chosen(best: list[tuple[_Rule, dict[str, str]]], source: Shapes, target: Shapes) -> Rename:
    """Of rules that fit equally well the simplest; those that give other weights are named. Averaged weights are no rival."""
    best.sort(key=lambda candidate: (candidate[0].is_of_averages, candidate[0].effort))
    rule, names = best[0]
    pairs = {name: new for name, new in names.items() if new in target}
    if not rule.level and not rule.removed and not rule.added:
        return Rename(names=names, pairs=pairs)
    served = {new: name for name, new in pairs.items()}
    rivals = [
        _words(other, source, target)
        for other, others in best[1:]
        if other.is_of_averages == rule.is_of_averages and any(served.get(new, name) != name for name, new in others.items())
    ]
    return Rename(
        names=names,
        pairs=pairs,
        words=_words(rule, source, target),
        python=_python(rule, source, target),
        others=tuple(dict.fromkeys(rivals)),
        removed=rule.removed,
    )


def _fitting(pairs: dict[str, str], source: Shapes, target: Shapes) -> tuple[int, int]:
    """How many weights come together and agree in shape, and how many come together."""
    return sum(same_shape(source[name], target[there]) for name, there in pairs.items()), len(pairs)


def same_shape(saved: Shape, wanted: Shape) -> bool:
    """Whether a saved tensor fits; a single number may have been saved as a list of one."""
    return saved == wanted or (wanted == () and saved == (1,))


def _candidates(level: int, source: Shapes, target: Shapes) -> Iterator[tuple[_Rule, dict[str, str]]]:
    here, there = _normal_names(source, _LEVELS[level]), _normal_names(target, _LEVELS[level])
    if here is None or there is None or (level and here.keys() == source.keys() and there.keys() == target.keys()):
        return
    for removed, added in _prefixes(here, there):
        names = _renamed(here, there, removed, added)
        if names is not None and (level or removed or added):
            yield _Rule(level, removed, added), names


def _renamed(here: dict[str, str], there: dict[str, str], removed: str, added: str) -> dict[str, str] | None:
    """The new name of each; None if two would become one."""
    new = {name: added + normal.removeprefix(removed) for normal, name in here.items()}
    real = {name: there.get(renamed, renamed) for name, renamed in new.items()}
    return real if len(set(real.values())) == len(real) else None


def _normal_names(shapes: Shapes, normal: Callable[[str], str]) -> dict[str, str] | None:
    """Normal name: real name; None if two names would become one."""
    names = {normal(name): name for name in shapes}
    return names if len(names) == len(shapes) else None


def _prefixes(here: Iterable[str], there: Iterable[str]) -> list[tuple[str, str]]:
    """What may go from the beginning of names here, and come there: the beginnings that leave the same name, commonest first."""
    ends: dict[str, list[str]] = {}
    for name in there:
        for beginning, rest in _cuts(name):
            ends.setdefault(rest, []).append(beginning)
    names = list(here)
    prefixes: Counter[tuple[str, str]] = Counter()
    for name in names[:: len(names) // _ASKED + 1]:
        for removed, rest in _cuts(name):
            prefixes.update((removed, added) for added in ends.get(rest, ())[:_AT_MOST])
    most = max(prefixes.values(), default=0)
    return [pair for pair, seen in prefixes.most_common(_AT_MOST) if 4 * seen >= most]


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """A name cut after its first parts: ("", "a.b.c"), ("a.", "b.c"), ("a.b.", "c")."""
    parts = name.split(".")
    for length in range(min(len(parts), _DEEPEST + 1)):
        yield "".join(f"{part}." for part in parts[:length]), ".".join(parts[length:])


def _without(parts: tuple[str, ...]) -> Callable[[str], str]:
    return lambda name: ".".join(part for part in name.split(".") if part not in parts)


def _new_names(name: str) -> str:
    """The name with what torch calls its parts elsewhere: LayerNorm's gamma and beta, weight_norm's two halves."""
    name = _OLD_NORM.sub(lambda match: match[1] + {"gamma": "weight", "beta": "bias"}[match[2]], name)
    return _WEIGHT_NORM.sub(lambda match: f"{match[1]}{match[2]}_{'gv'[int(match[3])]}", name)


_UNWRAPPED = _without(WRAPPERS)
_LEVELS: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    _UNWRAPPED,
    _new_names,
    lambda name: _new_names(_UNWRAPPED(name)),
    _without((*WRAPPERS, "module")),
    lambda name: _new_names(_without((*WRAPPERS, "module"))(name)),
)


def _inner(level: int, names: Iterable[str]) -> list[str]:
    """The parts that a level takes out of some names."""
    parts = ((), WRAPPERS, (), WRAPPERS, (*WRAPPERS, "module"), (*WRAPPERS, "module"))[level]
    present = {part for name in names for part in name.split(".")}
    return [part for part in parts if part in present]


def _words(rule: _Rule, source: Shapes, target: Shapes) -> str:
    changes = []
    taken, inserted = _inner(rule.level, source), _inner(rule.level, target)
    if taken:
        changes.append(f"taking {' and '.join(taken)} out of the names")
    if rule.removed:
        changes.append(f"removing the prefix {rule.removed}")
    if rule.added:
        changes.append(f"adding the prefix {rule.added}")
    if inserted:
        changes.append(f"putting {' and '.join(inserted)} into the names as the model has them")
    if any(_new_names(name) != name for name in (*source, *target)) and _LEVELS[rule.level]("a.gamma") == "a.weight":
        changes.append("reading old names of torch's own layers as the new ones")
    return " and ".join(changes)


def _python(rule: _Rule, source: Shapes, target: Shapes) -> str | None:
    """The rule as an expression of `k`, where one does it."""
    if _LEVELS[rule.level]("a.gamma") == "a.weight" or _inner(rule.level, target):
        return None
    if "module" in _inner(rule.level, source):
        return None  # as text it may be the end of another word
    code = "k" + "".join(f'.replace("{part}.", "")' for part in _inner(rule.level, source))
    if rule.removed:
        code += f'.removeprefix("{rule.removed}")'
    return f'"{rule.added}" + {code}' if rule.added else code
