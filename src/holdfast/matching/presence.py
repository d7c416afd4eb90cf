"""What weights that only one side has mean: more layers, another task, adapters, a quantised model, a head that is new."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from holdfast.checkpoints.formats.files import few
from holdfast.matching.sides import Difference, Group, Labels, as_tuple, grouped, unfit
from holdfast.units import count

_ADAPTER = re.compile(r"(^|\.)(lora_\w+|base_layer|modules_to_save|ia3_l|adapter\w*)(\.|$)")
_QUANTISED = re.compile(r"(absmax|quant_map|quant_state\.\w+|SCB|_packed_params\S*|zero_point|qweight|qzeros|nested_absmax)$")
_FLAT = re.compile(r"(^|\.)_?flat_param(_\d+)?$")
_STATISTICS = re.compile(r"(^|\.)running_(mean|var)$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_HEAD = re.compile(r"(head|classif|cls|class|fc|logit|score|pooler|predict|decoder|output|proj)", re.I)


class Lone:
    """Weights that one side has and the other has not; each meaning that is told takes its own."""

    def __init__(self, missing: list[str], unexpected: list[str], here: Collection[str], there: Collection[str]) -> None:
        self.missing, self.unexpected = list(missing), list(unexpected)  # unexpected under their new names
        self.here, self.there = here, there

    def take(self, wanted: Callable[[str], bool]) -> tuple[list[str], list[str]]:
        """Those that a test takes, of the model and of the file."""
        missing, unexpected = [name for name in self.missing if wanted(name)], [name for name in self.unexpected if wanted(name)]
        self.missing = [name for name in self.missing if not wanted(name)]
        self.unexpected = [name for name in self.unexpected if not wanted(name)]
        return missing, unexpected


def meanings(lone: Lone, labels: Labels) -> list[Difference]:
    """What they mean, and at the end whatever is left."""
    return [*_depth(lone, labels), *_flat(lone), *_kinds(lone, labels), *_modules(lone, labels)]


def _depth(lone: Lone, labels: Labels) -> Iterator[Difference]:
    """Numbered layers: 0 … 11 on one side, 0 … 23 on the other. The same inside each of many layers is told once."""
    if not lone.missing and not lone.unexpected:
        return
    here, there = _numbered(lone.here), _numbered(lone.there)
    depths: dict[tuple[str, int, int], tuple[str, list[str]]] = {}
    for stem in sorted(here.keys() & there.keys(), key=lambda stem: (len(stem), stem)):
        left, other = here[stem], there[stem]
        if len(left) == len(other):
            continue
        lonely = tuple(f"{stem}{index}." for index in left.keys() ^ other.keys())
        usual = {frozenset(other[index]) for index in left.keys() & other.keys()}
        alike = all(frozenset(left.get(index) or other[index]) in usual for index in left.keys() ^ other.keys())
        if alike and any(name.startswith(lonely) for name in (*lone.missing, *lone.unexpected)):
            missing, unexpected = lone.take(lambda name, lonely=lonely: name.startswith(lonely))  # type: ignore[misc]
            depths.setdefault((_NUMBER.sub("N", stem), len(left), len(other)), (stem, []))[1].extend(missing + unexpected)
    for (_, one_has, other_has), (stem, names) in depths.items():
        message = f"different number of layers: {stem}0 … has {labels.both(one_has, other_has)}"
        fix = f"build the model with {one_has} of them; untrained layers cannot be mixed with trained ones"
        yield unfit("depth", message, fix, names)


def _numbered(names: Collection[str]) -> dict[str, dict[int, set[str]]]:
    """Stem (`h.`): number: what stands under it."""
    layers: dict[str, dict[int, set[str]]] = {}
    for name in names:
        parts = name.split(".")
        for place, part in enumerate(parts[:-1]):
            if part.isdecimal():
                stem, rest = "".join(f"{part}." for part in parts[:place]), ".".join(parts[place + 1 :])
                layers.setdefault(stem, {}).setdefault(int(part), set()).add(rest)
    return {stem: indices for stem, indices in layers.items() if len(indices) > 1}


def _flat(lone: Lone) -> Iterator[Difference]:
    missing, unexpected = lone.take(lambda name: bool(_FLAT.search(name)))
    if missing or unexpected:
        message = "FSDP saved one rank's part of its flat parameters: they have no names and no shapes"
        fix = "save with FSDP's full or sharded state dict type"
        yield unfit("flat-parameters", message, fix, missing + unexpected)


def _kinds(lone: Lone, labels: Labels) -> Iterator[Difference]:
    """Kinds of weights that one side has and the other has not."""
    both = set(lone.here) & set(lone.there)

    def is_statistic(name: str) -> bool:
        return bool(_STATISTICS.search(name)) and _STATISTICS.sub(r"\1weight", name) in both

    def is_lone_bias(name: str) -> bool:
        return name.endswith("bias") and f"{name.removesuffix('bias')}weight" in both

    for kind, belongs in (
        ("quantised", lambda name: bool(_QUANTISED.search(name))),
        ("adapters", lambda name: bool(_ADAPTER.search(name))),
        ("statistics", is_statistic),
        ("bias", is_lone_bias),
    ):
        missing, unexpected = lone.take(belongs)
        if unexpected:
            yield unfit(kind, *_words_of_kind(kind, unexpected, labels.one, labels.other, in_file=True), unexpected)
        if missing and not (kind == "quantised" and unexpected):
            yield unfit(kind, *_words_of_kind(kind, missing, labels.other, labels.one, in_file=False), missing)


def _words_of_kind(kind: str, names: list[str], has: str, has_not: str, *, in_file: bool) -> tuple[str, str]:
    """What it means that one side has weights of a kind, and what to do."""
    if kind == "quantised":
        fix = "quantise both in the same way, or load the weights from before they were quantised"
        return f"{has} is quantised and {has_not} is not", fix
    if kind == "adapters" and in_file:
        fix = "put the same adapters into the model before loading, or merge them and save again"
        return f"{has} holds adapters (LoRA) that {has_not} does not have: {few(names)}", fix
    if kind == "adapters":
        fix = "load the base model first and put the adapters in afterwards"
        return f"{has} has adapters (LoRA) that {has_not} does not hold: {few(names)}", fix
    if kind == "statistics":
        fix = "build the model with the same normalisation layers (BatchNorm, GroupNorm, track_running_stats)"
        return f"{has} keeps running statistics (BatchNorm) in {count(len(names), 'place')} and {has_not} does not", fix
    message = f"{count(len(names), 'layer')} with a bias in {has} and without one in {has_not}: {few(names)}"
    return message, f"build the layers with bias={in_file}"


def _modules(lone: Lone, labels: Labels) -> Iterator[Difference]:
    """Whole parts that only one side has: tasks, heads; and single weights."""
    sides = (
        (lone.missing, lone.there, labels.other, "missing"),
        (lone.unexpected, lone.here, labels.one, "unexpected"),
    )
    for names, among, has, kind in sides:
        groups = grouped(names, among)
        whole = [group for group in groups if group.is_module]
        single = [group for group in groups if not group.is_module]
        if whole:
            yield _parts(whole, has, kind)
        if single:
            message = f"{count(len(single), 'weight')} only in {has}: {few(single)}"
            yield unfit(kind, message, _leave_out(single, kind), (group.label for group in single))


def _parts(groups: list[Group], has: str, kind: str) -> Difference:
    names = tuple(name for group in groups for name in group.names)
    if len(groups) <= 3 and all(_HEAD.search(group.label) for group in groups):
        message = f"different head or task: {few(groups)} only in {has}"
    else:
        message = f"different parts or tasks: {few(groups)} only in {has}"
    return unfit(f"{kind}-parts", message, _leave_out(groups, kind), names)


def _leave_out(groups: list[Group], kind: str) -> str:
    listed = as_tuple([group.label for group in groups])
    if kind == "missing":
        return f"load the rest, and train them from scratch: leave_out={listed}"
    return f"switch them on in the model, or load the rest: leave_out={listed}"


def coverage(pairs: Mapping[str, str], here: int, there: int, labels: Labels) -> Difference | None:
    """Another architecture, where less than half of the names of either side are known to the other."""
    if 2 * len(pairs) >= min(here, there):
        return None
    shared = f"{len(pairs):,} of the {there:,} weights of {labels.other}"
    message = f"different architecture: {shared} are among the {here:,} of {labels.one}"
    fix = "build the model that was saved (holdfast checkpoints inspect shows its layers), or choose a checkpoint of this one"
    return unfit("architecture", message, fix)
