"""What is wrong with each faulty training: one of these findings is told, and one of these causes comes first."""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """Codes of findings and of causes, any of which is right. A remark has no cause."""

    findings: tuple[str, ...]
    causes: tuple[str, ...]


EXPECTED = {
    "vanishing": Expected(("gradient-vanishing",), ("no-residuals", "saturating-activation")),
    "dead-relus": Expected(("dead-units",), ("bad-initialisation", "dying-relu")),
    "rate-too-low": Expected(("not-learning",), ("learning-rate-too-low",)),
    "rate-too-high": Expected(("not-learning", "loss-divergence", "non-finite-loss"), ("learning-rate-too-high",)),
    "rate-zero": Expected(("not-learning",), ("learning-rate-zero",)),
    "frozen": Expected(("parameters-not-trained",), ("frozen-by-mistake",)),
    "other-head": Expected(("parameters-not-trained",), ("optimizer-holds-other-parameters",)),
    "wrong-optimizer": Expected(("not-learning",), ("optimizer-holds-other-parameters",)),
    "shuffled-labels": Expected(("not-learning",), ("labels-wrong",)),
    "shuffled-labels-memorised": Expected(("overfitting",), ("labels-unrelated",)),
    "sorted-data": Expected(("unshuffled-data",), ("not-shuffled",)),
    "constant-input": Expected(("constant-predictions",), ("constant-input",)),
    "duplicates": Expected(("too-good",), ()),
    "exploding-rnn": Expected(
        ("gradient-explosion", "loss-divergence", "non-finite-loss"), ("no-clipping", "learning-rate-too-high")
    ),
    "overfit": Expected(("overfitting",), ("too-little-data", "trained-too-long")),
    "schedule-too-short": Expected(("loss-plateau",), ("schedule-ended",)),
    "leak": Expected(("host-memory-growth",), ("graph-kept-alive",)),
    "slow-loader": Expected(("slow-loading",), ("too-few-workers",)),
    "slow-worker": Expected(("slow-loading",), ("one-slow-worker",)),
}

OF_THE_GUARD: dict[
    str, Expected | None
] = {  # faults that are put into a training that learns, as fault/training; heal.py repairs them
    "nan-batch/digits_mlp": Expected(("non-finite-loss", "non-finite-input"), ("data-non-finite",)),
    "inf-pixel/rnn_rows": Expected(("non-finite-loss", "non-finite-input"), ("data-non-finite", "bad-batch")),
    "label-out-of-range/digits_mlp": Expected(("non-finite-loss",), ("bad-batch", "labels-out-of-range")),
    "lr-x100/digits_mlp": Expected(("non-finite-loss", "loss-divergence"), ("setting-changed", "learning-rate-too-high")),
    "lr-x100-kept/rnn_rows": Expected(("loss-divergence", "gradient-explosion"), ("setting-changed", "learning-rate-too-high")),
    "corrupted-weight/digits_cnn": Expected(
        ("non-finite-weights", "loss-divergence", "gradient-explosion"), ("weights-damaged",)
    ),
    "exploding-rnn/rnn_rows": Expected(
        ("gradient-explosion", "loss-divergence", "non-finite-loss"), ("no-clipping", "learning-rate-too-high")
    ),
    "fp16-overflow/digits_cnn": Expected(("non-finite-loss", "non-finite-gradient"), ("overflow",)),
    "spike-that-recovers/digits_mlp": None,  # harmless: nothing above a remark
}
