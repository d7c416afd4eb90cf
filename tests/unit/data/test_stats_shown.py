"""Statistics as they are shown: in a terminal of 100 columns, as a page that needs nothing else, as JSON; and exit codes."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import replace
from pathlib import Path

import made_data as made
import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.app import app
from holdfast.data.stats.figures import Bars, Grid, Histogram, Statistics
from holdfast.data.stats.take import page

EVIL = "</title><script>alert('&')</script>"


def asked(*words: object) -> Result:
    return CliRunner().invoke(app, ["stats", "--no-cache", "--jobs", "1", *map(str, words)])


@pytest.fixture(scope="module")
def yolo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yolo")
    made.yolo(folder)
    return folder


def everything() -> Statistics:
    """One figure of each kind, with words that would do harm in a page or a terminal."""
    counts = {EVIL: {"train": 3, "val": 0}, "\x1b[31mred": {"train": 0, "val": 1}, **{f"c{n}": {"train": 1} for n in range(80)}}
    figures = [
        Bars(key="classes", title="classes", unit="objects", counts=counts, columns={"images": {}}, others=9, of_others=4),
        Bars(key="column:x", title=EVIL, unit="values", counts={EVIL: {"train": 1}}),
        Histogram(key="h", title=EVIL * 3, unit=EVIL, edges=[0, 1, 2], counts={"train": [1, 2]}, nan=3, inf=1, note=EVIL),
        Bars(key="nothing", title="nothing", unit="times", counts={}),
        Histogram(key="empty", title="empty", unit="", edges=[0.0, 1.0], counts={}),
        Grid(key="m", title="map", unit="", shape="map", values=[[0, 1], [2, 3]]),
        Grid(key="p", title="pairs", unit="", shape="pairs", values=[[1, 0], [0, 1]], names=[EVIL, "b"]),
    ]
    return Statistics(
        path=EVIL, format="yolo", splits={"train": 1, "val": 2}, figures=figures, unreadable={EVIL: EVIL}, unreadable_count=7,
        notes=[EVIL], classes=[EVIL],
    )  # fmt: skip


class Outline(html.parser.HTMLParser):
    """Which tags a page opens, and what they lead to."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]


def test_words_from_the_data_run_nothing_in_the_page_and_it_asks_nobody_for_anything() -> None:
    content = page(everything())
    outline = Outline(content)
    assert "script" not in outline.tags and outline.links == []
    assert "alert(" in content, "the name of the class is shown"
    assert not re.search(r"url\(|@import|https?:", content)
    assert outline.tags.count("svg") == 7
    assert "prefers-color-scheme: dark" in content


def test_a_pair_has_the_same_colour_in_both_directions_and_the_most_frequent_the_strongest() -> None:
    values = [[100.0, 8.0, 4.0], [8.0, 10.0, 2.0], [4.0, 2.0, 5.0]]
    grid = Grid(key="p", title="pairs", unit="images", shape="pairs", values=values, names=["a", "b", "c"])
    found = re.findall(r'fill-opacity="([\d.]+)"><title>(\w) and (\w)', page(replace(everything(), figures=[grid])))
    strength = {(one, other): float(opacity) for opacity, one, other in found if one != other}
    assert len(strength) == 6 and all(strength[one, other] == strength[other, one] for one, other in strength)
    assert strength["a", "b"] > strength["a", "c"] > strength["b", "c"] > 0


def test_shares_beside_a_histogram_are_readable_percentages() -> None:
    histogram = Histogram(key="h", title="h", unit="", edges=[0, 1, 2], counts={"train": [100, 1]})
    assert {"99 %", "50 %", "0 %"} <= set(re.findall(r">([^<]* %)<", page(replace(everything(), figures=[histogram]))))


def test_words_from_the_data_do_not_reach_the_terminal_as_commands(capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli.stats_show import show

    show(everything())
    told = capsys.readouterr().out
    assert "\x1b[31m" not in told
    assert "and 79 more with" in told and "could not be read: 7 files" in told and "3 NaN, 1 Inf" in told


def test_the_answer_fits_a_terminal_of_a_hundred_columns(yolo: Path) -> None:
    answer = asked(yolo)
    assert answer.exit_code == 0, answer.output
    assert max(map(len, answer.stdout.splitlines())) <= 100
    for word in ("classes", "objects per image", "box size, px", "box positions", "classes in one image", "image sizes"):
        assert word in answer.stdout


def test_json_holds_every_figure_and_the_page_is_written(yolo: Path, tmp_path: Path) -> None:
    answer = asked(yolo, "--json", "--html", tmp_path / "stats.html")
    row = json.loads(answer.stdout)
    assert row["samples"] == 46 and row["splits"] == made.MANY and row["unreadable_count"] == 0
    assert {"classes", "objects-per-image", "box-size", "box-area", "box-aspect", "box-positions", "co-occurrence"} <= {
        figure["key"] for figure in row["figures"]
    }
    assert "<svg" in (tmp_path / "stats.html").read_text(encoding="utf-8")


def test_exit_1_where_a_file_could_not_be_read_and_2_where_nothing_could_be_done(tmp_path: Path) -> None:
    made.image_folder(tmp_path / "data")
    assert asked(tmp_path / "data").exit_code == 0
    next((tmp_path / "data").rglob("*.png")).write_bytes(b"")
    answer = asked(tmp_path / "data")
    assert answer.exit_code == 1 and "could not be read: 1 file" in answer.stdout
    for words in ((tmp_path / "nowhere",), (tmp_path / "data", "--class", "wolf"), (tmp_path / "data", "--format", "paper")):
        assert asked(*words).exit_code == 2
