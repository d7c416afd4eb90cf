"""A checkpoint that is not finite: told, and under a policy that acts no good one is lost to it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from every_case import every_case
from saving_script import checkpoints, findings, made, spoil, train

from holdfast.inside.gradients.non_finite import bad_tensors


@pytest.mark.parametrize("policy", ["guard", "heal"])
def test_a_good_file_is_never_overwritten_by_one_with_nan(run: Any, policy: str) -> None:
    folder, (model, optimizer) = run(policy), made()
    train(model, optimizer, 2)
    torch.save({"model": model.state_dict()}, "best.pt")
    good = Path("best.pt").read_bytes()
    spoil(model)
    assert torch.save({"model": model.state_dict()}, "best.pt") is None
    beside = Path("best.non-finite-step-2.pt")
    assert Path("best.pt").read_bytes() == good
    assert torch.isnan(torch.load(beside, weights_only=True)["model"]["0.weight"][0, 0])
    (finding,) = findings(folder)
    assert (finding["code"], finding["severity"], finding["step"]) == ("checkpoint-non-finite", "critical", 2)
    evidence = finding["evidence"]
    assert (evidence["path"], evidence["diverted_to"]) == (str(Path("best.pt").absolute()), str(beside.absolute()))
    assert evidence["tensors"] == [{"name": "model.0.weight", "nan": 1, "inf": 0, "of": 32}]
    assert [row["event"] for row in checkpoints(folder)] == ["saved", "diverted"]


@pytest.mark.parametrize("policy", ["observe", "guard"])
def test_weights_that_go_into_a_safetensors_file_are_watched_alike(run: Any, policy: str) -> None:
    folder, (model, optimizer) = run(policy), made()
    train(model, optimizer, 2)
    safetensors.torch.save_file(model.state_dict(), "model.safetensors", metadata={"format": "pt"})
    spoil(model)
    safetensors.torch.save_file(tensors=model.state_dict(), filename="model.safetensors")
    assert [one["code"] for one in findings(folder)] == ["checkpoint-non-finite"]
    lies_there = safetensors.torch.load_file("model.safetensors")["0.weight"]
    assert bool(torch.isnan(lies_there).any()) == (policy == "observe")
    assert [row["event"] for row in checkpoints(folder)] == ["saved", "saved" if policy == "observe" else "diverted"]


@pytest.mark.parametrize(("policy", "rules"), [("observe", ""), ("guard", "checkpoint-non-finite=observe")])
def test_under_observe_it_is_saved_as_asked_and_told(run: Any, policy: str, rules: str) -> None:
    folder, (model, _) = run(policy, rules), made()
    torch.save(model.state_dict(), "best.pt")
    spoil(model)
    torch.save(model.state_dict(), "best.pt")
    assert torch.isnan(torch.load("best.pt", weights_only=True)["0.weight"][0, 0])
    assert sorted(path.name for path in Path().glob("best*")) == ["best.pt"]
    assert [one["code"] for one in findings(folder)] == ["checkpoint-non-finite"]


@pytest.mark.parametrize("before", ["nothing", "empty", "non-finite"])
def test_where_nothing_good_lies_it_is_saved_as_asked(run: Any, before: str) -> None:
    folder, (model, _) = run("guard"), made()
    path = Path("best.pt")
    if before == "empty":
        path.touch()
    if before == "non-finite":
        torch.save({"a.b": torch.tensor(math.inf)}, path)
    spoil(model)
    torch.save(model.state_dict(), path)
    assert torch.isnan(torch.load(path, weights_only=True)["0.weight"][0, 0])
    assert {one["code"] for one in findings(folder)} == {"checkpoint-non-finite"}
    assert [*Path().glob("*non-finite*")] == []


def test_moving_a_bad_file_over_a_good_one_is_diverted_too(run: Any) -> None:
    folder, (model, _) = run("guard"), made()
    moves: list[Callable[[str, str], Any]] = [
        lambda a, b: os.replace(a, b),  # noqa: PTH105
        lambda a, b: Path(a).rename(b),
        lambda a, b: shutil.move(a, b),
    ]
    for move in moves:
        torch.save(model.state_dict(), "best.pt")
        good = Path("best.pt").read_bytes()
        bad = made()[0]
        spoil(bad)
        torch.save(bad.state_dict(), "best.tmp")
        assert findings(folder), "told before it is moved"
        move("best.tmp", "best.pt")
        assert Path("best.pt").read_bytes() == good and not Path("best.tmp").exists()
    assert len([*Path().glob("best.non-finite*.pt")]) == 2, "the first and the newest"
    torch.save(model.state_dict(), "best.tmp")
    torch.save(model.state_dict(), "other.pt")
    Path("best.tmp").replace("best.pt")
    assert checkpoints(folder)[-1]["event"] == "saved"
    assert torch.isfinite(torch.load("best.pt", weights_only=True)["0.weight"]).all()


def test_a_file_that_the_script_opened_is_gone_and_the_finding_says_so(run: Any) -> None:
    folder, (model, _) = run("guard"), made()
    torch.save(model.state_dict(), "best.pt")
    spoil(model)
    with Path("best.pt").open("wb") as file:
        torch.save(model.state_dict(), file)
    assert "opened the file itself" in findings(folder)[0]["evidence"]["note"]
    assert torch.isnan(torch.load("best.pt", weights_only=True)["0.weight"][0, 0])


def test_a_training_that_goes_on_saving_nan_does_not_fill_the_disk(run: Any) -> None:
    folder, (model, optimizer) = run("guard"), made()
    torch.save(model.state_dict(), "last.pt")
    for _ in range(20):
        train(model, optimizer, 1)
        bad = made()[0]
        spoil(bad)
        torch.save(bad.state_dict(), "last.pt")
    assert [path.name for path in sorted(Path().glob("last.non-finite*"))] == [
        "last.non-finite-step-1.pt",
        "last.non-finite-step-20.pt",
    ]
    assert [finding["step"] for finding in findings(folder)] == [1, 2, 3, 4, 8, 16]


@every_case(
    "well",
    [
        {"model.mask": torch.full((4, 4), -math.inf).triu(1)},
        {"model": {"a.weight": torch.ones(2)}, "best_loss": torch.tensor(math.inf), "history": torch.tensor([math.nan])},
        {"a.big": torch.full((100,), 3e38)},
        {"a.count": torch.tensor([1, 2]), "a.flag": torch.tensor([True]), "a.empty": torch.zeros(0)},
        {"a.sparse": torch.eye(3).to_sparse(), "a.half": torch.full((100_000,), 60_000.0, dtype=torch.float16)},
        {"a.meta": torch.empty(3, device="meta"), "a.complex": torch.ones(3, dtype=torch.complex64)},
    ],
)
def test_masks_bookkeeping_and_large_numbers_are_no_trouble(well: Any) -> None:
    assert bad_tensors(well) == []


@every_case("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn])
def test_nan_is_found_in_every_kind_of_number_and_place(dtype: torch.dtype) -> None:
    bad = torch.ones(1000).to(dtype)
    bad[77] = math.nan
    model, optimizer = made()
    train(model, optimizer, 1)
    for thing, name in [
        ({"model": {"a.b": bad}}, "model.a.b"),
        ({"nets": [{"a.b": torch.ones(2)}, {"a.b": bad}]}, "nets.1.a.b"),
        ({"optimizer": {"state": {0: {"exp_avg": bad}}, "param_groups": []}}, "optimizer.state.0.exp_avg"),
        ({"net": model.register_buffer("extra", bad) or model}, "net.extra"),
    ]:
        found = bad_tensors(thing)
        assert [(one.name, one.nan, one.inf) for one in found] == [(name, 1, 0)]


def test_minus_infinity_in_a_weight_is_no_mask() -> None:
    assert [one.inf for one in bad_tensors({"a.weight": torch.full((3, 3), -math.inf)})] == [9]


class Whole:
    """A trainer that is saved as it is: with itself, and with data in which NaN stands for a missing value."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.callbacks, self.data = [self], {"table": torch.full((4, 4), math.nan)}
        self.model, self.optimizer = model, optimizer


def test_of_a_trainer_that_is_saved_as_a_whole_the_model_must_be_finite(run: Any) -> None:
    folder, (model, optimizer) = run("guard"), made()
    train(model, optimizer, 2)
    trainer = Whole(model, optimizer)
    torch.save({"trainer": trainer, "epoch": 1}, "best.pt")
    good = Path("best.pt").read_bytes()
    assert findings(folder) == [] and [row["event"] for row in checkpoints(folder)] == ["saved"]
    spoil(model)
    torch.save({"trainer": trainer, "epoch": 2}, "best.pt")
    assert Path("best.pt").read_bytes() == good
    assert [bad["name"] for bad in findings(folder)[0]["evidence"]["tensors"]] == ["trainer.model.0.weight"]


class Trainer:
    """Its parts lead back to it, and each to all others."""

    def __init__(self) -> None:
        self.parts = [Part(self) for _ in range(12)]


class Part:
    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.best = trainer, torch.tensor(math.inf)


def test_settings_that_lead_back_to_the_trainer_are_looked_at_once() -> None:
    model = made()[0]
    saved = {"state_dict": model.state_dict(), "hyper_parameters": {"callbacks": Trainer().parts}}
    assert bad_tensors(saved) == [], "the best value so far may be infinite"
    spoil(model)
    assert [bad.name for bad in bad_tensors({**saved, "state_dict": model.state_dict()})] == ["state_dict.0.weight"]
