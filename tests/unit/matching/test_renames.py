"""A rename is one rule for the whole file, gives each weight one name, and never guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import torch
from every_case import every_case
from torch import nn
from torch.optim.swa_utils import AveragedModel
from transformers import BertConfig, BertForSequenceClassification, BertModel, GPT2Config, GPT2LMHeadModel, GPT2Model

from holdfast.matching.renames import WRAPPERS, Rename, find_rename

TINY_BERT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TINY_GPT2 = {"vocab_size": 40, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2}


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)), nn.Linear(6, 2))


class Holder(nn.Module):
    """As a LightningModule holds its network, under any name."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        setattr(self, name, model)


def shapes(model: nn.Module | Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    state = model.state_dict() if isinstance(model, nn.Module) else model
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def rename(saved: nn.Module | Mapping[str, Any], model: nn.Module) -> Rename:
    return find_rename(shapes(saved), shapes(model))


def compiled_inside() -> nn.Module:
    model = plain()
    model[2] = torch.compile(model[2])
    return model


WRAPPED: list[tuple[Callable[[], nn.Module], str, str | None]] = [
    (lambda: nn.DataParallel(plain()), "removing the prefix module.", 'k.removeprefix("module.")'),
    (lambda: torch.compile(plain()), "removing the prefix _orig_mod.", 'k.removeprefix("_orig_mod.")'),
    (lambda: Holder("model", plain()), "removing the prefix model.", 'k.removeprefix("model.")'),
    (lambda: Holder("my_encoder", plain()), "removing the prefix my_encoder.", 'k.removeprefix("my_encoder.")'),
    (
        lambda: nn.DataParallel(torch.compile(plain())),
        "removing the prefix module._orig_mod.",
        'k.removeprefix("module._orig_mod.")',
    ),
    (
        lambda: nn.DataParallel(nn.DataParallel(plain())),
        "removing the prefix module.module.",
        'k.removeprefix("module.module.")',
    ),
    (lambda: Holder("net", nn.DataParallel(plain())), "removing the prefix net.module.", 'k.removeprefix("net.module.")'),
    (compiled_inside, "taking _orig_mod out of the names", 'k.replace("_orig_mod.", "")'),
    (
        lambda: Holder("model", compiled_inside()),
        "taking _orig_mod out of the names and removing the prefix model.",
        'k.replace("_orig_mod.", "").removeprefix("model.")',
    ),
]


@every_case(("wrapped", "words", "python"), WRAPPED, ids=[words for _, words, _ in WRAPPED])
def test_a_wrapped_model_s_file_fits_the_plain_one_by_the_line_that_is_told(
    wrapped: Callable[[], nn.Module], words: str, python: str
) -> None:
    saved, model = wrapped().state_dict(), plain()
    found = rename(saved, model)
    assert (found.words, found.python, found.is_safe) == (words, python, True)
    assert len(found.pairs) == len(saved) == len(model.state_dict())
    for name in saved:  # the line does what the rule does
        assert eval(python, {"k": name}) == found.pairs[name]
    model.load_state_dict({found.pairs[name]: tensor for name, tensor in saved.items()})


@every_case(("wrapped", "words", "python"), WRAPPED, ids=[words for _, words, _ in WRAPPED])
def test_a_plain_file_fits_the_wrapped_model(wrapped: Callable[[], nn.Module], words: str, python: str) -> None:
    saved, model = plain().state_dict(), wrapped()
    found = rename(saved, model)
    assert len(found.pairs) == len(saved) and found.is_safe and found.words
    model.load_state_dict({found.pairs[name]: tensor for name, tensor in saved.items()})


def test_names_that_fit_are_left_alone() -> None:
    found = rename(plain(), plain())
    assert not found.is_needed and not found.words and found.python == "k"


def test_a_prefix_goes_and_another_comes() -> None:
    found = rename(Holder("model", plain()), Holder("backbone", plain()))
    assert found.words == "removing the prefix model. and adding the prefix backbone."
    assert found.python == '"backbone." + k.removeprefix("model.")'
    assert found.pairs["model.0.weight"] == "backbone.0.weight"


def test_sharded_and_recomputed_parts_are_seen_anywhere_in_a_name() -> None:
    state = plain().state_dict()
    wrapped = {
        f"_fsdp_wrapped_module.{name.replace('2.', '2._fsdp_wrapped_module._checkpoint_wrapped_module.')}": tensor
        for name, tensor in state.items()
    }
    found = rename(wrapped, plain())
    assert len(found.pairs) == len(state) and found.is_safe
    assert "_checkpoint_wrapped_module" in found.words
    assert all(eval(str(found.python), {"k": name}) == there for name, there in found.pairs.items())


def test_the_counter_of_an_averaged_model_is_no_weight() -> None:
    found = rename(AveragedModel(plain()), plain())
    assert found.words == "removing the prefix module."
    assert "n_averaged" not in found.pairs and len(found.pairs) == len(plain().state_dict())


@every_case(
    ("base", "full", "config", "prefix"),
    [
        (BertModel, BertForSequenceClassification, BertConfig(**TINY_BERT), "bert."),
        (GPT2Model, GPT2LMHeadModel, GPT2Config(**TINY_GPT2), "transformer."),
    ],
)
def test_a_base_model_fits_the_model_with_a_head_and_the_other_way(base: Any, full: Any, config: Any, prefix: str) -> None:
    into_full, into_base = rename(base(config), full(config)), rename(full(config), base(config))
    assert into_full.words == f"adding the prefix {prefix}" and len(into_full.pairs) == len(base(config).state_dict())
    assert into_base.words == f"removing the prefix {prefix}" and len(into_base.pairs) == len(base(config).state_dict())


def test_old_names_of_layer_norm_and_weight_norm_are_read_as_the_new_ones() -> None:
    old = {"encoder.norm.gamma": (6,), "encoder.norm.beta": (6,), "conv.weight_g": (4, 1, 1), "conv.weight_v": (4, 3, 3)}
    model = nn.ModuleDict({"norm": nn.LayerNorm(6)})
    conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3, bias=False))
    new = shapes(nn.ModuleDict({"encoder": model, "conv": conv}))
    found = find_rename(old, new)
    assert found.pairs == {
        "encoder.norm.gamma": "encoder.norm.weight",
        "encoder.norm.beta": "encoder.norm.bias",
        "conv.weight_g": "conv.parametrizations.weight.original0",
        "conv.weight_v": "conv.parametrizations.weight.original1",
    }
    assert found.python is None and "old names" in found.words
    back = find_rename({there: new[there] for there in found.pairs.values()}, old)
    assert len(back.pairs) == 4


def test_the_gamma_of_a_layer_scale_stays_what_it_is() -> None:
    names = {"block.gamma": (6,), "block.norm.weight": (6,), "block.norm.bias": (6,)}
    found = find_rename({f"module.{name}": shape for name, shape in names.items()}, names)
    assert found.pairs["module.block.gamma"] == "block.gamma" and found.words == "removing the prefix module."


def test_two_parts_that_would_both_fit_are_never_chosen_between() -> None:
    """Taking the discriminator for the generator gives a model that runs and is worthless."""
    both = nn.ModuleDict({"generator": plain(), "discriminator": plain()})
    found = rename(both, plain())
    assert not found.is_safe and found.others


def test_averaged_weights_beside_the_model_s_own_are_no_rival() -> None:
    found = rename(nn.ModuleDict({"model": plain(), "model_ema": plain()}), plain())
    assert found.is_safe and found.words == "removing the prefix model."


def test_equal_shapes_under_other_names_are_never_brought_together() -> None:
    saved = {"left.weight": (4, 4), "left.bias": (4,), "right.weight": (4, 4)}
    model = {"up.kernel": (4, 4), "up.offset": (4,), "down.kernel": (4, 4)}
    found = find_rename(saved, model)
    assert not found.pairs and not found.words


def test_a_rule_that_would_name_two_weights_alike_is_not_used() -> None:
    saved = {"module.0.weight": (2, 2), "0.weight": (2, 2), "module.1.weight": (3, 2), "module.2.weight": (3, 2)}
    found = find_rename(saved, {"0.weight": (2, 2), "1.weight": (3, 2), "2.weight": (3, 2)})
    assert found.pairs == {"0.weight": "0.weight"}


def test_a_rule_that_helps_less_than_half_is_no_rule() -> None:
    saved = {f"a.{number}.weight": (4, 4) for number in range(10)} | {"odd.norm.weight": (4,)}
    model = {f"b.{number}.kernel": (4, 4) for number in range(10)} | {"norm.weight": (4,)}
    assert not find_rename(saved, model).words


def test_thousands_of_names_are_renamed_in_a_moment() -> None:
    model = {
        f"layers.{n}.{part}.{kind}": (8, 8) for n in range(500) for part in "abcdefgh" for kind in ("weight", "bias", "scale")
    }
    found = find_rename({f"module._orig_mod.{name}": shape for name, shape in model.items()}, model)
    assert len(found.pairs) == len(model) == 12_000


def _tree(random: Random) -> dict[str, tuple[int, ...]]:
    names: dict[str, tuple[int, ...]] = {}
    for _ in range(random.randint(1, 4)):
        block = random.choice(["layers", "h", "model", "net", "encoder"])
        for number in range(random.randint(1, 4)):
            for leaf in random.sample(["attn.q", "attn.k", "mlp.0", "mlp.2", "norm", "module"], random.randint(1, 4)):
                names[f"{block}.{number}.{leaf}.weight"] = (random.choice([4, 8]), 4)
    return names


def _wrapped(random: Random, names: Iterable[str]) -> dict[str, str]:
    """The names after a mixture of wrappers, around the model and around parts of it."""
    modules = sorted({".".join(name.split(".")[:length]) for name in names for length in (1, 2)})
    inside = {module: random.choice(WRAPPERS) for module in random.sample(modules, random.randint(0, min(3, len(modules))))}
    around = [random.choice(["module", "_orig_mod", "model", "net", "encoder", "my_net"]) for _ in range(random.randint(0, 3))]
    found = {}
    for name in names:
        parts, new = name.split("."), list(around)
        for place, part in enumerate(parts):
            new += [part, *([inside[module]] if (module := ".".join(parts[: place + 1])) in inside else [])]
        found[name] = ".".join(new)
    return found


def test_any_mixture_of_wrappers_on_both_sides_is_undone_name_by_name() -> None:
    for seed in range(300):
        random = Random(seed)
        names = _tree(random)
        saved, model = _wrapped(random, names), _wrapped(random, names)
        found = find_rename({saved[name]: names[name] for name in names}, {model[name]: names[name] for name in names})
        assert found.pairs == {saved[name]: model[name] for name in names} and found.is_safe, seed
