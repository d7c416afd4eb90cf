"""`holdfast.load` with a part of what a file holds: some of its weights, one of its models, the averaged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loaded_net import as_state_dict, bits, fresh, full, same, trained
from torch import nn

from holdfast.errors import DoesNotMatch
from holdfast.matching.load import load


def test_averaged_weights_are_loaded_when_asked_for(tmp_path: Path) -> None:
    source, average = trained(1), trained(2)
    path = full(tmp_path, source, ema_state_dict=average.state_dict())
    model = fresh()
    load(model, path)
    assert same(model, source)
    loaded = load(model, path, which="ema")
    assert same(model, average) and loaded.restored == ("ema",)
    torch.save({"ema": average.state_dict()}, tmp_path / "ema.pt")
    with pytest.raises(DoesNotMatch, match=r"averaged \(EMA\) weights only"):
        load(model, tmp_path / "ema.pt")


def test_what_is_not_asked_for_is_left_alone(tmp_path: Path) -> None:
    path, source, start = as_state_dict(trained(classes=9), tmp_path), trained(classes=9), fresh()
    model = fresh()
    loaded = load(model, path, leave_out=("fc",))
    assert same(model.body, source.body) and same(model.fc, start.fc)
    assert loaded.untouched == ("fc.weight", "fc.bias") and loaded.unused == ("fc.weight", "fc.bias")
    model = fresh()
    load(model, path, only="body.0")
    assert same(model.body[0], source.body[0]) and same(model.body[2], start.body[2])
    with pytest.raises(DoesNotMatch, match="Nothing of"):
        load(model, path, only="boddy")
    with pytest.raises(DoesNotMatch):  # as in torch, shapes matter even so
        load(model, path, strict=False)


def test_one_of_two_models_in_a_file_is_loaded_by_name(tmp_path: Path) -> None:
    one, other, model = trained(1), trained(2), fresh()
    path = as_state_dict(nn.ModuleDict({"generator": one, "discriminator": other}), tmp_path)
    before = bits(model)
    with pytest.raises(DoesNotMatch, match="more than one way"):
        load(model, path)
    assert bits(model) == before
    load(model, path, part="discriminator")
    assert same(model, other)


def test_one_of_two_state_dicts_in_a_file_is_never_guessed(tmp_path: Path) -> None:
    one, other, model = trained(1), trained(2), fresh()
    torch.save({"generator": one.state_dict(), "discriminator": other.state_dict(), "epoch": 3}, tmp_path / "gan.pt")
    with pytest.raises(DoesNotMatch, match="more than one way"):
        load(model, tmp_path / "gan.pt")
    load(model, tmp_path / "gan.pt", part="discriminator")
    assert same(model, other)
    both = nn.ModuleDict({"generator": fresh(), "discriminator": fresh()})
    load(both, tmp_path / "gan.pt")
    assert same(both["generator"], one) and same(both["discriminator"], other)
    torch.save({"model": one.state_dict(), "critic": other.state_dict()}, tmp_path / "named.pt")
    load(model, tmp_path / "named.pt")
    assert same(model, one)
    load(model, tmp_path / "named.pt", part="critic")
    assert same(model, other)


def test_what_only_a_module_itself_understands_is_left_and_told(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> Any:
            return torch.tensor([1, 2, 3])

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError

    source, model = Counting(2, 2), Counting(2, 2)
    with pytest.warns(UserWarning, match="extra state is left as it was"):
        loaded = load(model, as_state_dict(source, tmp_path))
    assert torch.equal(model.weight, source.weight) and loaded.weights == 2
