"""Bytes, counts, durations and values read as a person would write them."""

from __future__ import annotations

from every_case import every_case

from holdfast.units import count, duration, number, size


@every_case(
    ("value", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "0.977 KiB"), (393216000, "375 MiB"), (5 << 50, "5,120 TiB"), (None, "–")],
)
def test_bytes_are_told_in_the_unit_that_fits(value: float | None, said: str) -> None:
    assert size(value) == said


def test_a_part_and_its_whole_are_told_in_one_unit() -> None:
    assert size(300 << 20, of=3 << 30) == "0.293 of 3 GiB"


@every_case(
    ("seconds", "said"),
    [
        (7.59e-5, "75.9 µs"), (0.00627, "6.27 ms"), (0.0, "0.0 s"), (0.4, "0.4 s"), (59.9, "59 s"), (125, "2 min 5 s"),
        (7260, "2 h 1 min"), (273600, "3 d 4 h"), (None, "–"),
    ],
)  # fmt: skip
def test_durations_are_told_as_a_person_says_them(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_a_count_agrees_with_its_noun() -> None:
    assert [count(1, "file"), count(2304, "row"), count(3, "box", "boxes")] == ["1 file", "2,304 rows", "3 boxes"]


@every_case(
    ("value", "said"), [(4153.0, "4,153"), (0.002531, "0.00253"), (1.234e8, "1.23e8"), (float("inf"), "inf"), (None, "–")]
)
def test_measured_values_keep_the_digits_that_matter(value: float | None, said: str) -> None:
    assert number(value) == said
