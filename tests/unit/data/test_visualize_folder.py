"""Where the page goes: nothing of the user's is overwritten, nothing is put among the data, and text in it stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import made_data as made
import pytest
from every_case import every_case

from holdfast.data.validate import Settings
from holdfast.data.visualize.sample import Wish
from holdfast.data.visualize.visualize import Drawn, visualize
from holdfast.errors import UsageError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "pets"
    made.image_folder(folder)
    return folder


def drawn(data: Path, to: Path | None, samples: int = 4) -> Drawn:
    return visualize(str(data), Settings(jobs=1, cache=data.parent / "cache"), Wish(samples=samples), to)


def test_a_file_of_somebody_else_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(UsageError, match=r"page\.html exists and was not written by"):
        drawn(data, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"] and (tmp_path / "page.html").read_text() == "mine"


def test_what_was_drawn_before_is_drawn_anew(data: Path, tmp_path: Path) -> None:
    first = drawn(data, tmp_path / "page.html", samples=20).page.read_text()
    again = drawn(data, tmp_path / "page.html").page.read_text()
    assert first.count("<figure") == 20 and again.count("<figure") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_link_is_not_written_through(data: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    (tmp_path / "page.html").symlink_to(tmp_path / "precious.txt")
    with pytest.raises(UsageError, match="was not written by"):
        drawn(data, tmp_path / "page.html")
    assert (tmp_path / "precious.txt").read_text() == "mine"


@every_case("inside", ["page.html", "new/page.html", "train/cat/page.html"])
def test_nothing_is_written_into_the_data(data: Path, inside: str) -> None:
    before = sorted(data.rglob("*"))
    with pytest.raises(UsageError, match="is inside the data"):
        drawn(data, data / inside)
    assert sorted(data.rglob("*")) == before


def test_without_a_name_it_goes_here_or_beside_the_data(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert drawn(data, None).page == tmp_path / "pets-samples.html"
    monkeypatch.chdir(data / "train")
    assert drawn(data, None).page == data.parent / "pets-samples.html"


class _Found(HTMLParser):
    """Tags, texts and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [f"{name}={value}" for name, value in attrs]


def test_names_of_files_and_classes_stay_text_in_the_page(tmp_path: Path) -> None:
    """Data from strangers: a class that is called like code is only called so."""
    evil = "<img src=x onerror=alert(1)>"
    for split in ("train", "val"):
        for number in range(3):
            made.write(tmp_path / f"set/{split}/{evil}/{split}{number}.png", made.encoded(number + 10 * (split == "val"), "PNG"))
            made.write(
                tmp_path / f'set/{split}/"&quot/{split}{number}.png', made.encoded(number + 30 * (split == "val") + 50, "PNG")
            )
    answer = drawn(tmp_path / "set", tmp_path / "to", samples=8)
    assert evil in {name for one in answer.samples for name in one.classes}
    page = _Found()
    page.feed((tmp_path / "to").read_text())
    assert "img" not in page.tags and page.tags.count("script") == 1
    assert not any(value.startswith("onerror") for value in page.values)
    assert f"value={evil}" in page.values  # the class can be chosen


def test_the_page_needs_nothing_but_itself(data: Path, tmp_path: Path) -> None:
    text = drawn(data, tmp_path / "page.html", samples=20).page.read_text()
    pictures = re.findall(r'href="data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=]+"', text)
    assert len(pictures) == 20
    assert not re.search(r"https?:|//|@import|url\(|src=", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
