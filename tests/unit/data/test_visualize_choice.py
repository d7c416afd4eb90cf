"""Which samples are drawn: what is suspicious is never crowded out, and a seed alone decides the rest."""

from __future__ import annotations

from every_case import every_case

from holdfast.data.visualize.sample import Suspects, chosen

REST = {
    (kind, split): [f"{kind}-{split}-{number}" for number in range(100)] for kind in ("cat", "dog") for split in ("train", "val")
}


def singles(code: str, severity: str, count: int) -> Suspects:
    return Suspects(code, severity, [(f"{code}-{number}",) for number in range(count)])  # type: ignore[arg-type]


def flat(units: list[tuple[object, ...]]) -> list[str]:
    return [str(one) for unit in units for one in unit]


def test_suspicious_samples_stand_before_all_others_in_the_order_of_their_findings() -> None:
    units = flat(chosen([singles("bad", "critical", 3), singles("odd", "warning", 2)], REST, 20, 0))
    assert [name.split("-")[0] for name in units[:5]] == ["bad"] * 3 + ["odd"] * 2
    assert len(units) == 20 and not any(name.startswith(("bad", "odd")) for name in units[5:])


def test_a_finding_with_many_samples_leaves_room_for_one_with_few() -> None:
    units = flat(chosen([singles("many", "critical", 1000), singles("few", "warning", 2)], REST, 10, 0))
    assert sum(name.startswith("few") for name in units) == 2 and sum(name.startswith("many") for name in units) == 8


def test_what_is_only_to_be_known_takes_a_quarter_at_most() -> None:
    units = flat(chosen([singles("touch", "info", 1000)], REST, 20, 0))
    assert sum(name.startswith("touch") for name in units) == 5 and len(units) == 20


def test_asked_for_alone_it_gets_all() -> None:
    assert len(chosen([singles("touch", "info", 1000)], REST, 20, 0, only_suspects=True)) == 20


@every_case("wanted", [1, 2, 3, 4, 5, 7])
def test_a_pair_is_never_torn_apart(wanted: int) -> None:
    pairs = Suspects("leak", "critical", [("a", "b"), ("c", "d"), ("e", "f")])
    units = chosen([singles("bad", "critical", 1), pairs], REST, wanted, 0)
    assert len(flat(units)) == wanted
    assert all(len(unit) == 2 for unit in units if unit[0] in "abcdef")


def test_a_sample_with_another_finding_is_still_shown_beside_its_double() -> None:
    units = chosen([Suspects("bad", "critical", [("a",)]), Suspects("leak", "critical", [("a", "b")])], {}, 10, 0)
    assert units == [("a",), ("a", "b")]


def test_the_rest_is_spread_over_splits_and_classes() -> None:
    rest = {**REST, ("rare", "train"): ["rare-0"]}
    units = flat(chosen([], rest, 9, 0))
    counts = {bucket: sum(name in rest[bucket] for name in units) for bucket in rest}
    assert counts == {("cat", "train"): 2, ("cat", "val"): 2, ("dog", "train"): 2, ("dog", "val"): 2, ("rare", "train"): 1}


def test_a_small_set_is_drawn_once_and_not_again() -> None:
    units = flat(chosen([Suspects("bad", "critical", [("a",)])], {("", "all"): ["a", "b", "c"]}, 50, 0))
    assert units == ["a", "b", "c"]


def test_another_seed_shows_others_of_a_finding() -> None:
    many = singles("many", "critical", 1000)
    first, again, other = (flat(chosen([many], {}, 10, seed)) for seed in (0, 0, 1))
    assert first == again and set(first) != set(other)
