from __future__ import annotations

from pathlib import Path

from holdfast.drills.plan import Plan, Planned


def test_a_plan_arrives_in_the_training_process_as_it_was_made() -> None:
    plan = Plan(
        faults=(Planned(code="nan-batch", step=3), Planned(code="mine", step=9, strength=2.5, source="/a/mine.py")),
        folder=Path("/drill"),
        seed=7,
    )
    assert Plan.from_environment(plan.as_environment()) == plan


def test_a_control_has_a_plan_too_and_a_usual_run_has_none() -> None:
    control = Plan(faults=(), folder=Path("/drill"))
    assert Plan.from_environment(control.as_environment()) == control
    assert Plan.from_environment({}) is None
