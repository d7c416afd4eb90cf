"""Colours of the sheets: those of classes and objects can be told apart on dark and on bright pictures."""

from __future__ import annotations

Colour = tuple[int, int, int]

PAPER, CARD, INK, SOFT, LINE = "#eef1f5", "#ffffff", "#1a202c", "#5a6678", "#d5dbe4"
BAD = "#e02424"
SEVERITIES = {"critical": "#c53030", "warning": "#975a16", "info": "#2b6cb0"}
_MANY: tuple[Colour, ...] = (
    (0, 158, 255),
    (255, 140, 0),
    (46, 204, 64),
    (240, 60, 200),
    (255, 214, 10),
    (0, 200, 180),
    (170, 110, 255),
    (255, 110, 110),
    (140, 200, 40),
    (110, 150, 200),
    (200, 130, 80),
    (255, 160, 200),
)


def colour_of(number: int) -> Colour:
    """The colour of the n-th class or object."""
    return _MANY[number % len(_MANY)]


def hexed(colour: Colour) -> str:
    """As Pillow and a page take it."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def ink_on(colour: Colour) -> str:
    """Black or white, whichever can be read on it."""
    red, green, blue = colour
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"
