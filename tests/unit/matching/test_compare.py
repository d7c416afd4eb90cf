"""What differs is named for what it means, and two checkpoints of one training do not differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from every_case import every_case
from torch import nn
from torch.optim.swa_utils import AveragedModel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from holdfast.checkpoints.contents import Trouble
from holdfast.matching.compare import Comparison, compare
from holdfast.matching.from_contents import describe_optimizer
from holdfast.matching.from_model import side_of_model
from holdfast.matching.sides import Side, Weight


class Net(nn.Module):
    """A small detector: a stem, numbered blocks, a head, and another task if asked for."""

    def __init__(
        self, classes: int = 80, *, channels: int = 3, depth: int = 3, width: int = 8, masks: bool = False, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, bias=bias), nn.BatchNorm2d(width)) for _ in range(depth)
        )
        self.fc = nn.Linear(width, classes)
        if masks:
            self.mask_head = nn.Sequential(nn.Conv2d(width, 4, 1), nn.Conv2d(4, 1, 1))


def bert(**changes: Any) -> BertForSequenceClassification:
    tiny = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertForSequenceClassification(BertConfig(**{**tiny, **changes}))


def gpt2(**changes: Any) -> GPT2LMHeadModel:
    tiny = {"vocab_size": 40, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(**{**tiny, **changes}))


def vit(**changes: Any) -> ViTForImageClassification:
    tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return ViTForImageClassification(ViTConfig(**{**tiny, "image_size": 32, "patch_size": 8, **changes}))


def saved(model: nn.Module, name: str = "last.pt", **facts: Any) -> Side:
    """What a checkpoint with the model's state dict tells."""
    weights = {key: Weight(one.shape, one.dtype, None, one.same_as) for key, one in side_of_model(model).weights.items()}
    return Side(name=name, path=Path(name), format="torch zip", weights=weights, **{"holds": frozenset({"weights"}), **facts})


def found(one: nn.Module | Side, other: nn.Module | Side, **options: Any) -> Comparison:
    here = one if isinstance(one, Side) else saved(one)
    there = other if isinstance(other, Side) else replace(side_of_model(other), settings={})
    return compare(here, there, **options)


def kinds(comparison: Comparison) -> list[str]:
    return [difference.kind for difference in comparison.differences if difference.stops]


def test_a_checkpoint_of_the_same_model_fits_and_says_what_to_type() -> None:
    same = found(saved(Net(), weights_at=("state_dict",)), Net())
    assert same.fits and same.verdict == "fits as it is"
    assert same.calls == [
        'model.load_state_dict(torch.load("last.pt", weights_only=True)["state_dict"])',
        'holdfast.load(model, "last.pt")',
    ]


def test_a_wrapped_one_fits_after_the_rename_and_the_line_carries_it() -> None:
    wrapped = found(saved(nn.DataParallel(Net()), weights_at=("state_dict",)), Net())
    assert wrapped.fits and wrapped.verdict == "fits after removing the prefix module."
    assert wrapped.calls[0] == (
        'model.load_state_dict({k.removeprefix("module."): v for k, v in '
        'torch.load("last.pt", weights_only=True)["state_dict"].items()})'
    )


@every_case(
    ("side", "call"),
    [
        ({"format": "safetensors"}, 'model.load_state_dict(safetensors.torch.load_file("last.pt"))'),
        ({"is_plain": False}, None),  # weights_only=True would refuse it
        ({"weights_at": None}, None),  # a module that was pickled whole
        ({"format": "sharded safetensors"}, None),
    ],
)
def test_a_line_of_torch_is_told_only_where_it_works(side: dict[str, Any], call: str | None) -> None:
    calls = found(replace(saved(Net()), **side), Net()).calls
    assert calls == ([call] if call else []) + ['holdfast.load(model, "last.pt")']


DIFFERENT = [
    (Net(), Net(3), ["head"], "the head fc has 80 classes in the checkpoint and 3 in the model", ("fc",)),
    (bert(), bert(num_labels=5), ["head"], "the head classifier has 2 classes", ("classifier",)),
    (nn.DataParallel(Net()), Net(3), ["head"], "the head fc has 80 classes", ("fc",)),
    (bert(), bert(vocab_size=50), ["vocabulary"], "different vocabulary: 40 tokens in the checkpoint and 50 in the model", None),
    (gpt2(), gpt2(vocab_size=44), ["vocabulary"], "different vocabulary: 40 tokens", ("transformer.wte", "lm_head")),
    (gpt2(), gpt2(n_positions=24), ["positions"], "different number of positions: 12 in the", ("transformer.wpe",)),
    (vit(), vit(image_size=64), ["positions"], "positions for 4x4 patches in the checkpoint and 8x8 in the model", None),
    (vit(), vit(image_size=64, patch_size=16), ["shape"], "projection.weight [16, 3, 8, 8] and [16, 3, 16, 16]", None),
    (bert(max_position_embeddings=64), bert(max_position_embeddings=256), ["positions"], "number of positions: 64", None),
    (Net(), Net(channels=1), ["input"], "different input channels: conv1.weight takes 3 in the checkpoint and 1", None),
    (Net(), Net(depth=6), ["depth"], "different number of layers: blocks.0 … has 3 in the checkpoint and 6 in the model", None),
    (bert(), bert(num_hidden_layers=4), ["depth"], "different number of layers: bert.encoder.layer.0 … has 2", None),
    (Net(), Net(width=16), ["width"], "different architecture: layers of 8 in the checkpoint and 16 in the model", None),
    (bert(), bert(hidden_size=32), ["width"], "different architecture: layers of 16", None),
    (bert(), gpt2(), ["architecture"], "different architecture: 0 of the 29 weights of the model", None),
    (Net(masks=True), Net(), ["unexpected-parts"], "mask_head (4 weights) only in the checkpoint", ("mask_head",)),
    (Net(), Net(masks=True), ["missing-parts"], "mask_head (4 weights) only in the model", ("mask_head",)),
    (bert().bert, bert(), ["missing-parts"], "classifier (2 weights) only in the model", ("classifier",)),
    (Net(), Net(bias=True), ["bias"], "3 layers with a bias in the model and without one in the checkpoint", None),
]  # fmt: skip


@every_case(("one", "other", "kind", "words", "left_out"), DIFFERENT, ids=[words for _, _, _, words, _ in DIFFERENT])
def test_a_difference_is_named_for_what_it_means(
    one: nn.Module, other: nn.Module, kind: list[str], words: str, left_out: tuple[str, ...] | None
) -> None:
    different = found(one, other)
    assert kinds(different) == kind
    assert different.verdict.startswith("does not fit") and words in different.verdict
    assert different.fix
    if left_out is not None:
        listed = ", ".join(f'"{name}"' for name in left_out) + ("," if len(left_out) == 1 else "")
        assert different.calls == [f'holdfast.load(model, "last.pt", leave_out=({listed}))']
        assert found(one, other, leave_out=left_out).fits


def test_a_detector_s_boxes_for_each_class_belong_to_its_classes() -> None:
    def detector(classes: int) -> nn.ModuleDict:
        return nn.ModuleDict(
            {"body": nn.Linear(8, 16), "cls_score": nn.Linear(16, classes), "bbox_pred": nn.Linear(16, 4 * classes)}
        )

    different = found(detector(91), detector(3))
    assert kinds(different) == ["head"]
    assert "cls_score, bbox_pred has 91 classes in the checkpoint and 3 in the model" in different.verdict


def test_queries_of_a_detector_are_no_classes() -> None:
    def detector(queries: int) -> nn.ModuleDict:
        return nn.ModuleDict({"body": nn.Linear(8, 8), "query_embed": nn.Embedding(queries, 8), "fc": nn.Linear(8, 3)})

    assert "query_embed has 100 queries in the checkpoint and 300 in the model" in found(detector(100), detector(300)).verdict


def test_layers_behind_a_head_that_was_widened_are_not_called_classes() -> None:
    one = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 4))
    other = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 4))
    assert kinds(found(one, other)) == ["shape"]


def test_images_of_another_size_show_in_the_layer_after_flattening() -> None:
    different = found(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(144, 10)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(400, 10)),
    )
    assert kinds(different) == ["input"] and "images or sequences of a different size" in different.verdict


def test_adapters_and_quantised_weights_are_known_by_their_names() -> None:
    base = dict(saved(Net()).weights)
    lora = {**base, "fc.lora_A.weight": Weight((4, 8), "float32"), "fc.lora_B.weight": Weight((80, 4), "float32")}
    packed = {**base, "fc.weight": Weight((320, 1), "uint8"), "fc.weight.absmax": Weight((10,), "float32")}
    assert kinds(found(replace(saved(Net()), weights=lora), Net())) == ["adapters"]
    assert "quantised" in kinds(found(replace(saved(Net()), weights=packed), Net()))
    int8 = {**base, "fc.weight": replace(base["fc.weight"], dtype="int8")}
    assert kinds(found(replace(saved(Net()), weights=int8), Net())) == ["dtype"]


def test_two_parts_that_would_fit_are_asked_about_and_one_may_be_named() -> None:
    both = saved(nn.ModuleDict({"generator": Net(), "discriminator": Net()}))
    different = found(both, Net())
    assert kinds(different) == ["ambiguous"] and 'part="' in different.fix
    assert found(both, Net(), part="generator").fits


def test_averaged_weights_alone_are_loaded_as_such() -> None:
    own = saved(Net())
    averaged = replace(own, weights={}, averages=own.weights, holds=frozenset({"ema"}))
    only = found(averaged, Net())
    assert only.fits and only.which == "ema" and only.calls == ['holdfast.load(model, "last.pt", which="ema")']
    assert any("averaged (EMA) weights only" in note for note in only.notes)
    asked = found(averaged, Net(), which="model")
    assert kinds(asked) == ["no-weights"] and 'which="ema"' in asked.fix


# what must not be called a difference


def test_a_tied_weight_that_was_saved_once_is_not_missing() -> None:
    model = gpt2()
    weights = dict(saved(model).weights)
    del weights["lm_head.weight"]  # as safetensors keeps it
    same = found(replace(saved(model), weights=weights), model)
    assert same.calls == ['holdfast.load(model, "last.pt")']  # torch would miss the second name
    assert same.fits and "lm_head.weight (the same as transformer.wte.weight)" in same.notes[0]
    assert found(saved(model), gpt2(tie_word_embeddings=False)).fits


def test_buffers_that_the_model_makes_itself_do_not_matter() -> None:
    class Masked(nn.Module):
        def __init__(self, persistent: bool) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("mask", torch.ones(4, 4), persistent=persistent)

    assert found(Masked(True), Masked(False)).fits
    assert not found(Masked(False), Masked(True)).fits  # who knows what it held
    old = {name: one for name, one in saved(Net()).weights.items() if not name.endswith("num_batches_tracked")}
    assert found(replace(saved(Net()), weights=old), Net()).fits
    ids = {**saved(bert()).weights, "bert.embeddings.position_ids": Weight((1, 512), "int64")}
    assert found(replace(saved(bert()), weights=ids), bert()).fits


def test_an_averaged_model_s_counter_is_not_missed_by_the_plain_one() -> None:
    fits = found(AveragedModel(Net()), Net())
    assert fits.fits and fits.verdict == "fits after removing the prefix module."
    assert kinds(found(Net(), AveragedModel(Net()))) == [
        "missing"
    ]  # with a count of 0 the next update would overwrite the average


def test_another_precision_is_converted_and_told() -> None:
    half = found(Net().half(), Net())
    assert half.fits and any("float16 in the checkpoint and float32 in the model: converted" in note for note in half.notes)


# the rest of a training


def trained(model: nn.Module, kind: Any = torch.optim.AdamW, **settings: Any) -> dict[str, Any]:
    groups = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = kind(groups, **{"lr": 1e-3, **settings})
    for parameter in groups:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def full(name: str, model: nn.Module, state: dict[str, Any], **facts: Any) -> Side:
    holds = frozenset({"weights", "optimizer", "scheduler", "rng", "settings"})
    return saved(model, name, **{"optimizers": (describe_optimizer(state),), "holds": holds, **facts})


def test_two_checkpoints_of_one_training_fit_and_only_their_progress_is_told() -> None:
    facts = {"settings": {"lr": 0.1, "batch_size": 32, "output_dir": "runs/1"}, "versions": {"torch": "2.6.0"}}
    one = full("runs/1/step-100.pt", Net(), trained(Net()), step=100, epoch=1, metrics={"val_loss": 0.5}, **facts)
    other = full("runs/1/step-200.pt", Net(), trained(Net()), step=200, epoch=2, metrics={"val_loss": 0.4}, **facts)
    same = found(one, other)
    assert same.fits and not same.differences
    assert same.notes == [
        "step 100 in step-100.pt and 200 in step-200.pt",
        "epoch 1 in step-100.pt and 2 in step-200.pt",
        "val_loss 0.5 in step-100.pt and 0.4 in step-200.pt",
    ]


def test_names_of_two_checkpoints_are_as_long_as_they_must_be() -> None:
    labels = found(saved(Net(), "runs/a/last.pt"), saved(Net(), "runs/b/last.pt")).labels
    assert (labels.one, labels.other) == ("a/last.pt", "b/last.pt")


def test_weights_only_where_a_full_one_is_needed_stops_the_resume_and_not_the_weights() -> None:
    different = found(saved(Net(), "weights.pt"), full("last.pt", Net(), trained(Net())))
    assert kinds(different) == ["weights-only"] and different.weights_fit
    assert "weights.pt holds no optimizer, scheduler, rng" in different.verdict
    assert different.calls  # its weights can be used


@every_case(
    ("state", "words"),
    [
        (trained(Net(), torch.optim.SGD, momentum=0.9), "different optimizer: Adam-like in a.pt and SGD in b.pt"),
        (trained(nn.Sequential(Net().conv1)), "different parameters are optimised: groups of [13] in a.pt and [2] in b.pt"),
    ],
)
def test_another_optimizer_or_other_parameters_stop_the_resume(state: dict[str, Any], words: str) -> None:
    different = found(full("a.pt", Net(), trained(Net())), full("b.pt", Net(), state))
    assert kinds(different) == ["optimizer"] and words in different.verdict and different.weights_fit


def test_another_learning_rate_is_told_and_stops_nothing() -> None:
    same = found(full("a.pt", Net(), trained(Net())), full("b.pt", Net(), trained(Net(), lr=1e-4)))
    assert same.fits
    told = "optimizer settings differ: lr 0.001 in a.pt and 0.0001 in b.pt; the loaded values are used"
    assert [one.words for one in same.differences] == [told]


@every_case(
    ("one", "other", "kind", "stops"),
    [
        ({"mean": [0.5, 0.5, 0.5]}, {"mean": [0.485, 0.456, 0.406]}, "normalisation", "use"),
        ({"names": {0: "cat", 1: "dog"}}, {"names": {0: "dog", 1: "cat"}}, "classes", "use"),
        ({"num_attention_heads": 8}, {"num_attention_heads": 4}, "architecture", "use"),
        ({"tokenizer_name": "a"}, {"tokenizer_name": "b"}, "vocabulary", "use"),
        ({"tasks": ["boxes"]}, {"tasks": ["boxes", "masks"]}, "tasks", "use"),
        ({"optim": {"lr": 0.1}}, {"optim": {"lr": 0.01}}, "lr", ""),
        ({"train": {"batch_size": 8}}, {"batch_size": 16}, "batch", ""),
        ({"epochs": 10}, {"epochs": 20}, "schedule", ""),
        ({"attn_pdrop": 0.1}, {"attn_pdrop": 0.0}, "dropout", ""),
        ({"mosaic": 1.0}, {"mosaic": 0.0}, "augmentation", ""),
        ({"seed": 1}, {"seed": 2}, "seed", ""),
        ({"fp16": True}, {"fp16": False}, "precision", ""),
        ({"imgsz": 640}, {"imgsz": 1280}, "input-size", ""),
        ({"something": 1}, {"something": 2}, "setting", ""),
        ({"hidden_dropout_prob": 0.1}, {"hidden_dropout_prob": 0.2}, "dropout", ""),
        ({"encoder_lr": 0.1}, {"encoder_lr": 0.2}, "lr", ""),
        ({"optimizer": {"eps": 1e-8}}, {"optimizer": {"eps": 1e-6}}, "optimizer-setting", ""),
        ({"activation_checkpointing": True}, {"activation_checkpointing": False}, "setting", ""),
        ({"encoder": {"frozen": True}}, {"encoder": {"frozen": False}}, "setting", ""),
        ({"label2id": {"cat": 0, "dog": 1}}, {"label2id": {"cat": 0, "dog": 2}}, "classes", "use"),
    ],
)
def test_a_setting_that_differs_is_told_with_what_it_means(
    one: dict[str, Any], other: dict[str, Any], kind: str, stops: str
) -> None:
    different = found(saved(Net(), "a.pt", settings=one), saved(Net(), "b.pt", settings=other))
    assert [(difference.kind, difference.stops) for difference in different.differences] == [(kind, stops)]
    assert different.fits == (not stops)


def test_settings_that_mean_the_same_do_not_differ() -> None:
    one = {"lr": 0.001, "size": (224, 224), "amp": True, "out_dir": "a", "run_name": "x", "num_workers": 2, "device": "cuda:0"}
    other = {"lr": "1e-3", "size": [224, 224], "amp": "true", "out_dir": "b", "run_name": "y", "num_workers": 8, "device": "cpu"}
    assert not found(saved(Net(), "a.pt", settings=one), saved(Net(), "b.pt", settings=other)).differences


def test_a_newer_torch_is_a_note() -> None:
    notes = found(saved(Net(), "a.pt", versions={"torch": "2.1.0"}), saved(Net(), "b.pt", versions={"torch": "2.6.1"})).notes
    assert "torch 2.1.0 in a.pt and 2.6.1 in b.pt" in notes


def test_a_torn_file_does_not_fit_whatever_its_names_say() -> None:
    trouble = Trouble("torn", "It is truncated.", "use an older one")
    different = found(saved(Net(), troubles=(trouble,)), Net())
    assert not different.fits and different.fix == "use an older one" and not different.calls


def test_as_a_row_everything_can_be_written_as_json() -> None:
    import json

    row = json.loads(json.dumps(found(Net(), Net(3)).as_row()))
    assert row["fits"] is False and row["shapes"]["fc.bias"] == [[80], [3]] and row["differences"][0]["kind"] == "head"
