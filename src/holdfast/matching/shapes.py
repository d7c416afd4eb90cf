"""What weights of another shape mean: other classes, another vocabulary, other images, another width.

It is told from how the shapes hang together, and from names only where shapes cannot tell: an output that grew while nothing
that reads it did is a head; an input that grew while nothing that feeds it did is the data.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from holdfast.checkpoints.formats.files import few
from holdfast.matching.renames import Shape
from holdfast.matching.sides import Difference, Labels, as_tuple, unfit
from holdfast.units import count

Pair = tuple[int, int]
Mismatches = dict[str, tuple[Shape, Shape]]

_TOKENS = re.compile(r"(^|[._])(wte|tok\w*|word\w*|vocab\w*|shared|embed_in|embed_tokens|\w*embeddings?|emb)([._]|$)")
_POSITIONS = re.compile(r"(^|[._])(pos\w*|wpe|\w*position\w*)([._]|$)|relative_position")
_MANY = 4  # weights that make it a matter of the whole model
_TOO_MANY = 24  # weights that are no head
_CLASSES = re.compile(
    r"(^|[._])(head|heads|cls\w*|class\w*|fc|classifier|logits|score|linear_?head|out_?proj|output)([._]|$)", re.I
)


def meanings(shapes: Mismatches, order: Iterable[str], fitting: int, labels: Labels) -> list[Difference]:
    """What the shapes that differ mean. `order` is that of the model's names; `fitting` how many weights do agree."""
    left = dict(shapes)
    differences = [*_positions(left, labels), *_vocabulary(left, labels)]
    differences += _inputs(left, list(order), labels)
    if len(left) >= max(fitting, _MANY) and (len(left) > _TOO_MANY or any(max(_axes(pair), default=1) for pair in left.values())):
        return [_width(left, labels), *differences]
    differences += _head(left, labels)
    if left:
        differences.append(_others(left, labels))
    return differences


def _changed(pair: tuple[Shape, Shape]) -> dict[int, Pair] | None:
    """Which dimensions differ and how; None where their number does."""
    left, other = pair
    if len(left) != len(other):
        return None
    return {axis: (a, b) for axis, (a, b) in enumerate(zip(left, other, strict=True)) if a != b}


def _axes(pair: tuple[Shape, Shape]) -> set[int]:
    return set(_changed(pair) or ())


def _only(axis: int, pair: tuple[Shape, Shape]) -> Pair | None:
    """How that dimension differs, if no other does."""
    changed = _changed(pair)
    return changed[axis] if changed is not None and changed.keys() == {axis} else None


def _take(left: Mismatches, wanted: Callable[[str, tuple[Shape, Shape]], bool]) -> Mismatches:
    taken = {name: pair for name, pair in left.items() if wanted(name, pair)}
    for name in taken:
        del left[name]
    return taken


def _positions(left: Mismatches, labels: Labels) -> list[Difference]:
    """Position embeddings: another length of text, or another number of patches in an image."""
    taken = _take(
        left, lambda name, pair: bool(_POSITIONS.search(name)) and len(_axes(pair)) == 1 and max(_axes(pair)) < len(pair[0]) - 1
    )
    differences = []
    for (here, there), names in _by_pair(taken).items():
        flat = any(len(taken[name][0]) == 2 for name in names)
        grids = _grid(here, flat=flat), _grid(there, flat=flat)
        if None not in grids:
            message = f"different image or patch size: positions for {labels.both(f'{grids[0]} patches', grids[1])}"
            fix = "build the model for the image and patch size of the file, or interpolate the positions to the new grid"
        else:
            message = f"different number of positions: {labels.both(f'{here:,}', f'{there:,}')}"
            fix = "build the model with that number of positions, or leave the position embedding out and train it from scratch"
        differences.append(unfit("positions", message, fix, names))
    return differences


def _grid(positions: int, *, flat: bool) -> str | None:
    """The square of patches and the tokens beside it. A `flat` one may be of text: there it is a square only with one token."""
    for extra in (1,) if flat else (1, 0, 2):
        side = math.isqrt(max(0, positions - extra))
        if side > 1 and side * side == positions - extra:
            return f"{side}x{side}"
    return None


def _vocabulary(left: Mismatches, labels: Labels) -> list[Difference]:
    """Rows of an embedding, and the output layer that has one for each token."""
    rows = {
        pair
        for name, shapes in left.items()
        if _TOKENS.search(name) and len(shapes[0]) == 2 and (pair := _only(0, shapes)) is not None
    }
    differences = []
    for pair in sorted(rows):
        taken = _take(left, lambda _, shapes, pair=pair: _only(0, shapes) == pair)  # type: ignore[misc]
        message = f"different vocabulary: {labels.both(f'{pair[0]:,} tokens', f'{pair[1]:,}')}"
        fix = (
            "see first that both use the same tokenizer; then build the model with the tokens of the file, load, and make it "
            f"larger or smaller: model.resize_token_embeddings({pair[1]}) of Hugging Face"
        )
        differences.append(unfit("vocabulary", message, fix, taken))
    return differences


def _inputs(left: Mismatches, order: list[str], labels: Labels) -> list[Difference]:
    """Layers whose input differs although nothing before them gives out more: the data has another size."""
    outputs = Counter(pair for shapes in left.values() if (pair := (_changed(shapes) or {}).get(0)) is not None)
    taken = _take(left, lambda _, shapes: (pair := _only(1, shapes)) is not None and pair not in outputs)
    differences = []
    for name, (here, there) in taken.items():
        first = name == next((weight for weight in order if weight in taken or weight.endswith("weight")), name)
        what = "input channels" if len(here) > 2 else "input features"
        message = f"different {what}: {name} takes {labels.both(here[1], there[1])}"
        if not first:
            message += ", and nothing before it changed: images or sequences of a different size"
        fix = f"build the model for {here[1]} {what}, or leave {_module(name)} out and train it from scratch"
        differences.append(unfit("input", message, fix, (name,)))
    return differences


def _head(left: Mismatches, labels: Labels) -> list[Difference]:
    """Layers that give out more or less, and nothing reads it: classes."""
    read = {pair for shapes in left.values() for axis, pair in (_changed(shapes) or {}).items() if axis > 0}
    taken = _take(left, lambda _, shapes: (pair := _only(0, shapes)) is not None and pair not in read)
    if not taken:
        return []
    pairs = sorted(_by_pair(taken))
    here, there = pairs[0]
    together = all(a * there == b * here for a, b in pairs)  # box regression: four numbers for each class
    what = "queries" if all("quer" in name for name in taken) else "classes" if any(map(_CLASSES.search, taken)) else "outputs"
    sizes = [labels.both(f"{a:,} {what}", f"{b:,}") for a, b in (pairs[:1] if together else pairs[:3])]
    modules = list(dict.fromkeys(_module(name) for name in taken))
    message = f"the head {few(modules, 2)} has {'; '.join(sizes)}"
    fix = f"load everything but that and train it from scratch: leave_out={as_tuple(modules)}"
    return [unfit("head", message, fix, taken)]


def _width(left: Mismatches, labels: Labels) -> Difference:
    """Most layers differ: the whole model is wider or narrower."""
    pairs = Counter(pair for shapes in left.values() for pair in (_changed(shapes) or {}).values())
    common = [pair for pair, seen in pairs.most_common(3) if 4 * seen >= max(pairs.values())]
    widths = [", ".join(f"{pair[side]:,}" for pair in common) for side in (0, 1)]
    message = (
        f"different architecture: layers of {labels.both(*widths)}" if common else "different architecture: most shapes differ"
    )
    fix = "build the model with the sizes of the file; weights of a different width cannot be loaded"
    return unfit("width", message, fix, left)


def _others(left: Mismatches, labels: Labels) -> Difference:
    shown = [f"{name} {list(saved)} and {list(other)}" for name, (saved, other) in left.items()]
    message = f"{count(len(left), 'weight')} with a different shape: {few(shown, 2)} in {labels.one} and {labels.other}"
    modules = list(dict.fromkeys(map(_module, left)))
    fix = f"build the model as the file was saved, or leave them out: leave_out={as_tuple(modules)}"
    return unfit("shape", message, fix, left)


def _by_pair(taken: Mapping[str, tuple[Shape, Shape]]) -> dict[Pair, list[str]]:
    """Names by the one pair of lengths that differs."""
    pairs: dict[Pair, list[str]] = {}
    for name, shapes in taken.items():
        changed = _changed(shapes) or {}
        if changed:
            pairs.setdefault(next(iter(changed.values())), []).append(name)
    return pairs


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name
