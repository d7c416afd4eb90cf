"""How the peers are judged: what they say is taken from their own output, and counts only if it is theirs."""

from __future__ import annotations

import sys
from pathlib import Path

from every_case import every_case

from holdfast.drills import faults

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks/peer_trainings"))
import watchers

BY_NAME = {watcher.name: watcher for watcher in watchers.WATCHERS}


@every_case(
    ("name", "output", "said"),
    [
        (
            "autograd anomaly",
            "x\nRuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output.\n",
            "Function",
        ),
        ("hand-written check", "step 4 loss=1\nstep 5: the loss is not finite, the batch is left out\n", "not finite"),
        ("Lightning, early stopping", "Monitored metric val_loss = nan is not finite. Previous best\n", "not finite"),
        ("HF Trainer, NaN logged", "{'loss': 'nan', 'grad_norm': 'nan'}\n", "nan"),
        ("nothing", "Traceback\nIndexError: Target 10 is out of bounds.\n", "out of bounds"),
    ],
)
def test_what_a_peer_says_is_found_in_its_output(name: str, output: str, said: str) -> None:
    assert said in watchers.said_in(BY_NAME[name], output)


@every_case("name", [watcher.name for watcher in watchers.WATCHERS])
def test_a_healthy_log_is_not_taken_for_something_said(name: str) -> None:
    log = "step 3 loss=0.5 grad_norm=1\n{'loss': '0.5', 'grad_norm': '2.1'}\nepoch 1: accuracy 0.97\n"
    assert watchers.said_in(BY_NAME[name], log) == ""


def test_an_operation_in_the_backward_pass_is_not_the_cause_of_a_batch_of_nan() -> None:
    said = "RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output."
    assert not watchers.names_cause("nan-batch", said)
    assert watchers.names_cause("label-out-of-range", "IndexError: Target 10 is out of bounds.")


def test_every_fault_of_the_table_is_one_of_the_house_and_has_words_for_its_cause() -> None:
    assert set(watchers.FAULTS) <= set(faults.every())
    assert set(watchers.FAULTS) == set(watchers.CAUSES)


def test_every_cost_is_compared_with_the_same_training_without_the_watcher() -> None:
    for watcher in watchers.WATCHERS:
        assert not watcher.base or BY_NAME[watcher.base].script[0] == watcher.script[0]
