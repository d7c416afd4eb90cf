"""What a line of a text log says, by its shape: the line with a zero for each number. A log has few shapes and many lines.

A shape is looked at once, with patterns that take their time; the lines of it are then only taken apart at their digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from holdfast.logs.parse_number import parse_number, parse_size
from holdfast.logs.roles import role_of, words_of

_NUMBER = r"(?<![\w.])[-+]?(?:\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf(?:inity)?)(?![\w.]*\w)%?"
_OF = r"(?:/\d+(?![\w.]*\w))?"  # 352/357
_SIZE = r"\d+(?:\.\d+)?\s?[KMGT]i?B?\b"
_WRAPPED = r"\[?(?:(?:tensor|array|(?:np\.|numpy\.|jnp\.)?float\d*)\(\[?)?"  # tensor(0.5, device='cuda:0')
_VALUE = re.compile(rf"(?P<sign>\s*(?:[:=]>?|[-=]>)\s*|\s+is\s+|\s+){_WRAPPED}(?P<value>{_NUMBER}{_OF}|{_SIZE})", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_][\w/.@-]*(?:\([\w@]+\))?$")  # at the end of what stands before a blank
_EPOCH = re.compile(r"\bepochs?\b['\"]?\s*[:=#]?\s*\[?\(?\s*(\d+(?:\.\d+)?)(?:\s*(?:/|of)\s*(\d+))?", re.IGNORECASE)
_STEP = re.compile(r"\b(?:global[ _]?step|steps?|iter(?:ation)?s?|it|batch)\b['\"]?\s*[:=#]?\s*\[?\(?\s*(\d+)", re.IGNORECASE)
_BARE = re.compile(rf"^\s*(?P<step>\d+)\s+(?P<name>[A-Za-z_]\w*)\s+(?P<value>{_NUMBER})\s*$", re.IGNORECASE)
_AT = re.compile(  # `loss at 404 1.79`, `Eval loss at step 1000: 5.02`
    rf"(?P<name>(?:[A-Za-z_]\w*[ /]){{0,2}}[A-Za-z_]\w*)\s+(?:at|@|after)\s+(?:(?:step|iter(?:ation)?|update)s?\s*)?(?P<step>\d+)"
    rf"\s*[:=,]?\s+(?P<value>{_NUMBER})",
    re.IGNORECASE,
)
_DARKNET = re.compile(rf"^\s*(?P<step>\d+):\s*{_NUMBER},\s*(?P<value>{_NUMBER})\s+(?P<name>avg)\b", re.IGNORECASE)
_HEADING = re.compile(  # `| valid |`, `Test set:`, `Epoch(val)`: what follows was measured on it
    r"\b(train|val|valid|eval|test|dev)(?:ing|ation|idation|uation)?(?:\s+(?:set|epoch|phase|results?))?\s*(?:[:|\])>]|-\s)",
    re.IGNORECASE,
)
_BAR = re.compile(r"\d+%\|[^|]*\|\s*(?P<at>\d+)/(?P<of>\d+)|(?P<n>\d+)/(?P<all>\d+)\s*(?:\[[=>.]|━)|\bETA\b|\d+%\|")
_RANK = re.compile(r"^\W{0,3}(?:[\w:.,\-]+\s+){0,3}?[\[(]?(?:rank|default|trainer)[ _:=]?(\d+)\b[\])]?:?\s*", re.IGNORECASE)
_DIGITS = re.compile(r"(?<![A-Za-z_\d])(\d+)")  # those after a letter belong to a name: F1, mAP50
_POSITIONS = {"epoch", "epochs", "step", "iter", "iteration", "batch", "global_step", "it"}
_SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "test", "eval": "val", "dev": "val", "avg": "train"}
_FILLERS = ("and", "the", "with", "s", "ms", "is", "of")
_WORDS = 4  # of a name, at most
_LONGEST_NAME = 120
_QUOTES = "'\""
_UNITS = frozenset("bBgGmMkKtT")
Slot = tuple[str | int, ...]  # text that is always the same, and places of parts of the line


@dataclass(frozen=True, slots=True)
class Shape:
    """Where in a line of this shape its numbers stand; a slot is None for what the line does not say."""

    pairs: tuple[tuple[Slot, Slot], ...]  # name and number
    epoch: Slot | None
    step: Slot | None
    rank: Slot | None
    bar: tuple[Slot, Slot] | None  # a progress bar: at which step, and of how many
    under_way: bool  # a progress bar that is not at its end, whatever its numbers


def parts_of(line: str) -> list[str]:
    """A line in parts: text and digits by turns."""
    return _DIGITS.split(line)


def shape_of(parts: list[str]) -> Shape:
    """The shape of the line with these parts."""
    return _shape("0".join(parts[::2]))


def filled(slot: Slot, parts: list[str]) -> str:
    """What stands in a slot."""
    if len(slot) == 1:  # a name that is always the same, or a whole number
        return slot[0] if isinstance(slot[0], str) else parts[slot[0]]
    return "".join(piece if isinstance(piece, str) else parts[piece] for piece in slot)


def value_of(name: str, text: str) -> float | None:
    """A number, of `352/357` the fraction where it is a metric; one with a unit of memory only under such a name."""
    if text[-1] in _UNITS:
        return parse_size(text) if role_of(name).role == "memory" else None
    text, _, of = text.partition("/")
    value = parse_number(text)
    if value is not None and of and role_of(name).role == "metric" and 0 <= value <= float(of) != 0:
        return value / float(of)
    return value


@lru_cache(maxsize=2048)
def _shape(line: str) -> Shape:
    rank = _RANK.match(line)
    epoch, bar, bare = _EPOCH.search(line), _BAR.search(line), _BARE.match(line) or _DARKNET.match(line) or _named_at(line)
    step = bare if bare is not None else _STEP.search(line)
    counted = ("at", "of") if bar is not None and bar["at"] else ("n", "all") if bar is not None and bar["n"] else None
    return Shape(
        tuple(_bare_pair(line, bare) if bare is not None else _pairs(line, rank.end() if rank is not None else 0)),
        _slot(line, *epoch.span(1)) if epoch is not None else None,
        _slot(line, *(step.span("step") if step is bare else step.span(1))) if step is not None else None,
        _slot(line, *rank.span(1)) if rank is not None else None,
        (_slot(line, *bar.span(counted[0])), _slot(line, *bar.span(counted[1]))) if bar is not None and counted else None,
        bar is not None and counted is None,
    )


def _slot(line: str, start: int, stop: int) -> Slot:
    """A stretch of the shape as text and places of parts."""
    pieces: list[str | int] = []
    begin = 0
    for place, part in enumerate(_DIGITS.split(line)):
        end = begin + len(part)
        if place % 2 and start <= begin and end <= stop:
            pieces.append(place)
        elif place % 2 == 0 and (text := line[max(begin, start) : min(end, stop)]) and begin < stop and end > start:
            pieces.append(text)
        begin = end
    return tuple(pieces)


def _named_at(line: str) -> re.Match[str] | None:
    match = _AT.search(line)
    return match if match is not None and role_of(match["name"]).role in ("loss", "metric") else None


def _bare_pair(line: str, bare: re.Match[str]) -> list[tuple[Slot, Slot]]:
    """`12 train 3.5`, `loss at 12 3.5`."""
    name = bare["name"].lower().strip()
    return [((f"{_SPLITS[name]} loss" if name in _SPLITS else name,), _slot(line, *bare.span("value")))]


def _pairs(line: str, begin: int) -> list[tuple[Slot, Slot]]:
    """What a line says about losses, metrics and settings; nothing for a line of another kind."""
    pairs: list[tuple[Slot, Slot]] = []
    end, names = begin, list[str]()
    for pair in _VALUE.finditer(line, begin):
        before, end = line[max(end, pair.start() - _LONGEST_NAME) : pair.start()], pair.end()
        named = _name_before(before)
        name = _clean(named, spaced=pair["sign"].isspace()) if named else ""
        if name and value_of(name, pair["value"]) is not None:
            stop = pair.start() - len(before) + len(before.rstrip(_QUOTES))
            heading = _heading(line[: stop - len(name)], name) or _split_of_neighbour(name, names)
            names.append(name)
            pairs.append(((*heading, *_slot(line, stop - len(name), stop)), _slot(line, *pair.span("value"))))
    return pairs


def _heading(before: str, name: str) -> Slot:
    """The split under whose heading a loss or a metric stands, if its own name tells none."""
    headings = _HEADING.findall(before)
    split = _SPLITS[headings[-1].lower()] if headings else "train"
    role = role_of(name)
    return (
        (f"{split} ",)
        if split != "train" and role.split == "train" and role.role in ("loss", "metric") and "train" not in name.lower()
        else ()
    )


def _split_of_neighbour(name: str, before: list[str]) -> Slot:
    """`train loss 0.2 acc 0.9 | val loss 0.3 acc 0.8`: a name that comes again is of the same split as its neighbour."""
    split = role_of(before[-1]).split if name in before else "train"
    return (f"{split} ",) if split != "train" and role_of(name).split == "train" else ()


def _name_before(text: str) -> str:
    """The last words of what stands before a number: letters first, one blank between two."""
    tokens: list[str] = []
    for part in reversed(text.rstrip(_QUOTES).split(" ")):
        word = _WORD.search(part)
        if word is None:
            break
        tokens.append(word[0])
        if word.start() > 0 or len(tokens) == _WORDS:
            break
    return " ".join(reversed(tokens))


def _clean(name: str, *, spaced: bool) -> str:
    """The name without what stands before it; empty if it names nothing that is looked for."""
    tokens = name.split()
    if spaced and role_of(tokens[-1]).role == "other":
        return ""
    while tokens and (tokens[0].lower() in _POSITIONS or tokens[0].lower() in _FILLERS):
        tokens = tokens[1:]
    for start in range(len(tokens)):
        rest = " ".join(tokens[start:])
        if role_of(rest).role not in ("other", "seconds") and not (set(words_of(rest)) & _POSITIONS and len(tokens) - start > 2):
            return rest
    return ""
