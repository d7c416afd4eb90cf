"""What `holdfast.load` refuses: in words, with every byte of the model and the optimizer as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from loaded_net import Net, as_state_dict, bits, fresh, full, pickled_payload, same, stepped, trained
from torch import nn

from holdfast.errors import BadCheckpoint, DoesNotMatch, HoldfastError, NoCheckpoint, UsageError
from holdfast.matching.load import load


def other_head(folder: Path) -> Path:
    return as_state_dict(trained(classes=9), folder)


def cut(folder: Path) -> Path:
    path = as_state_dict(trained(), folder)
    path.write_bytes(path.read_bytes()[:-700])
    return path


def flipped(folder: Path) -> Path:
    path = full(folder, trained(), optimizer=stepped(trained()).state_dict())
    content = bytearray(path.read_bytes())
    at = content.find(trained().body[0].weight.detach().numpy().tobytes())
    content[at + 5] ^= 1
    path.write_bytes(bytes(content))
    return path


def not_finite(folder: Path) -> Path:
    model = trained()
    with torch.no_grad():
        model.fc.weight[0, 0] = float("nan")
    return full(folder, model, optimizer=stepped(trained()).state_dict())


def other_optimizer(folder: Path) -> Path:
    model = trained()
    return full(folder, model, optimizer=stepped(model, torch.optim.SGD, momentum=0.9).state_dict())


def fewer_parameters(folder: Path) -> Path:
    model = trained()
    return full(folder, model, optimizer=stepped(model.body).state_dict())


def moments_of_others(folder: Path) -> Path:
    model = trained()
    return full(folder, model, optimizer=stepped(nn.ParameterList(list(model.parameters())[::-1])).state_dict())


def weights_only(folder: Path) -> Path:
    return full(folder, trained())


REFUSED = [
    (other_head, DoesNotMatch, "the head fc has 9 classes in the checkpoint and 5 in the model"),
    (cut, BadCheckpoint, "torn"),
    (flipped, BadCheckpoint, "checksum"),
    (not_finite, BadCheckpoint, "fc.weight.*1 NaN"),
    (other_optimizer, DoesNotMatch, "different optimizer: SGD in the checkpoint and Adam-like"),
    (fewer_parameters, DoesNotMatch, "different parameters are optimised"),
    (moments_of_others, DoesNotMatch, "the optimizer's state is of different parameters"),
    (weights_only, DoesNotMatch, "it holds no optimizer state; it holds weights"),
    (lambda folder: pickled_payload(folder, trained()), BadCheckpoint, "unsafe.*system"),
]  # fmt: skip


@every_case(("make", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_a_refused_load_leaves_every_byte_as_it_was(
    make: Callable[[Path], Path], error: type[HoldfastError], words: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    model = fresh()
    optimizer = stepped(model)
    before = bits(model, optimizer)
    with pytest.raises(error, match=f"(?s){words}") as told:
        load(model, path, optimizer=optimizer)
    assert bits(model, optimizer) == before
    assert told.value.fix and f"fix: {told.value.fix}" in str(told.value)  # a script's traceback shows it
    assert not (tmp_path / "ran").exists()


def test_a_scheduler_that_refuses_undoes_the_optimizer(tmp_path: Path) -> None:
    source = trained()
    optimizer = stepped(source)
    path = full(tmp_path, source, optimizer=optimizer.state_dict(), scheduler={"last_epoch": 3, "base_lrs": [0.1]})

    class Stubborn:
        def state_dict(self) -> dict[str, int]:
            return {"last_epoch": 0}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            if "base_lrs" in state:
                raise ValueError("not mine")

    model = fresh()
    other = stepped(model, lr=0.5)
    before = bits(model, other)
    with pytest.raises(ValueError, match="not mine"):
        load(model, path, optimizer=other, scheduler=Stubborn())
    assert bits(model, other) == before


def test_a_file_that_shrinks_while_it_is_copied_is_an_error_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.matching import load as module

    path = as_state_dict(trained(), tmp_path)
    real = module.Plan.check

    def shrink(self: Any, tensors: Any) -> None:
        real(self, tensors)
        os.truncate(path, 100)

    monkeypatch.setattr(module.Plan, "check", shrink)
    model = fresh()
    before = bits(model)
    with pytest.raises(BadCheckpoint, match="was changed while it was loaded"):
        load(model, path)
    assert bits(model) == before


def test_a_disk_that_fails_between_the_two_readings_is_told_as_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.checkpoints import tensors as module

    path = as_state_dict(trained(), tmp_path)
    real, calls = os.preadv, iter(range(100))

    def failing(*words: Any) -> int:
        if next(calls) == 13:  # the first ten verify
            raise OSError(5, "Input/output error")
        return real(*words)

    monkeypatch.setattr(module.os, "preadv", failing)
    with pytest.raises(BadCheckpoint, match=r"(?is)Input/output error.*\. The model has \d of its 10 weights"):
        load(fresh(), path)


def test_bad_numbers_beside_what_is_loaded_do_not_matter_and_can_be_allowed(tmp_path: Path) -> None:
    source = trained()
    optimizer = stepped(source)
    next(iter(optimizer.state.values()))["exp_avg"][0] = float("inf")
    path = full(tmp_path, source, optimizer=optimizer.state_dict())
    model = fresh()
    load(model, path)  # its weights are fine
    assert same(model, source)
    with pytest.raises(BadCheckpoint, match="not finite: optimizer"):
        load(model, path, optimizer=torch.optim.AdamW(model.parameters()))
    load(model, path, optimizer=torch.optim.AdamW(model.parameters()), allow_non_finite=True)


def test_an_unsafe_file_s_weights_can_be_had_by_name_and_nothing_of_it_runs(tmp_path: Path) -> None:
    model = fresh()
    load(model, pickled_payload(tmp_path, trained()), allow_unsafe=True)
    assert same(model, trained()) and not (tmp_path / "ran").exists()


def test_numbers_too_large_for_half_precision_are_refused_before_they_become_infinite(tmp_path: Path) -> None:
    source = trained()
    with torch.no_grad():
        source.fc.bias[1] = 1e6
    model = fresh().half()
    before = bits(model)
    with pytest.raises(DoesNotMatch, match=r"fc.bias holds values too large for float16"):
        load(model, as_state_dict(source, tmp_path))
    assert bits(model) == before


def test_models_that_cannot_take_it_are_told_so(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "kept"  # what other tests saved is not nearby
    folder.mkdir(parents=True)
    path = as_state_dict(trained(), folder)
    with torch.device("meta"):
        empty = Net()
    with pytest.raises(UsageError, match="meta device"):
        load(empty, path)

    class Copies(Net):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {name: tensor.clone() for name, tensor in super().state_dict(*args, **kwargs).items()}

    with pytest.raises(UsageError, match="gives copies"):
        load(Copies(), path)
    with pytest.raises(UsageError, match="lazy"):
        load(nn.LazyLinear(3), path)
    with pytest.raises(NoCheckpoint, match="no checkpoint") as told:
        load(fresh(), folder / "b.pt")
    assert "a.pt" in told.value.fix


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_sharded_model_is_sent_to_the_store(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fresh()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UsageError, match="sharded") as told:
        load(model, as_state_dict(trained(), tmp_path))
    assert "CheckpointStore.restore" in told.value.fix
