"""One test for a table of cases fails when any case does: it would hide failures otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from every_case import every_case


def test_all_cases_run_and_every_failing_one_is_named() -> None:
    seen = []

    @every_case(("number", "word"), [(1, "a"), (2, "b"), (3, "c"), (4, "d")])
    def check(number: int, word: str) -> None:
        seen.append(number)
        assert number % 2, f"{word} is even"

    with pytest.raises(AssertionError, match="2 of 4 cases failed") as failed:
        check()
    assert seen == [1, 2, 3, 4]
    assert "number=2, word='b'" in str(failed.value) and "d is even" in str(failed.value) and "c is even" not in str(failed.value)


def test_an_error_and_a_missing_error_fail_and_one_skipped_case_hides_no_other() -> None:
    @every_case("number", [0, 1, 2])
    def check(number: int) -> None:
        if number == 0:
            pytest.skip("not here")
        with pytest.raises(ZeroDivisionError):
            number // (number - 1)

    with pytest.raises(AssertionError, match=r"1 of 3 cases failed:\n- number=2 \(line \d+\): Failed: DID NOT RAISE"):
        check()


@every_case("name", ["first", "second"])
@every_case("value", ["1", "2"])
def test_each_case_has_its_own_folder_and_environment(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "OF_A_CASE" not in os.environ and not list(tmp_path.iterdir())
    monkeypatch.setenv("OF_A_CASE", name + value)
    (tmp_path / "file").touch()
