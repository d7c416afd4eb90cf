"""A metric by its name: whether it is better high or low, and how it is shown."""

from __future__ import annotations

import re

_LOW = {
    *("loss", "error", "err", "perplexity", "ppl", "mse", "mae", "rmse", "nll", "cer", "wer", "fid", "entropy", "bpc", "bpb"),
    *("mape", "brier", "ece", "hinge", "bce", "kl", "div", "ctc"),
}
_HIGH = {
    *("acc", "accuracy", "acc1", "acc5", "top1", "top5", "f1", "auc", "auroc", "auprc", "map", "map50", "ap", "iou", "miou"),
    *("dice", "precision", "recall", "bleu", "rouge", "psnr", "ssim", "r2", "mcc", "kappa", "correct"),
}
SPREAD = {"std", "stddev", "stderr", "sem", "var", "variance"}  # of a metric: not one itself


def better(name: str) -> str | None:
    """`higher` or `lower`; None where the name does not say, and then nothing is concluded from it."""
    tokens = re.split(r"[^a-z0-9]+", name.lower())
    if any(word in SPREAD for word in tokens):
        return None
    if any(word in _LOW for word in tokens):  # `accuracy_loss` is a loss
        return "lower"
    return "higher" if any(word in _HIGH for word in tokens) else None


def metric_name(split: str, name: str) -> str:
    """`val accuracy`; `val_acc` says its split already."""
    return name if name.lower().startswith(split.lower()) else f"{split} {name}"
