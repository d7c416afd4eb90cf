"""When in a training a checkpoint was saved, and how good it was: step, epoch, metrics, time.

Looked for where the known trainers put them, then under the names that people use, then in the name of the file.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Opaque, TensorInfo

_STEPS = (
    "global_step", "step", "steps", "num_steps", "iteration", "iterations", "iter", "iter_num", "iteration_num", "it",
    "n_iter", "current_step", "train_step", "total_steps", "num_updates", "update", "updates", "global_steps",
)  # fmt: skip
_EPOCHS = ("epoch", "current_epoch", "epochs", "epoch_num", "num_epoch", "last_epoch")
_TIMES = ("saved_at", "time", "timestamp", "date", "datetime", "save_time", "created_at", "created")
_INSIDE = (
    *("meta", "state", "train_state", "training_state", "trainer", "extra_state", "progress", "info"),
    *("training", "counters", "extra"),
)
_METRICS = re.compile(r"^((val|valid|validation|eval|test|train|best)_?)?(metrics?|scores?|results?|logs?)$", re.I)
_METRIC = re.compile(
    r"^(best|val|valid|validation|eval|dev|test)([_./-]|$)|loss|(^|[_./-])(acc|accuracy|top_?[15]|m?ap|map\d*|m?iou|dice|f1|auc|auroc"
    r"|psnr|ssim|bleu|rouge\w*|wer|cer|ppl|perplexity|mse|mae|rmse|score|metric|fitness|recall|precision|fid)([_./-]|$)|mAP",
    re.I,
)
_NO_METRIC = re.compile(
    r"epoch|step|iter|path|name|seed|patience|weight|size|lr$|learning_rate|interval|freq|ratio|alpha|beta", re.I
)
_HELD_OUT = re.compile(r"^(val|valid|validation|eval|dev|test)([_./-]|$)|(^|[_./-])(val|valid|eval|test)([_./-]|$)", re.I)
_IN_NAME = re.compile(r"([A-Za-z][\w/.]*?)=(-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.I)
_STEP_IN_NAME = re.compile(
    r"(?:^|[^a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?|checkpoint|ckpt|chkpt)[-_=.]?0*(\d+)(?!\d*\.\d)", re.I
)
_EPOCH_IN_NAME = re.compile(r"(?:^|[^a-z])(?:epochs?|ep)[-_=.]?0*(\d+)", re.I)
_WORD_IN_NAME = re.compile(
    r"(?:^|[-_])((?:val|valid|test|eval)?_?(?:loss|acc|accuracy|map|miou|iou|f1|auc|ppl|dice|psnr))[-_]?(\d+\.\d+)", re.I
)

Scalar = Callable[[TensorInfo], float | None]


@dataclass(slots=True)
class Facts:
    """What is known; `monitored` names the metric by which the trainer itself judges."""

    step: int | None = None
    epoch: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    monitored: str | None = None
    saved_at: float | None = None


def facts_of(tree: Any, path: Path, scalar: Scalar) -> Facts:
    """Step, epoch, metrics and time. `scalar` gives the value of a tensor of one number."""
    facts = Facts()
    if isinstance(tree, dict):
        for take in (_holdfast, _transformers, _lightning, _ultralytics, _by_hand):
            take(tree, facts, scalar)
    _from_name(path, facts)
    return facts


def metric_of(facts: Facts) -> tuple[str, float] | None:
    """The metric that says most: the monitored one, else one of held-out data, else the best so far, else any."""
    names = list(facts.metrics)
    if facts.monitored in facts.metrics:
        return facts.monitored, facts.metrics[facts.monitored]
    ranked = sorted(names, key=lambda name: (_rank(name), names.index(name)))
    return (ranked[0], facts.metrics[ranked[0]]) if ranked else None


def _rank(name: str) -> int:
    if name.lower().startswith("best"):
        return 2 if "loss" not in name.lower() else 3
    if _HELD_OUT.search(name):
        return 1 if "loss" in name.lower() else 0
    return 5 if "loss" in name.lower() else 4


def _holdfast(tree: dict[Any, Any], facts: Facts, scalar: Scalar) -> None:
    manifest = tree.get("manifest")
    if not isinstance(manifest, dict) or "files" not in manifest:
        return
    facts.step, facts.epoch = _whole(manifest.get("step"), scalar), _whole(manifest.get("epoch"), scalar)
    facts.saved_at = _moment(manifest.get("time"))
    _take(manifest.get("metrics"), facts, scalar)


def _transformers(tree: dict[Any, Any], facts: Facts, scalar: Scalar) -> None:
    state = tree.get("trainer_state")
    if not isinstance(state, dict):
        return
    facts.step, facts.epoch = _whole(state.get("global_step"), scalar), _whole(state.get("epoch"), scalar)
    history = state.get("log_history")
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    measured = next((row for row in reversed(rows) if any(str(key).startswith("eval_") for key in row)), {})
    speed = ("runtime", "per_second", "_time")
    _take({k: v for k, v in measured.items() if str(k).startswith("eval_") and not str(k).endswith(speed)}, facts, scalar)
    best = _number(state.get("best_metric"), scalar)
    if best is not None:
        facts.metrics.setdefault("best_metric", best)
    arguments = tree.get("training_args")
    wanted = (
        arguments.state.get("metric_for_best_model")
        if isinstance(arguments, Opaque) and isinstance(arguments.state, dict)
        else None
    )
    if isinstance(wanted, str):
        facts.monitored = next((name for name in (wanted, f"eval_{wanted}") if name in facts.metrics), None)
    last = next((row for row in reversed(rows) if "loss" in row), {})
    _take({"loss": last.get("loss")}, facts, scalar)


def _lightning(tree: dict[Any, Any], facts: Facts, scalar: Scalar) -> None:
    callbacks = tree.get("callbacks")
    for name, state in callbacks.items() if isinstance(callbacks, dict) else ():
        if not (isinstance(state, dict) and "ModelCheckpoint" in str(name)):
            continue
        monitor = state.get("monitor")
        value = _number(state.get("current_score"), scalar)
        best = _number(state.get("best_model_score"), scalar)
        if isinstance(monitor, str) and value is not None and facts.monitored is None:
            facts.metrics[monitor], facts.monitored = value, monitor
        if isinstance(monitor, str) and best is not None:
            facts.metrics.setdefault(f"best_{monitor}", best)


def _ultralytics(tree: dict[Any, Any], facts: Facts, scalar: Scalar) -> None:
    if "best_fitness" not in tree:
        return
    measured = tree.get("train_metrics")
    _take(measured, facts, scalar)
    best = _number(tree.get("best_fitness"), scalar)
    if best is not None:
        facts.metrics.setdefault("best_fitness", best)
    facts.monitored = "fitness" if "fitness" in facts.metrics else None


def _by_hand(tree: dict[Any, Any], facts: Facts, scalar: Scalar) -> None:
    """The names that people use, at the top and one level below; a top-level one comes first."""
    inner = [value for name in _INSIDE if isinstance(value := tree.get(name), dict)]
    for table in (tree, *inner):
        low = {str(key).lower(): value for key, value in table.items()}
        if facts.step is None:
            facts.step = next((n for name in _STEPS if (n := _whole(low.get(name), scalar)) is not None), None)
        if facts.epoch is None:
            facts.epoch = next((n for name in _EPOCHS if (n := _whole(low.get(name), scalar)) is not None), None)
        if facts.saved_at is None:
            facts.saved_at = next((when for name in _TIMES if (when := _moment(low.get(name))) is not None), None)
        for key, value in table.items():
            if isinstance(value, dict) and _METRICS.match(str(key)):
                _take(value, facts, scalar)
            elif _METRIC.search(str(key)) and not _NO_METRIC.search(str(key)):
                _take({key: value}, facts, scalar)


def _take(table: Any, facts: Facts, scalar: Scalar) -> None:
    """Add metrics that are not known yet; of nested ones those one level below too ({"val": {"acc": …}})."""
    for key, value in table.items() if isinstance(table, dict) else ():
        number = _number(value, scalar)
        if number is not None:
            facts.metrics.setdefault(str(key), number)
        elif isinstance(value, dict):
            for name, inner in value.items():
                if (number := _number(inner, scalar)) is not None:
                    facts.metrics.setdefault(f"{key}/{name}", number)


def _from_name(path: Path, facts: Facts) -> None:
    """What the name of the file says: epoch=3-step=400-val_loss=0.12.ckpt, checkpoint-500, ckpt_12000.pt, epoch_5."""
    for name in _names(path):
        pairs = {key.strip("_-./").lower(): value for key, value in _IN_NAME.findall(name)}
        if facts.step is None:
            step = _first(pairs, ("step", "global_step", "iter", "iteration"))
            facts.step = step if step is not None else _last(_STEP_IN_NAME, name)
        if facts.epoch is None:
            facts.epoch = _first(pairs, ("epoch",)) if "epoch" in pairs else _last(_EPOCH_IN_NAME, name)
        metrics = {key: value for key, value in pairs.items() if "." in value and not _NO_METRIC.search(key)}
        metrics |= {key.lower().strip("_"): value for key, value in _WORD_IN_NAME.findall(name)}
        for key, value in metrics.items():
            facts.metrics.setdefault(key, float(value))


def _names(path: Path) -> Iterator[str]:
    """The name, and that of the folder around a file that every checkpoint calls the same."""
    yield path.name if path.suffix.lower() not in (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".tar", ".pkl") else path.stem
    if path.stem in ("model", "pytorch_model", "adapter_model", "optimizer", "weights", "checkpoint", "training"):
        yield path.parent.name


def _first(pairs: dict[str, str], names: tuple[str, ...]) -> int | None:
    return next((int(pairs[name]) for name in names if pairs.get(name, "").isdecimal()), None)


def _last(pattern: re.Pattern[str], name: str) -> int | None:
    matches = pattern.findall(name)
    return int(matches[-1]) if matches and len(matches[-1]) < 16 else None


def _whole(value: Any, scalar: Scalar) -> int | None:
    """A count that makes sense: not negative. Of an epoch and a half the epoch."""
    number = _number(value, scalar)
    return int(number) if number is not None and math.isfinite(number) and 0 <= number < 1e15 else None


def _number(value: Any, scalar: Scalar) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e300 or isinstance(value, float) else None
    if isinstance(value, TensorInfo) and value.count == 1:
        return scalar(value)
    return None


def _moment(value: Any) -> float | None:
    """Seconds since 1970, from such a number or from a date in words."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 1e9 < value < 4e9 else None
    if not isinstance(value, str) or not 8 <= len(value) <= 40:
        return None
    try:
        return datetime.datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
