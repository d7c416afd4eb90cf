"""The page of `holdfast diagnose --html`: what the axes are, where the legend is, and what was changed from outside."""

from __future__ import annotations

import re

import numpy as np

from holdfast.diagnosis.checkup import Change, check_up
from holdfast.diagnosis.page import page
from holdfast.diagnosis.plot import Mark, plot
from holdfast.signals.curves import Curve, Curves

STEPS = np.arange(100)


def loss(values: np.ndarray, name: str = "loss", split: str = "train") -> Curve:
    return Curve(name, STEPS, values.astype(np.float64), role="loss", split=split, better="lower")


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_both_axes_say_what_they_are() -> None:
    shown = texts(plot([loss(np.linspace(2, 1, 100))], title="loss"))
    assert shown.count("step") == 1 and shown.count("loss") == 2  # the title, and the legend


def test_a_logarithmic_axis_is_marked_and_has_powers_of_ten() -> None:
    shown = texts(plot([loss(np.geomspace(20, 0.02, 100))], title="loss"))
    assert "loss (log scale)" in shown and {"10", "1", "0.1"} <= set(shown)
    assert not any("log scale" in word for word in texts(plot([loss(np.linspace(2, 1, 100))], title="loss")))


def test_the_values_beside_a_linear_axis_are_round() -> None:
    assert {"1", "1.5", "2"} <= set(texts(plot([loss(np.linspace(2.03, 0.98, 100))])))


def test_the_legend_stands_above_all_curves() -> None:
    svg = plot([loss(np.linspace(2, 1, 100)), loss(np.linspace(2.1, 1.4, 100), "val loss", "val")])
    lowest = max(float(y) for y in re.findall(r'class="legend" x="[\d.]+" y="([\d.]+)"', svg))
    highest = min(float(point.split(",")[1]) for line in re.findall(r'points="([^"]*)"', svg) for point in line.split())
    assert lowest < highest and {"loss", "val loss"} <= set(texts(svg))


def test_a_label_at_the_edge_stays_on_the_page() -> None:
    svg = plot([loss(np.linspace(2, 1, 100))], [Mark(99, "lr 0.001 → 0.0005", "change")])
    (x,) = map(float, re.findall(r'class="label change" x="([\d.]+)"', svg))
    assert x + 3 * len("lr 0.001 → 0.0005") < 860


def test_what_was_set_from_outside_is_drawn_where_it_was_once_for_all_ranks() -> None:
    row = {"kind": "change", "do": "set", "number": 1, "what": "lr = 0.05", "from": 0.001, "to": 0.05, "step": 62}
    checkup = check_up(Curves("a", (loss(np.linspace(2, 1, 100)),)), around=[{**row, "rank": rank} for rank in (0, 1)])
    assert checkup.changes == (Change(62, "lr 0.001 → 0.05"),)
    assert texts(page([checkup])).count("lr 0.001 → 0.05") == 1
