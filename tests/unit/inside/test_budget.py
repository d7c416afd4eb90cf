"""When the expensive measurements are taken."""

from __future__ import annotations

import itertools
import math

from every_case import every_case

from holdfast.inside.budget import Budget


def sampled(budget: Budget, steps: range) -> list[int]:
    """The steps at which the parameters are sampled; steps of 10 ms, of which Holdfast's own work takes its whole budget."""
    taken = []
    for step in steps:
        budget.end_step(0, 0.01, 1e-4, None, None)
        for name in ("parameters", "weights", "weight-norm"):
            if step >= budget.next_step and budget.due(name, step):
                budget.charge(name, 1e-3 if name == "parameters" else 5e-5)
                taken += [step] if name == "parameters" else []
    return taken


@every_case(("norm", "closer"), [(math.inf, True), (0.1, True), (1000.0, True), (13.5, True), (10.5, False)])
def test_a_norm_of_all_weights_that_jumps_has_each_parameter_looked_at(norm: float, closer: bool) -> None:
    budget = Budget()
    assert len(sampled(budget, range(200))) > 1
    budget.note_weights(199, 10.0)
    assert not sampled(budget, range(200, 202))
    budget.note_weights(201, norm)
    assert sampled(budget, range(202, 210)) == ([202] if closer else [])
    budget.note_weights(209, norm)
    assert not sampled(budget, range(210, 220)), "the same norm again is no news"


def test_the_norm_of_all_weights_is_measured_often_though_each_step_takes_the_whole_budget() -> None:
    budget, taken = Budget(), []
    for step in range(1000):
        budget.end_step(0, 0.01, 1e-4, None, None)
        if step >= budget.next_step and budget.due("weight-norm", step):
            budget.charge("weight-norm", 2e-4)
            taken.append(step)
    assert max(after - before for before, after in itertools.pairwise(taken)) <= 16
