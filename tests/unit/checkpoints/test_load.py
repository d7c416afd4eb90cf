"""`holdfast.load` fills a model from anybody's file, or refuses in words and leaves every byte as it was."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.optim.swa_utils import AveragedModel
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import holdfast
from holdfast.checkpoints.load import load
from holdfast.errors import BadCheckpoint, DoesNotMatch, HoldfastError, NoCheckpoint, UsageError

Save = Callable[[nn.Module, Path], Path]


class Net(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1, bias=False))
        self.fc = nn.Linear(6, classes)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def trained(seed: int = 1, classes: int = 5) -> Net:
    """A model whose every number, also of its statistics, differs from a fresh one's."""
    torch.manual_seed(seed)
    model = Net(classes)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape) * 10 if tensor.is_floating_point() else torch.full_like(tensor, 7))
    return model


def fresh(seed: int = 0, classes: int = 5) -> Net:
    torch.manual_seed(seed)
    return Net(classes)


def same(one: nn.Module, other: nn.Module) -> bool:
    here, there = one.state_dict(), other.state_dict()
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


def bits(*holders: Any) -> list[tuple[str, bytes]]:
    """Every byte of models and optimizers."""
    found: list[tuple[str, bytes]] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append((name, value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()))
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}", inner)
        elif isinstance(value, (list, tuple)):
            for number, inner in enumerate(value):
                walk(f"{name}.{number}", inner)
        else:
            found.append((name, repr(value).encode()))

    for holder in holders:
        walk(type(holder).__name__, copy.deepcopy(holder.state_dict()))
    return found


# every format


def as_state_dict(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "a.pt")
    return folder / "a.pt"


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


@pytest.mark.parametrize("save", [as_state_dict, as_legacy, as_a_whole_module, as_safetensors, as_shards, as_distributed])
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


@pytest.mark.parametrize(
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


def stepped(model: nn.Module, kind: Any = torch.optim.AdamW, **settings: Any) -> torch.optim.Optimizer:
    optimizer = kind(model.parameters(), **{"lr": 1e-3, **settings})
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def full(folder: Path, model: nn.Module, **names: Any) -> Path:
    torch.save({"state_dict": model.state_dict(), "epoch": 4, **names}, folder / "full.pt")
    return folder / "full.pt"


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


def test_a_lightning_checkpoint_of_a_real_fit(tmp_path: Path) -> None:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self, width: int = 6) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.network = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.network(batch[0]).pow(2).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), batch_size=4)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path, enable_checkpointing=False,
        )  # fmt: skip
        module = Module()
        trainer.fit(module, data)
        trainer.save_checkpoint(tmp_path / "fit.ckpt")
    network = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loaded = load(network, tmp_path / "fit.ckpt", optimizer=optimizer, scheduler=schedule)
    assert same(network, module.network) and loaded.renamed == "removing the prefix network."
    assert (loaded.step, loaded.settings["width"], schedule.last_epoch) == (4, 6, 2)
    assert "momentum_buffer" in optimizer.state[network[0].weight]


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


# refused, with nothing changed


def pickled_payload(folder: Path, model: nn.Module) -> Path:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {folder}/ran",)

    torch.save({"state_dict": model.state_dict(), "hook": Evil()}, folder / "evil.pt")
    return folder / "evil.pt"


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
    (other_optimizer, DoesNotMatch, "another kind of optimizer: SGD in the checkpoint and Adam-like"),
    (fewer_parameters, DoesNotMatch, "other parameters are optimised"),
    (moments_of_others, DoesNotMatch, "the optimizer's state belongs to other parameters"),
    (weights_only, DoesNotMatch, "it holds no optimizer state; it holds weights"),
    (lambda folder: pickled_payload(folder, trained()), BadCheckpoint, "unsafe.*system"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
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
    from holdfast.checkpoints import load as module

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
        if next(calls) == 3:
            raise OSError(5, "Input/output error")
        return real(*words)

    monkeypatch.setattr(module.os, "preadv", failing)
    with pytest.raises(BadCheckpoint, match=r"(?s)Input/output error.*\. The model has \d of 10 weights of it"):
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


def test_a_class_that_is_not_installed_does_not_keep_the_weights_from_being_loaded(tmp_path: Path) -> None:
    """torch.load would raise ModuleNotFoundError, with the weights in the same file."""
    script = (
        "import sys, types, torch\nfrom torch import nn\n"
        "module = types.ModuleType('my_code'); sys.modules['my_code'] = module\n"
        "class Settings:\n    def __init__(self): self.lr = 0.1\n"
        "Settings.__module__ = 'my_code'; module.Settings = Settings\n"
        "torch.manual_seed(5)\n"
        f"torch.save({{'model': nn.Linear(3, 2).state_dict(), 'args': Settings()}}, {str(tmp_path / 'a.pt')!r})\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    with pytest.raises((pickle.UnpicklingError, ModuleNotFoundError)):
        torch.load(tmp_path / "a.pt", weights_only=True)
    model = nn.Linear(3, 2)
    load(model, tmp_path / "a.pt")
    torch.manual_seed(5)
    assert same(model, nn.Linear(3, 2))


def test_numbers_too_large_for_half_precision_are_refused_before_they_become_infinite(tmp_path: Path) -> None:
    source = trained()
    with torch.no_grad():
        source.fc.bias[1] = 1e6
    model = fresh().half()
    before = bits(model)
    with pytest.raises(DoesNotMatch, match=r"fc.bias holds numbers that are too large for float16"):
        load(model, as_state_dict(source, tmp_path))
    assert bits(model) == before


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


def test_models_that_cannot_take_it_are_told_so(tmp_path: Path) -> None:
    path = as_state_dict(trained(), tmp_path)
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
        load(fresh(), tmp_path / "b.pt")
    assert "a.pt" in told.value.fix


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


TWO_RANKS = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/dcp")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1],), nprocs=2)
"""


def test_what_two_ranks_wrote_in_pieces_is_put_together_in_a_plain_model(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_RANKS)
    subprocess.run([sys.executable, str(tmp_path / "two.py"), str(tmp_path)], check=True, timeout=150, capture_output=True)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    loaded = load(model, tmp_path / "dcp")
    torch.manual_seed(3)
    assert same(model, nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)))
    assert loaded.weights == 6


LARGE = """
import re, sys, torch
from torch import nn
import holdfast

def peak():  # of this program; `ru_maxrss` keeps that of the parent it was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

model = nn.ModuleList(nn.Linear(4096, 2048) for _ in range(8))  # 256 MB
small = nn.Linear(2, 2)
torch.save(small.state_dict(), sys.argv[1] + "/small.pt")
holdfast.load(small, sys.argv[1] + "/small.pt")  # what is imported only now is no cost of the large one
if sys.argv[2] == "save":
    torch.save(model.state_dict(), sys.argv[1] + "/large.pt")
else:
    before = peak()
    holdfast.load(model, sys.argv[1] + "/large.pt")
    print(peak() - before)
"""


def test_a_large_model_is_loaded_without_a_second_copy_in_memory(tmp_path: Path) -> None:
    def run(what: str) -> str:
        words = [sys.executable, "-c", LARGE, str(tmp_path), what]
        return subprocess.run(words, check=True, timeout=150, capture_output=True, text=True).stdout

    run("save")
    assert float(run("load")) < 100  # MB, of a file of 256


def test_settings_that_change_what_the_model_computes_are_warned_of(tmp_path: Path) -> None:
    tiny = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "bos_token_id": 1, "eos_token_id": 1}
    GPT2LMHeadModel(GPT2Config(**tiny, n_head=2)).save_pretrained(tmp_path / "hf")
    with pytest.warns(UserWarning, match=r"another architecture \(n_head 2 in the checkpoint and 4 in the model\)"):
        load(GPT2LMHeadModel(GPT2Config(**tiny, n_head=4)), tmp_path / "hf")
