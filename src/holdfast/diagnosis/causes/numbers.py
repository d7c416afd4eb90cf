"""Why numbers go wrong: NaN, explosions, spikes, collapse."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_LOWER = Fix("lower the learning rate", setting="lr", op="multiply", value=0.25)

SETTING_CHANGED = Cause(
    code="setting-changed",
    seen_by=("loss-divergence", "gradient-explosion", "metric-decline", "metric-collapse"),
    signs=("lr-jumped", "change-before"),
    because="A setting changed shortly before it began.",
    likely=0.0,
    fixes=(Fix("go back to the setting as it was, or change it in smaller steps"),),
)
LEARNING_RATE_TOO_HIGH = Cause(
    code="learning-rate-too-high",
    seen_by=(
        *("loss-divergence", "gradient-explosion", "metric-collapse", "metric-decline", "loss-spike", "non-finite-loss"),
        *("non-finite-gradient", "loss-oscillation", "not-learning"),
    ),
    signs=("lr-jumped", "norm-exploded", "lr-huge", "lr-rising", "norms-grew", "norms-jumped"),
    against=("lr-decayed", "norms-tiny"),
    ruled_out_by=("input-non-finite", "lr-zero"),
    because="Steps that are too large throw the weights about while the inputs are finite.",
    likely=0.5,
    fixes=(_LOWER, Fix("warm the learning rate up over the first epochs", setting="warmup_epochs", op="set", value=5)),
)
NO_CLIPPING = Cause(
    code="no-clipping",
    seen_by=("gradient-explosion", "loss-divergence"),
    signs=("norm-exploded", "not-clipped"),
    because="Gradients grew far beyond their usual size and nothing held them.",
    likely=0.1,
    fixes=(Fix("clip gradients at 2 to 5 times their usual norm", setting="clip_norm", op="set", value=None),),
)
BAD_BATCH = Cause(
    code="bad-batch",
    seen_by=("loss-spike", "non-finite-loss", "non-finite-gradient"),
    signs=("recovered",),
    because="One step stood out and the next ones were as usual.",
    likely=0.4,
    fixes=(Fix("look at the batch of that step"),),
)
DATA_NON_FINITE = Cause(
    code="data-non-finite",
    seen_by=("non-finite-weights", "non-finite-loss", "non-finite-gradient"),
    signs=("input-non-finite",),
    because="The input already held NaN or Inf.",
    likely=0.0,
    fixes=(Fix("check the data: holdfast validate"),),
)
OVERFLOW = Cause(
    code="overflow",
    seen_by=("scaler-collapse", "non-finite-weights", "non-finite-gradient", "non-finite-loss"),
    signs=("scaler",),
    because="Numbers grew beyond what half precision holds.",
    likely=0.3,
    fixes=(Fix("train in bfloat16, which needs no scaler", setting="dtype", op="set", value="bfloat16"),),
)
WEIGHTS_DAMAGED = Cause(
    code="weights-damaged",
    seen_by=("non-finite-weights",),
    ruled_out_by=("input-non-finite",),
    because="No step gives finite numbers any more, whatever the batch.",
    likely=0.6,
    fixes=(Fix("go back to the last clean state"),),
)
LOG_OF_ZERO = Cause(
    code="log-of-zero",
    seen_by=("non-finite-loss",),
    signs=("from-the-start",),
    because="A logarithm of zero or of a negative number, or a division by zero, in the loss itself.",
    likely=0.15,
    fixes=(
        Fix("use the loss that takes logits (cross_entropy, binary_cross_entropy_with_logits)"),
        Fix("add an eps inside logarithms, roots and denominators", setting="eps", op="set", value=1e-6),
    ),
)

OF_NUMBERS = (
    SETTING_CHANGED,
    DATA_NON_FINITE,
    WEIGHTS_DAMAGED,
    LEARNING_RATE_TOO_HIGH,
    NO_CLIPPING,
    BAD_BATCH,
    OVERFLOW,
    LOG_OF_ZERO,
)
