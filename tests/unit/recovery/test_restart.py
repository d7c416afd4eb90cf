"""When a command is started again, with what, and when not."""

from __future__ import annotations

from dataclasses import replace

from every_case import every_case

from holdfast.recovery.restart import Changes, Ending, Restart, Stop, decide, in_vain

KILLED = Ending(code="process-died", exit_code=137, steps=100, reached=100, checkpoint="a", checkpoint_step=80)


def after(*endings: Ending, changes: Changes | None = None, at_most: int = 3) -> Restart | Stop:
    return decide(endings, changes or Changes(), at_most=at_most)


def further(one: Ending, steps: int) -> Ending:
    return replace(one, reached=(one.reached or 0) + steps)


def test_a_killed_training_is_started_again_without_a_change() -> None:
    assert after(KILLED) == Restart(Changes(), 1.0, "process-died")


def test_nothing_is_done_about_an_end_that_is_well_or_was_asked_for() -> None:
    assert after(replace(KILLED, exit_code=0)) == Stop()
    assert after(replace(KILLED, requested=True)) == Stop()


@every_case("error", ["NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "AttributeError"])
def test_a_mistake_in_the_script_before_the_first_step_is_not_tried_again(error: str) -> None:
    ending = Ending(code="script-error", exit_code=1, error=error)
    assert isinstance(after(ending), Stop) and error in str(after(ending))
    assert isinstance(after(replace(ending, steps=5, reached=5)), Restart)


def test_wrong_arguments_are_not_tried_again() -> None:
    assert isinstance(after(Ending(code="process-died", exit_code=2)), Stop)


def test_restarts_are_counted() -> None:
    endings = [further(KILLED, 100 * number) for number in range(4)]
    assert isinstance(after(*endings[:3]), Restart)
    said = after(*endings)
    assert isinstance(said, Stop) and "3 restarts" in str(said.why)
    assert isinstance(after(*endings, at_most=10), Restart)
    assert isinstance(after(KILLED, at_most=0), Stop)


def test_after_two_attempts_that_came_no_further_it_stays_ended() -> None:
    assert isinstance(after(KILLED, KILLED, at_most=10), Restart)
    said = after(KILLED, KILLED, KILLED, at_most=10)
    assert isinstance(said, Stop) and "step 100" in str(said.why)


def test_the_wait_doubles_while_it_comes_no_further() -> None:
    first, second = after(KILLED), after(KILLED, KILLED)
    assert isinstance(first, Restart) and isinstance(second, Restart)
    assert (first.wait, second.wait) == (1.0, 2.0)


def test_a_newer_checkpoint_is_progress_though_the_step_is_not_higher() -> None:
    saved = replace(KILLED, checkpoint_step=95)
    assert in_vain([KILLED, saved]) == 0
    assert in_vain([KILLED, KILLED, saved]) == 0
    assert in_vain([KILLED, saved, saved]) == 1


def test_memory_that_ran_out_halves_the_workers_each_time() -> None:
    ending = replace(KILLED, code="host-out-of-memory", workers=8)
    first = after(ending)
    assert isinstance(first, Restart) and first.changes == Changes(workers=4)
    again = after(ending, replace(ending, workers=4), changes=first.changes)
    assert isinstance(again, Restart) and again.changes == Changes(workers=2)
    last = after(ending, replace(ending, workers=1), changes=Changes(workers=1))
    assert isinstance(last, Restart) and last.changes == Changes(workers=0)


def test_a_loader_that_stalls_twice_gets_fewer_workers() -> None:
    ending = replace(KILLED, code="loader-stall", workers=4)
    first, second = after(ending), after(ending, ending)
    assert isinstance(first, Restart) and first.changes == Changes()
    assert isinstance(second, Restart) and second.changes == Changes(workers=2)


def test_a_gpu_that_is_full_doubles_the_parts_and_bad_numbers_halve_the_rate() -> None:
    full = after(replace(KILLED, code="gpu-out-of-memory"), changes=Changes(parts=2))
    bad = after(replace(KILLED, code="non-finite-loss"))
    assert isinstance(full, Restart) and full.changes == Changes(parts=4)
    assert isinstance(bad, Restart) and bad.changes == Changes(lr_factor=0.5)
    rolled_back = after(replace(KILLED, code="non-finite-weights", rolled_back=True))
    assert isinstance(rolled_back, Restart) and rolled_back.changes == Changes(), "it was not the learning rate"
    damaged = replace(KILLED, code="non-finite-loss", explained=True)
    explained, again = after(damaged), after(damaged, replace(damaged, reached=900))
    assert isinstance(explained, Restart) and explained.changes == Changes(), "nor here: a bad batch, or a damaged weight"
    assert isinstance(again, Restart) and again.changes == Changes(lr_factor=0.5), "unless it happens again"
    assert full.changes.sentences() == ["every batch in 4 parts"] and bad.changes.sentences() == ["learning rate x 0.5"]


def test_a_script_that_ends_before_its_first_step_with_its_own_flag_is_started_without_it_once() -> None:
    """As part of the same restart: what counts the restarts and what is in vain does not see it, even after wrong arguments."""
    failed = Ending(code="script-error", exit_code=2, with_flag=True)
    first = after(replace(KILLED, code="host-out-of-memory", workers=8), at_most=1)
    assert isinstance(first, Restart)
    assert after(KILLED, failed, changes=first.changes, at_most=1) == Restart(Changes(workers=4), 1.0, "script-error")
    assert isinstance(after(KILLED, failed, KILLED, at_most=1), Stop)
    assert isinstance(after(KILLED, failed, KILLED, at_most=10), Restart)
    assert isinstance(after(KILLED, failed, replace(failed, with_flag=False)), Stop)
