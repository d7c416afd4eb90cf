"""What fails inside stays inside."""

from __future__ import annotations

import pytest

from holdfast.inside.shield import Shield
from holdfast.inside.taps.registry import Patches


def failing() -> None:
    raise ValueError("ours")


def test_an_error_is_reported_and_does_not_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    told: list[tuple[str, str]] = []
    shielded = Shield(lambda what, error: told.append((what, str(error))))(failing)
    assert shielded() is None
    assert told == [("failing", "ours")]


def test_an_entry_that_keeps_failing_is_closed_and_the_others_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    calls: list[int] = []

    def counting() -> None:
        calls.append(1)
        raise ValueError

    reported: list[str] = []
    shield = Shield(lambda what, _error: reported.append(what))
    shielded, fine = shield(counting), shield(lambda: 7)
    for _ in range(20):
        shielded()
    assert len(calls) == 5 and reported == [*["counting"] * 5, "counting: off from now on"]
    assert fine() == 7


def test_a_report_that_fails_does_not_come_out_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)

    def report(_what: str, _error: BaseException) -> None:
        raise OSError("disk full")

    assert Shield(report)(failing)() is None


def test_ctrl_c_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Shield(lambda _what, _error: None)(interrupted)()


class Owner:
    @staticmethod
    def work() -> str:
        """Work."""
        return "original"


def test_a_patch_looks_like_the_original_and_is_taken_out_again() -> None:
    original, patches = Owner.work, Patches()
    patches.replace(Owner, "work", lambda inner: lambda: f"around {inner()}")
    assert Owner.work() == "around original"  # type: ignore[call-arg, misc]
    assert Owner.work.__doc__ == "Work."
    patches.restore()
    assert Owner.work is original


def test_a_patch_that_another_tool_has_wrapped_since_is_left_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = Patches()
    monkeypatch.setattr(Owner, "work", Owner.work)
    patches.replace(Owner, "work", lambda inner: lambda: f"around {inner()}")
    ours = Owner.work
    theirs = lambda: f"theirs {ours()}"  # noqa: E731
    Owner.work = theirs  # type: ignore[method-assign, assignment]
    patches.restore()
    assert Owner.work is theirs


def test_a_name_that_this_torch_does_not_have_is_left_alone() -> None:
    patches = Patches()
    patches.replace(Owner, "not_there", lambda inner: inner)
    assert not hasattr(Owner, "not_there")
