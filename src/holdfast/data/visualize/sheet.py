"""Contact sheets: tiles in rows of four, a picture and a caption each; samples that belong together share a frame."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from holdfast.data.report import Report
from holdfast.data.visualize.pictures import (
    CARD,
    INK,
    LINE,
    PAPER,
    SEVERITIES,
    SOFT,
    fitted,
    folded,
    put,
    width_of,
    words_instead,
)
from holdfast.data.visualize.sample import PICTURE, Group, Sample

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


# One page with all samples. It shows the pictures of the sheets beside it, so it needs its folder and nothing else.

_STYLE = """
:root { color-scheme: light dark; --ink: #1a202c; --soft: #5a6678; --line: #d5dbe4; --paper: #eef1f5; --card: #fff;
  --critical: #c53030; --warning: #975a16; --info: #2b6cb0; --known1: #dbeafe; --known2: #dcfce7; --unknown: #fecaca;
  --shared: #fde68a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #a0aec0; --line: #3b475a; --paper: #12161f; --card: #1c2330;
  --critical: #fc8181; --warning: #f6ad55; --info: #63b3ed; --known1: #1e3a5f; --known2: #1c4532; --unknown: #7f1d1d;
  --shared: #713f12; } }
* { box-sizing: border-box; }
body { font: 14px/1.4 system-ui, sans-serif; margin: 0; color: var(--ink); background: var(--paper); }
header { padding: 1rem 1.2rem .4rem; } h1 { font-size: 1.2rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
p { margin: .2rem 0; } .soft { color: var(--soft); } a { color: inherit; }
nav { position: sticky; top: 0; z-index: 1; padding: .5rem 1.2rem; background: var(--paper); border-bottom: 1px solid var(--line);
  display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; }
select { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 4px;
  padding: .15rem; max-width: 16rem; }
main { padding: .8rem 1.2rem; display: flex; flex-wrap: wrap; gap: 12px; align-items: stretch; }
.group { display: flex; flex-wrap: wrap; gap: 12px; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 8px; max-width: 100%; } .group.critical { border: 2px solid var(--critical); }
.group.warning { border: 2px solid var(--warning); } .group.info { border: 2px solid var(--info); }
[hidden] { display: none !important; }
figure { margin: 0; width: 320px; max-width: 100%; display: flex; flex-direction: column; gap: 6px; }
.frame { display: flex; align-items: center;
  justify-content: center; overflow: hidden; } .picture { flex: none; background-repeat: no-repeat; }
figcaption { overflow-wrap: anywhere; font-size: 13px; } figcaption b { font-weight: 600; } figcaption p { font-size: 12px; }
p.critical { color: var(--critical); } p.warning { color: var(--warning); } p.info { color: var(--info); }
.dot { display: inline-block; width: 10px; height: 10px; margin: 0 4px 0 0; border: 1px solid var(--soft); }
.legend > span { margin-right: .7rem; white-space: nowrap; }
.text { height: 250px; overflow: auto; font: 12px/1.6 system-ui, sans-serif; white-space: pre-wrap; overflow-wrap: anywhere; }
.text i { font-style: normal; border-radius: 2px; } .k0 { background: var(--known1); } .k1 { background: var(--known2); }
.shared { background: var(--shared); } .unknown { background: var(--unknown); outline: 1px solid var(--critical); }
"""
_SCRIPT = """
const picks = [...document.querySelectorAll('select')], shown = document.getElementById('shown');
const groups = [...document.querySelectorAll('.group')];
function fits(tile) { return picks.every(pick => !pick.value || JSON.parse(tile.dataset[pick.name]).includes(pick.value)); }
function choose() {
  let count = 0;
  for (const group of groups) {
    const tiles = [...group.querySelectorAll('figure')];
    group.hidden = !tiles.some(fits);
    count += group.hidden ? 0 : tiles.length;
  }
  shown.textContent = count + ' shown';
}
picks.forEach(pick => pick.addEventListener('change', choose));
choose();
"""


def page(report: Report, placed: Sequence[Placed], names: Sequence[str], notes: Sequence[str], about: str) -> str:
    """The whole file. `names` are the files of the sheets, `about` says how they were made."""
    title = f"{report.path}: {report.format}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{text(title)}</title>'
    sheets = " ".join(f'<a href="{name}">{name}</a>' for name in names)
    told = "".join(f"<p class=soft>{text(note)}</p>" for note in notes)
    top = f"<header><h1>Holdfast: {text(title)}</h1><p>{text(about)}</p>{told}<p class=soft>{sheets}</p></header>"
    groups = "".join(_group(list(some), names) for _, some in groupby(placed, key=lambda one: one.group))
    body = (
        f"{top}<nav>{''.join(_picks([one.sample for one in placed]))}<span id=shown class=soft></span></nav><main>{groups}</main>"
    )
    whole = f"<head>{head}<style>{_STYLE}</style></head><body>{body}<script>{_SCRIPT}</script></body>"
    return f"<!doctype html><html lang=en>{whole}</html>\n"


def text(words: str) -> str:
    """Words that cannot become anything else in a page."""
    return html.escape(words.encode("utf-8", errors="replace").decode(), quote=True)


def _values(words: Sequence[str]) -> str:
    return text(json.dumps(list(dict.fromkeys(words)), ensure_ascii=False))


def _picks(samples: Sequence[Sample]) -> Iterator[str]:
    """What the page can be narrowed by, as far as there is a choice."""
    kinds: dict[str, Callable[[Sample], Sequence[str]]] = {
        "finding": lambda one: [mark.code for mark in one.marks],
        "class": lambda one: one.classes,
        "split": lambda one: [one.split],
    }
    for word, of in kinds.items():
        values = dict.fromkeys(value for sample in samples for value in of(sample) if value)
        if values and (len(values) > 1 or word == "finding"):
            options = "".join(f'<option value="{text(value)}">{text(value)}</option>' for value in values)
            yield f'<label>{word} <select name="{word}"><option value="">all</option>{options}</select></label>'


def _group(some: list[Placed], names: Sequence[str]) -> str:
    marks = some[0].sample.marks
    kind = f" {marks[0].severity}" if marks else ""
    return f'<div class="group{kind}">{"".join(_figure(one, names[one.sheet - 1]) for one in some)}</div>'


def _figure(one: Placed, file: str) -> str:
    sample = one.sample
    marks = "".join(
        f'<p class="{mark.severity}"><b>{text(mark.code)}</b>: {text(mark.words)}</p>' for mark in sample.marks
    )  # fmt: skip
    about = sample.about
    legend = "".join(f"<span>{_dot(colour)}{text(words)}</span>" for words, colour in sample.legend)
    caption = f"<b>{text(sample.name)}</b>{marks}" + (f"<p class=soft>{text(about)}</p>" if about else "")
    caption += f"<p class=legend>{legend}</p>" if legend else ""
    data = f'data-finding="{_values([mark.code for mark in sample.marks])}" data-class="{_values(sample.classes)}"'
    shown = _tokens(sample) if sample.tokens else _image_tag(one, file)
    return f'<figure {data} data-split="{_values([sample.split])}">{shown}<figcaption>{caption}</figcaption></figure>'


def _dot(colour: str) -> str:
    return f'<span class=dot style="background: {colour}"></span>' if colour else ""


def _image_tag(one: Placed, file: str) -> str:
    """The part of the sheet on which the sample is."""
    left, top, right, bottom = one.box
    size = f"width: {right - left}px; height: {bottom - top}px"
    where = f"{size}; background-image: url({file}); background-position: -{left}px -{top}px"
    name = text(one.sample.name)
    return f'<a href="{file}" class=frame><div class=picture role=img aria-label="{name}" style="{where}"></div></a>'


def _tokens(sample: Sample) -> str:
    parts, known = [], 0
    for words, kind in sample.tokens:
        known += kind == "known"
        style = f"k{known % 2}" if kind == "known" else kind
        parts.append(f'<i class="{style}">{text(words)}</i>' if style else text(words))
    return f"<div class=text>{''.join(parts)}</div>"


_COLUMNS, _ROWS, _AHEAD = 4, 4, 16
_GAP, _PAD, _HEAD = 12, 8, 34
_NAME, _SMALL, _STEP = 13, 12, 16
_TILE = PICTURE[0] + 2 * _PAD
_WIDTH = _COLUMNS * _TILE + (_COLUMNS + 1) * _GAP
_MARKS, _MARK_LINES = 3, 3  # findings of a sample that are told, and lines of each

Row = list[Group]
Box = tuple[int, int, int, int]


class Placed(NamedTuple):
    """A sample on a sheet: which sheet (from 1), where its picture is, and which group it belongs to (from 1)."""

    sample: Sample
    sheet: int
    box: Box
    group: int


def rows_of(groups: list[Group]) -> Iterator[Row]:
    """Groups in rows; none is broken, and one that is longer than a row is cut.

    Where a suspicious one does not fit at the end of a row, the next suspicious one that does takes the place.
    """
    waiting = [group[:_COLUMNS] for group in groups]
    while waiting:
        row = [waiting.pop(0)]
        while room := _COLUMNS - sum(map(len, row)):
            place = next((place for place, one in enumerate(waiting[:_AHEAD]) if len(one) <= room), None)
            if place is None or (place and not waiting[place][0].marks):
                break
            row.append(waiting.pop(place))
        yield row


def sheets(groups: list[Group], title: str) -> Iterator[tuple[Image.Image, list[Placed]]]:
    """One sheet after the other, with what is on it."""
    rows = list(rows_of(groups))
    total, number = -(-len(rows) // _ROWS), 0
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        yield _sheet(some, f"{title}    sheet {start // _ROWS + 1} of {total}", start // _ROWS + 1, number)
        number += sum(map(len, some))


def _sheet(rows: list[Row], title: str, sheet: int, groups_before: int) -> tuple[Image.Image, list[Placed]]:
    from PIL import Image, ImageDraw

    pictures = [[[_picture(sample) for sample in group] for group in row] for row in rows]
    tallest = [max(picture.height for some in row for picture in some) for row in pictures]
    heights = [high + max(_below(sample) for group in row for sample in group) for row, high in zip(rows, tallest, strict=True)]
    columns = max(sum(map(len, row)) for row in rows) if len(rows) == 1 else _COLUMNS
    width = columns * _TILE + (columns + 1) * _GAP
    made = Image.new("RGB", (width, _HEAD + sum(heights) + (len(rows) + 1) * _GAP), PAPER)
    draw = ImageDraw.Draw(made)
    put(draw, (_GAP, _HEAD // 2 + 4), fitted(title, 14, width - 2 * _GAP), 14, INK, anchor="lm")
    placed: list[Placed] = []
    top, number = _HEAD + _GAP, groups_before
    for place, row in enumerate(rows):
        left = _GAP
        for group, some in zip(row, pictures[place], strict=True):
            number += 1
            _frame(draw, left, top, len(group), heights[place], group)
            for sample, picture in zip(group, some, strict=True):
                box = _pasted(made, picture, left, top, tallest[place])
                _told(draw, sample, left + _PAD, top + _PAD + tallest[place] + 6)
                placed.append(Placed(sample, sheet, box, number))
                left += _TILE + _GAP
        top += heights[place] + _GAP
    return made, placed


def _picture(sample: Sample) -> Image.Image:
    try:
        return sample.draw(PICTURE)
    except Exception as error:  # noqa: BLE001 - one sample that cannot be drawn does not cost the sheet
        return words_instead("cannot be drawn", f"{type(error).__name__}: {error}", PICTURE)


def _frame(draw: ImageDraw.ImageDraw, left: int, top: int, tiles: int, height: int, group: Group) -> None:
    """The card behind a tile; one for all tiles of a group."""
    right = left + tiles * _TILE + (tiles - 1) * _GAP
    marks = group[0].marks
    edge = SEVERITIES[marks[0].severity] if marks else LINE
    draw.rounded_rectangle((left, top, right - 1, top + height - 1), 6, fill=CARD, outline=edge, width=2 if marks else 1)


def _pasted(made: Image.Image, picture: Image.Image, left: int, top: int, height: int) -> Box:
    """Put a picture into the middle of its place; where it is then."""
    across = left + _PAD + (PICTURE[0] - picture.width) // 2
    down = top + _PAD + (height - picture.height) // 2
    made.paste(picture, (across, down))
    return across, down, across + picture.width, down + picture.height


def _told(draw: ImageDraw.ImageDraw, sample: Sample, left: int, top: int) -> None:
    """What stands below a picture."""
    for text, size, colour in _caption(sample):
        put(draw, (left, top), text, size, colour)
        top += _STEP
    _legend(draw, sample, left, top)


def _caption(sample: Sample) -> list[tuple[str, int, str]]:
    """Lines with their size and colour; the legend comes below them."""
    lines = [(fitted(sample.name, _NAME, PICTURE[0]), _NAME, INK)]
    for mark in sample.marks[:_MARKS]:
        said = folded(f"{mark.code}: {mark.words}", _SMALL, PICTURE[0], _MARK_LINES)
        lines += [(line, _SMALL, SEVERITIES[mark.severity]) for line in said]
    if len(sample.marks) > _MARKS:
        others = ", ".join(mark.code for mark in sample.marks[_MARKS:])
        lines.append((fitted(f"also: {others}", _SMALL, PICTURE[0]), _SMALL, SOFT))
    about = sample.about
    return [*lines, *([(fitted(about, _SMALL, PICTURE[0]), _SMALL, SOFT)] if about else [])]


def _legend(draw: ImageDraw.ImageDraw, sample: Sample, left: float, top: float) -> None:
    """Classes in one line, each with its colour."""
    end = left + PICTURE[0]
    for words, colour in sample.legend:
        words = fitted(words, _SMALL, PICTURE[0] - 14 if len(sample.legend) == 1 else PICTURE[0] / 2 - 24)
        room = width_of(words, _SMALL) + (14 if colour else 0)
        if left + room > end:
            put(draw, (min(left, end - 8), top), "…", _SMALL, SOFT)
            return
        if colour:
            draw.rectangle((left, top + 3, left + 9, top + 12), fill=colour, outline=SOFT)
        put(draw, (left + (14 if colour else 0), top), words, _SMALL, INK)
        left += room + 10


def _below(sample: Sample) -> int:
    """Pixels of a tile without its picture."""
    return 2 * _PAD + 6 + _STEP * (len(_caption(sample)) + bool(sample.legend))
