"""Every fault of the house says what it does, where it gets in, what it needs, and what a good watcher makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.diagnosis.causes import CAUSES
from holdfast.diagnosis.failures import CODES
from holdfast.drills import faults
from holdfast.drills.fault import Fault, places_of
from holdfast.drills.injection.facts import FACTS

CAUSE_CODES = {cause.code for cause in CAUSES}
HOUSE = faults.every()


@pytest.fixture(params=HOUSE)
def fault(request: pytest.FixtureRequest) -> type[Fault]:
    return faults.find(request.param)


def test_all_files_are_listed() -> None:
    files = {path.stem for path in Path(faults.__file__).parent.glob("*.py")} - {"__init__"}
    assert {code.replace("-", "_") for code in HOUSE} == files


def test_a_fault_is_found_by_the_code_that_its_file_is_named_for(fault: type[Fault]) -> None:
    assert fault.code.replace("-", "_") == fault.__module__.rpartition(".")[2]


def test_a_fault_says_what_it_does_in_a_sentence_without_a_full_stop(fault: type[Fault]) -> None:
    assert len(fault.what) > 10 and not fault.what.endswith(".") and "\n" not in fault.what


def test_a_fault_gets_in_somewhere(fault: type[Fault]) -> None:
    assert places_of(fault())


def test_a_fault_needs_only_what_a_control_can_find_out(fault: type[Fault]) -> None:
    assert set(fault.needs) <= set(FACTS)


def test_what_is_expected_of_a_fault_are_findings_and_causes_that_exist(fault: type[Fault]) -> None:
    assert set(fault.expected.findings) <= set(CODES), "a finding that nobody can raise would always be missed"
    assert set(fault.expected.causes) <= CAUSE_CODES, "a cause that nobody can name would always be wrong"
    assert fault.expected.findings or not fault.expected.causes


def test_a_mistake_of_the_script_is_not_expected_to_be_survived(fault: type[Fault]) -> None:
    assert not (fault.from_start and fault.expected.survivable)
