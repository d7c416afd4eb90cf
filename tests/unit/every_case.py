"""One test for a whole table of cases: each pytest test costs milliseconds, and most cases cost less."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def every_case(
    names: str | tuple[str, ...], cases: Iterable[Any], *, ids: Any = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run all cases in one test and name every failing one; written like `pytest.mark.parametrize`.

    Each case has its own empty `tmp_path` and `capsys`, and its changes through `monkeypatch` are undone before the next one.
    All other fixtures are shared by the cases.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = _table(fields, list(cases), ids)

    def one_test(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        unknown = set(fields) - set(signature.parameters)
        assert not unknown, f"{test.__name__} does not take {sorted(unknown)}"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures: list[str] = []
            skips: list[pytest.skip.Exception] = []
            for number, (name, values) in enumerate(table):
                try:
                    _run_case(test, values, fixtures, number)
                except pytest.skip.Exception as skip:
                    skips.append(skip)
                except (Exception, pytest.fail.Exception) as error:
                    if str(error).startswith("Timeout"):  # of pytest-timeout: the other cases would have no limit
                        raise
                    failures.append(_failure(name, error, test))
            if failures:
                raise AssertionError(f"{len(failures)} of {len(table)} cases failed:\n" + "\n".join(failures))
            if skips and len(skips) == len(table):
                raise skips[0]

        fixtures = [one for name, one in signature.parameters.items() if name not in fields]
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return one_test


def _table(fields: list[str], cases: list[Any], ids: Any) -> list[tuple[str, dict[str, Any]]]:
    assert cases, "a table without cases shows nothing"
    table = []
    for number, case in enumerate(cases):
        name = None
        if isinstance(case, type(pytest.param())):
            assert not case.marks, "a mark is for a whole test"
            name, case = case.id, case.values if len(fields) > 1 else case.values[0]
        values = dict(zip(fields, case if len(fields) > 1 else [case], strict=True))
        if name is None and ids is not None:
            name = " ".join(str(ids(value)) for value in values.values()) if callable(ids) else str(ids[number])
        table.append((name or ", ".join(f"{key}={_short(value)}" for key, value in values.items()), values))
    return table


def _run_case(test: Callable[..., None], values: dict[str, Any], fixtures: dict[str, Any], number: int) -> None:
    own = dict(fixtures)
    if "tmp_path" in own:
        folder: Path = own["tmp_path"] / str(number)
        folder.mkdir()
        own["tmp_path"] = folder
    if "capsys" in own:
        own["capsys"].readouterr()  # what the case before has printed
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        test(**own, **values)


def _failure(name: str, error: BaseException, test: Callable[..., None]) -> str:
    file = inspect.unwrap(test).__code__.co_filename
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f"line {lines[-1]}" if lines else "before the test"
    return f"- {name} ({where}): {type(error).__name__}: {error}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
