from __future__ import annotations

import io

from made_trial import made_trial, raised
from rich.console import Console

from holdfast.drills.report import in_sentences, line, table, totals
from holdfast.drills.score import Score, score, score_control
from holdfast.drills.suite import SkippedFault, SuiteResult

CONTROL = made_trial()
GOOD = score(made_trial("nan-batch", raised=(raised("non-finite-loss", cause="data-non-finite"),)), CONTROL)
MISSED = score(made_trial("checkpoint-truncated", exit_code=1), CONTROL)
WRONG = score(
    made_trial("recurrent-explosion", raised=(raised("gradient-explosion", step=231, cause="optimizer-holds-other-parameters"),)),
    CONTROL,
)
NOT_PUT_IN = score(made_trial("corrupted-weight", notes=[], steps=120), CONTROL)
SCORES = [GOOD, MISSED, WRONG, NOT_PUT_IN]


def rendered(scores: list[Score], width: int = 100) -> str:
    page = Console(file=io.StringIO(), width=width)
    page.print(table(scores))
    assert isinstance(page.file, io.StringIO)
    return page.file.getvalue()


def test_the_table_fits_100_columns_and_holds_each_code_in_one_piece() -> None:
    text = rendered(SCORES)
    assert max(map(len, text.splitlines())) <= 100
    for code in ("nan-batch", "checkpoint-truncated", "recurrent-explosion", "non-finite-loss", "gradient-explosion"):
        assert code in text


def test_the_table_tells_a_miss_and_a_wrong_cause_from_the_rest() -> None:
    text = rendered(SCORES)
    assert text.count("NOT SEEN") == 1 and text.count("✗") == 1 and text.count("✓") == 1 and "not injected" in text


def test_rows_of_one_fault_are_told_apart_by_policy_and_seed() -> None:
    other = score(made_trial("nan-batch", policy="observe", seed=1), CONTROL)
    assert "observe 1" in rendered([GOOD, other]) and "heal" not in rendered([GOOD])


def test_a_line_as_a_run_ends_says_what_was_seen_done_and_survived() -> None:
    assert line(GOOD) == "nan-batch at step 200, heal: non-finite-loss at once, cause data-non-finite; survived"
    assert line(MISSED) == "checkpoint-truncated at step 200, heal: NOT SEEN; not survived (exit 1)"
    assert "after 31 steps" in line(WRONG) and "(WRONG)" in line(WRONG)
    assert line(NOT_PUT_IN) == "corrupted-weight: could not be injected: the run ended after 120 steps"
    assert line(SkippedFault("train", "slow-worker", "no loader workers")) == "slow-worker: skipped, no loader workers"


def test_a_control_that_raises_something_is_called_a_false_alarm() -> None:
    assert line(score_control(CONTROL)).endswith("accuracy 0.9; no findings")
    assert line(score_control(made_trial(raised=(raised("hang"),)))).endswith("FALSE ALARM: hang")


def test_the_totals_count_only_where_something_was_to_be_seen_or_survived() -> None:
    result = SuiteResult(controls=[score_control(CONTROL)], scores=SCORES)
    found = totals(result)
    assert (found.injected, found.to_see, found.seen, found.to_explain, found.cause_right) == (3, 3, 2, 2, 1)
    assert (found.to_survive, found.survived, found.good) == (3, 2, False)
    assert found.in_words()[0] == "seen 2 of 3, first cause right 1 of 2, survived 2 of 3"


def test_a_false_alarm_makes_a_course_bad_and_a_quiet_course_good() -> None:
    alarmed = score_control(made_trial(raised=(raised("hang"),)))
    assert totals(SuiteResult(controls=[score_control(CONTROL)], scores=[GOOD])).good
    assert not totals(SuiteResult(controls=[alarmed], scores=[GOOD])).good


def test_a_test_that_fails_is_told_what_happened() -> None:
    words = in_sentences(MISSED)
    assert "NOT SEEN" in words and "accuracy 0.9 with the fault, 0.9 without" in words and "heal" in words and "seed 0" in words
