"""Settings that differ, each with what the difference means. What means nothing, such as paths and names of runs, is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.contents import Opaque
from holdfast.checkpoints.formats.files import few
from holdfast.matching.sides import Difference, Labels, OptimizerState, Side, Stops
from holdfast.units import count

_NO_MATTER = re.compile(
    r"(^|_)(paths?|dirs?|folder|files?|saved?|logs?|logging|logger|wandb|project|run|exp|experiment|version|time|date|timestamp"
    r"|devices?|gpus?|world|workers?|port|host|url|verbose|resume|hub|report|tqdm|print|interval|debug|uuid|commit|cache|output|ckpt"
    r"|checkpoints?|tags|notes|every|entity|profile|pin|persistent|prefetch)(_|$)"
)
_NAMES_OF_RUNS = ("name", "id", "rank", "local_rank", "global_rank")
_ABSENT = object()
_LONG = 40


@dataclass(frozen=True, slots=True)
class Meaning:
    """What another value of some settings means. `stops` is "use" where answers become wrong although every shape fits."""

    keys: re.Pattern[str]  # of the last part of the path, in lower case
    words: str
    kind: str
    stops: Stops = ""


def _means(keys: str, message: str, kind: str, stops: Stops = "") -> Meaning:
    return Meaning(re.compile(keys), message, kind, stops)


MEANINGS = (  # the first that knows a key says it
    _means(r"drop(?!_last)", "different dropout: training differs, evaluation does not", "dropout"),
    _means(r"(^|_)(lr|learning_?rate)\d?f?$", "different learning rate", "lr"),
    _means(r"weight_decay|momentum|betas?\d?$|nesterov|^optim|clip|max_grad", "optimizer settings differ", "optimizer-setting"),
    _means(
        r"^(image_|pixel_|norm_|rgb_)?(mean|means|std|stds)$|normali[sz](?!e_before)|rescale_factor",
        "inputs are normalised differently: predictions are wrong, without an error",
        "normalisation",
        "use",
    ),
    _means(
        r"^(nc|n(um)?_?classes|num_labels|n_labels|classes_num)$", "different number of classes: different head", "classes", "use"
    ),
    _means(
        r"^(names|class_names|classes|labels|label_names|id2label|label2id|categories)$",
        "different classes, or a different order: predictions get wrong names",
        "classes",
        "use",
    ),
    _means(
        r"vocab|^tokenizer|(pad|bos|eos|unk|mask)_token",
        "different vocabulary or tokenizer: ids mean different tokens",
        "vocabulary",
        "use",
    ),
    _means(
        r"^(tasks?|heads|losses|with_(mask|box|seg|key|depth)\w*|use_\w+_head|problem_type)$",
        "different tasks are enabled",
        "tasks",
        "use",
    ),
    _means(
        r"activation(?!_(check|off))|hidden_act|layer_norm_eps|rms_norm_eps|rope|norm_type|pre_norm|normalize_before|tie_word",
        "every shape fits, but the model computes something different",
        "architecture",
        "use",
    ),
    _means(
        r"^(hidden|embed|d_model|n_embd|dim$|width|depth|channels|in_ch|input_dim|n_layers?$|num_(hidden_)?layers|layers$|n_inner"
        r"|intermediate|ffn|mlp|n_heads?$|num_(attention_|key_value_)?heads|patch_size|arch|model_type|model_name|backbone$"
        r"|(en|de)coder$|max_position|n_positions|block_size|head_dim|kernel|groups?$|stride)",
        "different architecture",
        "architecture",
        "use",
    ),
    _means(
        r"^(imgsz|(image|img|input|crop)_?(size|shape)|resolution|max_(seq_)?len(gth)?|sequence_length|seq_len|sample_rate|num_frames)$",
        "inputs of a different size than in training",
        "input-size",
    ),
    _means(
        r"batch|accumulat|^accum",
        "different batches: the same steps make a different number of epochs, and the learning rate may not fit",
        "batch",
    ),
    _means(
        r"epochs|max_steps|num_(train_)?steps|total_steps|max_iters|warmup|schedul|milestones|cos_lr|lr_decay",
        "different schedule: the learning rate will differ from here on",
        "schedule",
    ),
    _means(
        r"aug|mosaic|mixup|cutmix|flip|hsv|jitter|crop|scale$|translate|degrees|shear|erasing|perspective|copy_paste|transform",
        "different augmentation: the losses of the two trainings are not comparable",
        "augmentation",
    ),
    _means(r"seed", "different seed: the data comes in a different order", "seed"),
    _means(r"precision|fp16|bf16|(^|_)amp(_|$)|dtype|half|tf32|quanti", "a different precision", "precision"),
    _means(r"(^|_)(ema|swa)(_|$)|averag", "different averaging (EMA) of the weights", "averaging"),
    _means(r"^(data|dataset\w*|train_data|splits?|fold|fraction)$", "other data", "data"),
    _means(r"smooth|loss|gain|alpha|gamma|temperature|weights?$|box$|cls$|dfl$", "a different loss", "loss"),
)


def setting_differences(
    before: Mapping[str, Any], other: Mapping[str, Any], labels: Labels, *, tell_lone: bool = True
) -> list[Difference]:
    """What differs between two sets of settings. Those that only one side has are told in one line, and only if they are few."""
    if not before or not other:
        return []
    differences, unknown, lone = [], [], []
    for path, here, there in differing(before, other):
        if any(value is _ABSENT or value is None for value in (here, there)):
            lone.append(path)
            continue
        values = f"{path} {labels.both(show(here), show(there))}"
        meaning = meaning_of(path)
        if meaning is None:
            unknown.append((path, values))
            continue
        what, _, then = meaning.words.partition(": ")
        message = f"{what} ({values})" + (f": {then}" if then else "")
        fix = f"set {path} to {show(here)}, as it was trained" if meaning.stops else ""
        differences.append(Difference(kind=meaning.kind, words=message, stops=meaning.stops, fix=fix, names=(path,)))
    differences.sort(key=lambda difference: (difference.stops != "use", difference.kind))
    differences += [Difference(kind="setting", words=values, names=(path,)) for path, values in unknown]
    if tell_lone and lone and len(lone) <= len(_flat(before)) // 2:
        differences.append(
            Difference(kind="setting", words=f"{count(len(lone), 'setting')} only on one side: {few(lone)}", names=tuple(lone))
        )
    return differences


def meaning_of(path: str) -> Meaning | None:
    """What a difference in this setting means: told by its own name, else by those it stands under."""
    own, *above = path.lower().replace("-", "_").split(".")[::-1]
    named = next((meaning for meaning in MEANINGS if meaning.keys.search(own)), None)
    under = (meaning for key in above for meaning in MEANINGS if meaning.keys.search(key) and meaning.kind != "architecture")
    return named or next(under, None)


def differing(before: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Paths whose values differ. The same key deeper in the one than in the other is found if there is only one of it."""
    here, there = _flat(before), _flat(other)
    here, there = _aligned(here, there), _aligned(there, here)
    for path in dict.fromkeys((*here, *there)):
        a, b = here.get(path, _ABSENT), there.get(path, _ABSENT)
        if not same(a, b) and not _is_no_matter(path.rpartition(".")[2].lower()):
            yield path, a, b


def _is_no_matter(key: str) -> bool:
    """Paths, names of runs, and what only says where and how loudly it ran."""
    return key.startswith("_") or key in _NAMES_OF_RUNS or bool(_NO_MATTER.search(key))


def _aligned(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """The paths of `here` under those of `there`, where these are shorter."""
    ends = Counter(path.rpartition(".")[2] for path in here)
    values = {}
    for path, value in here.items():
        end = path.rpartition(".")[2]
        values[end if path not in there and end in there and ends[end] == 1 else path] = value
    return values


def _flat(settings: Any, path: str = "") -> dict[str, Any]:
    """Path: value; lists, and dicts from numbers to names, stay whole."""
    if not isinstance(settings, Mapping) or not settings or (path and all(str(key).isdecimal() for key in settings)):
        return {path: settings} if path else {}
    values: dict[str, Any] = {}
    for name, inner in settings.items():
        values |= _flat(inner, f"{path}.{name}" if path else str(name))
    return values


def same(here: Any, other: Any) -> bool:
    """Whether two values mean the same: lists and tuples, 1 and 1.0, a number and its text."""
    if here is _ABSENT or other is _ABSENT:
        return here is other
    if isinstance(here, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(here) == len(other) and all(map(same, here, other))
    if isinstance(here, Mapping) and isinstance(other, Mapping):
        return {str(key) for key in here} == {str(key) for key in other} and all(
            same(item, {str(key): there for key, there in other.items()}[str(name)]) for name, item in here.items()
        )
    if isinstance(here, bool) or isinstance(other, bool):
        return bool(here is other or str(here).lower() == str(other).lower())
    both = _number(here), _number(other)
    if both[0] is not None and both[1] is not None:
        return abs(both[0] - both[1]) <= 1e-9 * max(abs(both[0]), abs(both[1]))
    return bool(here == other) or str(here) == str(other)


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except ValueError:
        return None


def show(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, Opaque):
        value = value.name
    text = (
        f"{value:.6g}"
        if isinstance(value, float)
        else str(list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value)
    )
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


_COMPARED = ("lr", "initial_lr", "weight_decay", "betas", "momentum", "eps", "nesterov", "amsgrad")
_FULL = ("optimizer", "scheduler", "scaler", "rng", "loader")


def training_differences(side: Side, other: Side, labels: Labels) -> Iterator[Difference]:
    """What the other side has for going on with a training, and this one lacks or has otherwise."""
    yield from _holdings(side, other, labels)
    if side.optimizers and other.optimizers:
        if len(side.optimizers) != len(other.optimizers):
            counts = labels.both(len(side.optimizers), len(other.optimizers))
            yield _stopping(f"different number of optimizers: {counts}", "create the optimizers that were saved")
        for here, there in zip(side.optimizers, other.optimizers, strict=False):
            yield from optimizer_differences(here, there, labels)
    elif side.optimizers and other.is_model:
        yield from _against_model(side, other)


def _holdings(side: Side, other: Side, labels: Labels) -> Iterator[Difference]:
    lacking = [part for part in _FULL if part in other.holds and part not in side.holds]
    if "optimizer" in lacking:
        message = f"{labels.one} holds no {', '.join(lacking)}: a training cannot be resumed exactly from it"
        fix = "choose a full checkpoint, or start a new training from its weights, with warm-up"
        yield Difference(kind="weights-only", words=message, stops="resume", fix=fix)
    elif lacking:
        message = f"{labels.one} holds no {', '.join(lacking)}, and {labels.other} does: a resumed training will differ there"
        yield Difference(kind="less-state", words=message)


def optimizer_differences(here: OptimizerState, there: OptimizerState, labels: Labels) -> Iterator[Difference]:
    """What differs between two optimizers; whatever stops a resume comes alone."""
    if here.family != there.family or (here.kind != there.kind and here.filled and there.filled):
        values = labels.both(here.kind, there.kind)
        yield _stopping(f"different optimizer: {values}", f"create the one that was saved ({here.kind}), or leave its state out")
    elif len(here.groups) != len(there.groups):
        values = labels.both(count(len(here.groups), "group"), len(there.groups))
        yield _stopping(
            f"parameter groups differ: {values}", "create the optimizer with the groups that were saved, or leave its state out"
        )
    elif here.groups != there.groups:
        values = labels.both(list(here.groups), list(there.groups))
        yield _stopping(
            f"different parameters are optimised: groups of {values}",
            "freeze and group the parameters as they were, or leave the state out",
        )
    else:
        yield from _group_settings(here, there, labels)


def _group_settings(here: OptimizerState, there: OptimizerState, labels: Labels) -> Iterator[Difference]:
    """What is set otherwise; of several groups the first that differs is told."""
    changed: dict[str, str] = {}
    for key in _COMPARED:
        for before, other in zip(here.settings, there.settings, strict=True):
            if key in before and key in other and not same(before[key], other[key]):
                changed.setdefault(key, f"{key} {labels.both(show(before[key]), show(other[key]))}")
    if changed:
        message = f"optimizer settings differ: {', '.join(changed.values())}; the loaded values are used"
        yield Difference(kind="optimizer-setting", words=message, names=tuple(changed))


def _against_model(side: Side, other: Side) -> Iterator[Difference]:
    """The moments have the shapes of the parameters that they belong to; groups may order these as they like."""
    parameters = Counter(
        {weight.same_as: weight.shape for weight in other.weights.values() if weight.is_buffer is False}.values()
    )
    total = sum(parameters.values())
    for state in side.optimizers:
        strange = [list(shape) for shape in Counter(state.shapes) - parameters]
        if strange:
            message = (
                f"the optimizer's state belongs to different parameters, such as {few(strange)}: load the weights without it"
            )
            yield Difference(kind="optimizer", words=message)
        elif state.parameters < total:
            message = f"the optimizer trained {state.parameters:,} of the model's {total:,} parameters: the rest was frozen"
            yield Difference(kind="optimizer", words=message)


def _stopping(message: str, fix: str) -> Difference:
    return Difference(kind="optimizer", words=message, stops="resume", fix=fix)
