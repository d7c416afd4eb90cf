"""The page of `holdfast diagnose --html`: its plots, and what was changed from outside."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from holdfast.diagnosis.checkup import Change, check_up
from holdfast.diagnosis.page import page
from holdfast.diagnosis.plot import plot
from holdfast.signals.curves import Curve, Curves

STEPS = np.arange(100)


def loss(values: np.ndarray, name: str = "loss", split: str = "train") -> Curve:
    return Curve(name, STEPS, values.astype(np.float64), role="loss", split=split, better="lower")


def plots(text: str) -> list[dict[str, Any]]:
    """What the page's own scripts draw."""
    return [json.loads(one) for one in re.findall(r'class="holdfast-plot"><script type="application/json">(.*?)</script>', text)]


def test_a_plot_holds_its_curves_and_says_what_its_axes_are() -> None:
    (one,) = plots(plot([loss(np.linspace(2, 1, 100)), loss(np.linspace(2.1, 1.4, 100), "val loss", "val")], title="loss"))
    assert (one["title"], one["along"]) == ("loss", "step") and [line["name"] for line in one["lines"]] == ["loss", "val loss"]
    assert one["lines"][0]["x"] == STEPS.tolist() and one["lines"][0]["y"][0] == 2.0


def test_a_long_curve_is_thinned_without_losing_its_spike_and_a_nan_is_marked() -> None:
    values = np.ones(100_000)
    values[[500, 700]] = [50.0, np.nan]
    (one,) = plots(plot([Curve("loss", np.arange(100_000), values)]))
    line = one["lines"][0]
    assert len(line["x"]) < 700 and 500 in line["x"] and line["bad"] == [700]


def test_a_curve_of_one_point_is_not_drawn() -> None:
    assert plot([Curve("loss", np.array([3]), np.array([1.0]))]) == ""


def test_a_name_cannot_end_the_script_that_holds_it() -> None:
    shown = plot([loss(np.linspace(2, 1, 100), "</script><script>alert(1)</script>")])
    assert shown.count("<script") == 1 and plots(shown)[0]["lines"][0]["name"].startswith("</script>")


def test_a_page_holds_what_draws_its_plots_once_and_loads_nothing() -> None:
    checkups = [check_up(Curves(name, (loss(np.linspace(2, 1, 100)),))) for name in ("a", "b")]
    text = page(checkups)
    assert len(plots(text)) == 2 and text.count("var uPlot=") == 1 and '"holdfast/plots.js": "data:text/javascript' in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)|@import|url\(', text)


def test_what_was_set_from_outside_is_drawn_where_it_was_once_for_all_ranks() -> None:
    row = {"kind": "change", "do": "set", "number": 1, "what": "lr = 0.05", "from": 0.001, "to": 0.05, "step": 62}
    checkup = check_up(Curves("a", (loss(np.linspace(2, 1, 100)),)), around=[{**row, "rank": rank} for rank in (0, 1)])
    assert checkup.changes == (Change(62, "lr 0.001 → 0.05"),)
    (one,) = plots(page([checkup]))
    assert one["marks"] == [{"x": 62, "label": "lr 0.001 → 0.05", "kind": "change", "tone": "info"}]
