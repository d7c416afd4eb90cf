"""Every fault of the drills says what it does, where it gets in, what it needs, and what a good watcher makes of it."""

from __future__ import annotations

from pathlib import Path

from holdfast.diagnosis.causes import CAUSES
from holdfast.diagnosis.failures import CODES
from holdfast.drills import faults
from holdfast.drills.fault import hooks_of
from holdfast.drills.injection.facts import FACTS

CAUSE_CODES = {cause.code for cause in CAUSES}
ALL = [faults.find(code) for code in faults.every()]


def test_every_file_holds_the_fault_that_it_is_named_for() -> None:
    files = {path.stem for path in Path(faults.__file__).parent.glob("*.py")} - {"__init__"}
    assert {fault.code.replace("-", "_") for fault in ALL} == files
    for fault in ALL:
        assert fault.code.replace("-", "_") == fault.__module__.rpartition(".")[2]


def test_a_fault_says_what_it_does_gets_in_somewhere_and_needs_only_what_a_control_can_find_out() -> None:
    for fault in ALL:
        assert len(fault.description) > 10 and not fault.description.endswith(".") and "\n" not in fault.description, fault.code
        assert hooks_of(fault()), fault.code
        assert set(fault.needs) <= set(FACTS), fault.code


def test_what_is_expected_of_a_fault_are_findings_and_causes_that_exist() -> None:
    for fault in ALL:
        assert set(fault.expected.findings) <= set(CODES), f"{fault.code}: a finding that nobody can raise would always be missed"
        assert set(fault.expected.causes) <= CAUSE_CODES, f"{fault.code}: a cause that nobody can name would always be wrong"
        assert fault.expected.findings or not fault.expected.causes, fault.code
        mistake = fault.from_start and "ranks" not in fault.needs  # one rank that is set up differently trains all the same
        assert not (mistake and fault.expected.survivable), f"{fault.code}: a mistake of the script is not survived"
