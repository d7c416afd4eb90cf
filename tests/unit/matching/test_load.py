"""`holdfast.load` fills a model from anybody's file, or refuses in words and leaves every byte as it was."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from every_case import every_case
from loaded_net import as_state_dict, bits, fresh, full, same, stepped, trained
from torch import nn
from torch.optim.swa_utils import AveragedModel
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import holdfast
from holdfast.errors import DoesNotMatch
from holdfast.matching.load import load

Save = Callable[[nn.Module, Path], Path]


# every format


def as_legacy(model: nn.Module, folder: Path) -> Path:
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, folder / "a.pth", _use_new_zipfile_serialization=False)
    return folder / "a.pth"


def as_a_whole_module(model: nn.Module, folder: Path) -> Path:
    torch.save({"model": model, "epoch": 3}, folder / "a.pt")
    return folder / "a.pt"


def as_safetensors(model: nn.Module, folder: Path) -> Path:
    safetensors.torch.save_file(model.state_dict(), folder / "a.safetensors")
    return folder / "a.safetensors"


def as_shards(model: nn.Module, folder: Path) -> Path:
    state = model.state_dict()
    names = list(state)
    files = {name: f"model-0000{1 + (number % 2)}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        safetensors.torch.save_file({name: state[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def as_distributed(model: nn.Module, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


@every_case("save", [as_state_dict, as_legacy, as_a_whole_module, as_safetensors, as_shards, as_distributed])
def test_every_format_gives_back_the_same_numbers(save: Save, tmp_path: Path) -> None:
    model, source = fresh(), trained()
    path = save(source, tmp_path)
    sys.modules.pop("nothing_is_imported", None)
    loaded = holdfast.load(model, path)
    assert same(model, source)
    assert loaded.restored == ("weights",) and not loaded.untouched and not loaded.unused


def test_a_store_of_our_own_gives_back_weights_optimizer_and_step(tmp_path: Path) -> None:
    source = trained()
    optimizer = stepped(source)
    store = holdfast.CheckpointStore(tmp_path / "checkpoints")
    store.save(step=12, epoch=2, model=source, optimizer=optimizer, metrics={"acc": 0.5}, settings={"lr": 1e-3})
    store.close()
    (folder,) = (tmp_path / "checkpoints").glob("step-*")
    model = fresh()
    other = torch.optim.AdamW(model.parameters(), lr=1.0)
    loaded = load(model, folder, optimizer=other)
    assert same(model, source) and bits(other) == bits(optimizer)
    assert (loaded.step, loaded.epoch, loaded.settings) == (12, 2, {"lr": 1e-3})


@every_case(
    ("wrap", "words"),
    [
        (lambda model: nn.DataParallel(model), "removing the prefix module."),
        (lambda model: torch.compile(model), "removing the prefix _orig_mod."),
        (lambda model: AveragedModel(model), "removing the prefix module."),
        (lambda model: nn.ModuleDict({"net": model}), "removing the prefix net."),
    ],
)
def test_a_wrapped_model_s_file_is_loaded_into_the_plain_one_and_back(
    wrap: Callable[[nn.Module], nn.Module], words: str, tmp_path: Path
) -> None:
    source, model = trained(), fresh()
    loaded = load(model, as_state_dict(wrap(source), tmp_path))
    assert same(model, source) and loaded.renamed == words
    if not isinstance(wrap(fresh()), AveragedModel):
        wrapped = wrap(fresh())
        load(wrapped, as_state_dict(source, tmp_path))
        assert same(wrapped, wrap(source))


def test_the_model_keeps_its_dtype_its_layout_and_its_tensors(tmp_path: Path) -> None:
    path = as_state_dict(trained(), tmp_path)
    model = fresh().to(torch.bfloat16).to(memory_format=torch.channels_last)
    before = dict(model.named_parameters())
    load(model, path)
    wanted = trained().to(torch.bfloat16).to(memory_format=torch.channels_last)
    assert same(model, wanted)
    assert all(parameter is before[name] and parameter.requires_grad for name, parameter in model.named_parameters())
    assert model.body[0].weight.stride() == wanted.body[0].weight.stride()


def test_a_transposed_and_a_broadcast_tensor_are_read_as_they_were(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.zeros(4, 6))
            self.b = nn.Parameter(torch.zeros(4, 6))

    state = {"a": torch.randn(6, 4).t(), "b": torch.randn(4, 1).expand(4, 6)}
    torch.save(state, tmp_path / "odd.pt")
    model = Two()
    load(model, tmp_path / "odd.pt")
    assert torch.equal(model.a, state["a"]) and torch.equal(model.b, state["b"])


def test_tied_weights_are_filled_once_and_refused_where_the_file_unties_them(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=1, eos_token_id=1)
    source = GPT2LMHeadModel(config)
    source.save_pretrained(tmp_path / "hf")
    model = GPT2LMHeadModel(config)
    load(model, tmp_path / "hf")
    assert same(model, source) and model.lm_head.weight is model.transformer.wte.weight
    safetensors.torch.save_model(source, str(tmp_path / "tied.safetensors"))
    untied = GPT2LMHeadModel(GPT2Config(**{**config.to_dict(), "tie_word_embeddings": False}))
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        load(untied, tmp_path / "hf", leave_out="lm_head")
    load(untied, tmp_path / "tied.safetensors")  # its notes name the second one
    assert torch.equal(untied.lm_head.weight, source.lm_head.weight)
    state = dict(source.state_dict())
    state["lm_head.weight"] = state["lm_head.weight"].clone()
    torch.save(state, tmp_path / "twice.pt")
    load(GPT2LMHeadModel(config), tmp_path / "twice.pt")  # twice, and equal
    state["lm_head.weight"] += 1
    torch.save(state, tmp_path / "untied.pt")
    before = bits(model)
    with pytest.raises(DoesNotMatch, match="one tensor; the file has two, and they differ"):
        load(model, tmp_path / "untied.pt")
    assert bits(model) == before


# the rest of a training


def test_optimizer_scheduler_and_scaler_come_back_whatever_they_are_called(tmp_path: Path) -> None:
    source = trained()
    optimizer = stepped(source)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scheduler.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    path = full(
        tmp_path, source, optim=optimizer.state_dict(), sched=scheduler.state_dict(), amp=scaler.state_dict(), args={"lr": 1e-3}
    )
    model = fresh()
    other = torch.optim.AdamW(model.parameters(), lr=1.0)
    schedule, scale = torch.optim.lr_scheduler.CosineAnnealingLR(other, 99), torch.amp.GradScaler("cpu")
    loaded = load(model, path, optimizer=other, scheduler=schedule, scaler=scale)
    assert same(model, source) and bits(other) == bits(optimizer)
    assert schedule.last_epoch == 1 and schedule.T_max == 10 and scale.get_scale() == 128.0
    assert loaded.restored == ("weights", "optimizer", "scheduler", "scaler")
    assert (loaded.epoch, loaded.settings) == (4, {"lr": 1e-3})
    for one, two in ((model, other), (source, optimizer)):  # and it goes on as it would have
        for parameter in one.parameters():
            parameter.grad = torch.ones_like(parameter)
        two.step()
    assert same(model, source)


def test_a_trainer_s_folder_of_hugging_face(tmp_path: Path) -> None:
    tiny = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    source = BertForSequenceClassification(BertConfig(**tiny))
    optimizer = stepped(source)
    folder = tmp_path / "checkpoint-7"
    source.save_pretrained(folder)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 7, "epoch": 1.0, "log_history": []}))
    model = BertForSequenceClassification(BertConfig(**tiny))
    other = torch.optim.AdamW(model.parameters(), lr=1.0)
    loaded = load(model, folder, optimizer=other)
    assert same(model, source) and loaded.step == 7 and bits(other) == bits(optimizer)
    five = BertForSequenceClassification(BertConfig(**tiny, num_labels=5))
    with pytest.raises(DoesNotMatch, match="the head classifier has 2 classes in the checkpoint and 5 in the model"):
        load(five, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the classes have other names: told
        load(five, folder, leave_out="classifier")
    assert torch.equal(five.bert.pooler.dense.weight, source.bert.pooler.dense.weight)


# files that other code wrote, and large ones


def test_a_class_that_is_not_installed_does_not_keep_the_weights_from_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.load would raise ModuleNotFoundError, with the weights in the same file."""
    settings = type("Settings", (), {"__module__": "my_code", "lr": 0.1})
    with monkeypatch.context() as installed:
        installed.setitem(sys.modules, "my_code", types.ModuleType("my_code"))
        installed.setattr("my_code.Settings", settings, raising=False)
        torch.manual_seed(5)
        torch.save({"model": nn.Linear(3, 2).state_dict(), "args": settings()}, tmp_path / "a.pt")
    with pytest.raises((pickle.UnpicklingError, ModuleNotFoundError)):
        torch.load(tmp_path / "a.pt", weights_only=True)
    model = nn.Linear(3, 2)
    load(model, tmp_path / "a.pt")
    torch.manual_seed(5)
    assert same(model, nn.Linear(3, 2))


LARGE = """
import re, sys, torch
from torch import nn
import holdfast

def peak():  # of this program; `ru_maxrss` keeps that of the parent it was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

model = nn.ModuleList(nn.utils.skip_init(nn.Linear, 4096, 1024) for _ in range(6))  # 96 MB
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(0.5)  # its memory is in use before
small = nn.Linear(2, 2)
torch.save(small.state_dict(), sys.argv[1] + "/small.pt")
holdfast.load(small, sys.argv[1] + "/small.pt")  # what is imported only now is no cost of the large one
before = peak()
holdfast.load(model, sys.argv[1] + "/large.pt")
print(peak() - before)
"""


@pytest.mark.slow
def test_a_large_model_is_loaded_without_a_second_copy_in_memory(tmp_path: Path) -> None:
    shapes = {f"{number}.{name}": shape for number in range(6) for name, shape in (("weight", (1024, 4096)), ("bias", (1024,)))}
    torch.save({name: torch.full(shape, 0.25) for name, shape in shapes.items()}, tmp_path / "large.pt")
    words = [sys.executable, "-c", LARGE, str(tmp_path)]
    done = subprocess.run(words, check=True, timeout=600, capture_output=True, text=True)
    assert float(done.stdout) < 40  # MB, of a file of 96


def test_settings_that_change_what_the_model_computes_are_warned_of(tmp_path: Path) -> None:
    tiny = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "bos_token_id": 1, "eos_token_id": 1}
    GPT2LMHeadModel(GPT2Config(**tiny, n_head=2)).save_pretrained(tmp_path / "hf")
    with pytest.warns(UserWarning, match=r"different architecture \(n_head 2 in the checkpoint and 4 in the model\)"):
        load(GPT2LMHeadModel(GPT2Config(**tiny, n_head=4)), tmp_path / "hf")
