"""What a column of a log is, by its name: which loss, of which split, a metric and its direction, a setting, a cost."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from holdfast.signals.metric_direction import SPREAD, better

STEP_NAMES = ("step", "global_step", "steps", "iteration", "iter", "iters", "_step", "trainer/global_step", "batch", "update")
EPOCH_NAMES = ("epoch", "epochs", "ep", "epoch_num")
_TRAIN = {"train", "training", "trn", "tr"}
_VAL = {"val", "valid", "validation", "dev", "eval", "evaluation", "va"}
_TEST = {"test", "testing", "te", "holdout"}
_LOSS = {"loss", "losses", "nll", "objective", "cost", "ce", "xent"}
_LR = {"lr", "learningrate", "pg0", "lr0"}
_TIME = {"time", "seconds", "sec", "secs", "runtime", "duration", "ms", "hours"}
_CLOCK = {"eta", "elapsed", "walltime", "timestamp", "wall"}  # of the run so far, not of a step
_RATE = {"per", "throughput", "fps", "sps", "tps", "mfu", "flops", "speed"}
_LOWER_METRICS = {"ppl", "perplexity", "error", "err", "mse", "mae", "rmse", "wer", "cer", "fid", "bpb", "bpc"}


class Role(NamedTuple):
    """What a column stands for."""

    role: str  # loss, metric, lr, norm, seconds, data_seconds, memory, utilisation, other
    split: str  # train, val, test
    better: str | None = None


def words_of(name: str) -> list[str]:
    """The words of a column's name: `metrics/mAP50-95(B)` -> metrics, map50, 95, b."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name)
    return [word for word in re.split(r"[^A-Za-z0-9]+", apart.lower()) if word]


@lru_cache(maxsize=8192)
def role_of(name: str) -> Role:
    """The role of a column."""
    tokens = words_of(name)
    split = split_of(tokens)
    together = set(tokens)
    if {"learning", "rate"} <= together or together & _LR or any(re.fullmatch(r"(lr|pg)\d+", word) for word in tokens):
        return Role("lr", "train")
    if "norm" in together or "gradnorm" in together:
        return Role("norm", "train")
    if together & _CLOCK or name == "_runtime":
        return Role("other", split)
    if "data" in together and together & _TIME:
        return Role("data_seconds", split)
    if together & _TIME or together & _RATE or "samples" in together:
        return Role("seconds" if together & _TIME and not together & _RATE else "other", split)
    if together & SPREAD:
        return Role("other", split)
    if together & {"accu", "accum", "accumulate", "accumulation"}:  # gradient accumulation is no accuracy
        return Role("other", split)
    if "scale" in together or "scaler" in together:
        return Role("other", split)
    if together & {"mem", "memory", "vram", "rss"}:
        return Role("memory", split)
    if together & {"util", "utilisation", "utilization"}:
        return Role("utilisation", split)
    if any(word in _LOSS or (word.endswith("loss") and word != "lossless") for word in tokens):
        return Role("loss", split, "lower")
    way = better("_".join(tokens)) or ("lower" if together & _LOWER_METRICS else None)
    if way is None and any(re.fullmatch(r"(m?ap|iou|acc|rouge|bleu|f|top|hits?|ndcg|recall)\d*[a-z]?", word) for word in tokens):
        way = "higher"
    return Role("metric", "val" if split == "train" and _names_metrics(tokens) else split, way) if way else Role("other", split)


def split_of(tokens: list[str]) -> str:
    """The split that a name speaks of; without a word for it, the training's."""
    together = set(tokens)
    if together & _VAL or any(word.startswith("valid") for word in tokens):
        return "val"
    return "test" if together & _TEST and not together & _TRAIN else "train"


def _names_metrics(tokens: list[str]) -> bool:
    """Ultralytics and others keep what they measure on held-out data under `metrics/`."""
    return "metrics" in tokens and not set(tokens) & _TRAIN


def is_total(name: str) -> bool:
    """Whether a loss is the whole one, not one of several parts."""
    rest = [word for word in words_of(name) if word not in _TRAIN | _VAL | _TEST]
    return rest in (["loss"], ["total", "loss"], ["loss", "total"], ["loss", "epoch"], ["loss", "step"], ["avg", "loss"], ["nll"])
