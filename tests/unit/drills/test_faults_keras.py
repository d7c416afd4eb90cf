"""Faults get into a Keras 3 training on torch, whose optimizers are not torch's; what cannot, says why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_case import every_case

from holdfast.drills.injection.injector import Injector
from holdfast.drills.plan import Plan, Planned

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("Keras computes with another backend here", allow_module_level=True)

AT, STEPS, RATE = 8, 18, 0.01


def train(folder: Path, *codes: str, rate: Any = RATE) -> tuple[Any, Injector]:
    """Three passes of six steps; the model as it is then."""
    keras.utils.set_random_seed(0)
    folder.mkdir(exist_ok=True)
    injector = Injector(Plan(faults=tuple(Planned(code=code, step=AT) for code in codes), folder=folder))
    injector.install()
    try:
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(rate), loss=loss)
        inputs = np.random.default_rng(0).random((24, 4), dtype="float32")
        model.fit(inputs, np.arange(24) % 3, batch_size=4, epochs=3, verbose=0)
    finally:
        injector.remove()
    return model, injector


def largest(model: Any) -> float:
    return max(float(np.abs(weight).max()) for weight in model.get_weights())


def notes_of(injector: Injector) -> list[tuple[str, Any]]:
    return [(note["event"], note.get("step")) for note in injector.notes.read()]


def test_a_healthy_training_is_left_alone_and_its_facts_are_noted(tmp_path: Path) -> None:
    model, injector = train(tmp_path)
    assert injector.context.step == STEPS and largest(model) < 10 and not notes_of(injector)
    assert {"loader", "float-inputs", "labels", "weights"} <= injector.facts.have
    assert not {"layers", "relu", "recurrent", "workers"} & injector.facts.have


@every_case(
    ("code", "is_right"),
    [
        ("nan-batch", lambda model: np.isnan(largest(model))),
        ("nan-gradient", lambda model: np.isnan(largest(model))),
        ("corrupted-weight", lambda model: not largest(model) < 1e30),
        ("lr-x100", lambda model: float(model.optimizer.learning_rate) == pytest.approx(100 * RATE)),
        ("scheduler-bug", lambda model: float(model.optimizer.learning_rate) == pytest.approx(100 * RATE)),
    ],
)
def test_a_fault_is_injected_at_its_step_and_noted(tmp_path: Path, code: str, is_right: Any) -> None:
    model, injector = train(tmp_path, code)
    assert notes_of(injector) == [("injected", AT)] and is_right(model)


def test_what_cannot_be_injected_says_why(tmp_path: Path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(RATE, 10, 0.5)
    _, injector = train(tmp_path, "lr-x100", "stale-optimizer", rate=schedule)
    why = {note["fault"]: note["why"] for note in injector.notes.read() if note["event"] == "cannot-happen"}
    assert why["lr-x100"] == "a schedule of Keras computes the learning rate at every update"
    assert why["stale-optimizer"].startswith("the model has no Linear or")
