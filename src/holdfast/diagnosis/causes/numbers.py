"""Why numbers go wrong: NaN, explosions, spikes, collapse."""

from __future__ import annotations

from dataclasses import replace

from holdfast.diagnosis.causes.cause import Cause, Fix

_LOWER = Fix("lower the learning rate", setting="lr", op="multiply", value=0.25)

SETTING_CHANGED = Cause(
    code="setting-changed",
    seen_by=(
        *("loss-divergence", "gradient-explosion", "metric-decline", "metric-collapse", "not-learning", "loss-oscillation"),
        *("loss-plateau", "non-finite-loss", "non-finite-gradient", "loss-spike", "underfitting", "gradient-vanishing"),
        *("dead-units", "overfitting", "slow-loading", "host-memory-growth", "gpu-memory-growth", "gpu-out-of-memory"),
        *("host-out-of-memory", "non-finite-weights"),
    ),
    signs=("lr-jumped", "lr-dropped", "change-before", "changed-since-good", "only-that-changed"),
    because="A setting changed shortly before the problem began.",
    likely=0.0,
    fixes=(
        Fix("revert the setting, or change it in smaller steps"),
        Fix(
            "if deep supervision was added (gradients 40 to 100 % larger): lower the learning rate by 25 %",
            setting="lr",
            op="multiply",
            value=0.75,
            needs=("change-before",),
        ),
        Fix(
            "if augmentation was increased: lower the learning rate by 10 to 15 %",
            setting="lr",
            op="multiply",
            value=0.88,
            needs=("change-before",),
        ),
    ),
)
LEARNING_RATE_TOO_HIGH = Cause(
    code="learning-rate-too-high",
    seen_by=(
        *("loss-divergence", "gradient-explosion", "metric-collapse", "metric-decline", "loss-spike", "non-finite-loss"),
        *("non-finite-gradient", "non-finite-weights", "loss-oscillation", "not-learning"),
    ),
    signs=("lr-jumped", "norm-exploded", "lr-huge", "lr-rising", "norms-grew", "norms-jumped", "lr-above-good"),
    against=(
        *("lr-decayed", "norms-tiny", "explained", "updates-usual", "lr-tiny", "no-update", "weights-unsound"),
        *("jumped-at-once", "recovered", "only-the-gradient"),
    ),
    ruled_out_by=("input-non-finite", "lr-zero", "before-any-update"),
    because="Updates are too large.",
    likely=0.5,
    fixes=(
        Fix("set the learning rate back to what it was before the jump, and check the schedule", needs=("lr-jumped",)),
        replace(_LOWER, ruled_out_by=("lr-jumped",)),
        Fix(
            "warm up the learning rate over the first epochs",
            setting="warmup_epochs",
            op="set",
            value=5,
            needs=("begins-early",),
            ruled_out_by=("lr-warmed-up",),
        ),
    ),
)
NO_CLIPPING = Cause(
    code="no-clipping",
    seen_by=("gradient-explosion", "loss-divergence"),
    signs=("norm-exploded", "not-clipped", "clip-gone"),
    against=("one-update-only", "weights-unsound", "lr-jumped", "jumped-at-once"),
    ruled_out_by=("clipped",),
    because="Gradients grew far beyond their normal size, and nothing clipped them.",
    likely=0.1,
    fixes=(
        Fix(
            "clip gradients at 2 to 5 times their typical norm: 0.2 to 0.5 for a norm of 0.1",
            setting="clip_norm",
            op="set",
            value=None,
        ),
    ),
)
BAD_BATCH = Cause(
    code="bad-batch",
    seen_by=("loss-spike", "non-finite-loss", "non-finite-gradient", "gradient-explosion"),
    signs=("recovered", "one-update-only"),
    against=("input-non-finite", "labels-beyond", "stays-bad", "weights-unsound"),
    because="One batch differs from the others: a bad sample, a wrong label, a value far out of range.",
    likely=0.4,
    fixes=(Fix("look at the samples of that step"),),
)
DATA_NON_FINITE = Cause(
    code="data-non-finite",
    seen_by=("non-finite-weights", "non-finite-loss", "non-finite-gradient", "non-finite-input"),
    needs=("input-non-finite",),
    signs=("input-non-finite",),
    because="The input already held NaN or Inf.",
    likely=0.55,
    fixes=(Fix("check the samples that the finding names: their files, and divisions in the normalisation"),),
)
OVERFLOW = Cause(
    code="overflow",
    seen_by=("scaler-collapse", "non-finite-weights", "non-finite-gradient", "non-finite-loss"),
    signs=("scaler", "half-precision", "beyond-half", "half-overflow"),
    needs_one=("scaler", "half-precision", "beyond-half", "half-overflow"),
    against=("input-non-finite", "labels-beyond", "weights-unsound", "only-the-gradient"),
    because="Values exceeded the range of float16 (65504).",
    likely=0.3,
    fixes=(
        Fix("train in bfloat16, which needs no scaler", setting="dtype", op="set", value="bfloat16"),
        Fix("with float16 weights give the optimizer a larger eps: 1e-8 is 0 in float16", setting="eps", op="set", value=1e-6),
    ),
)
OVERFLOW_IN_FORWARD = Cause(
    code="overflow-in-forward",
    seen_by=("non-finite-loss", "non-finite-gradient", "non-finite-weights"),
    needs=("before-any-update",),
    signs=("weights-sound",),
    against=("weights-unsound", "labels-beyond"),
    ruled_out_by=("input-non-finite",),
    because="The first step is non-finite, before any update: the forward pass or the loss overflows or divides by zero.",
    likely=0.6,
    fixes=(
        Fix("find the operation: run the saved batch again", command="holdfast replay {run}"),
        Fix("scale the inputs to mean 0 and std 1, and check the initialisation of the weights"),
    ),
)
WEIGHTS_DAMAGED = Cause(
    code="weights-damaged",
    seen_by=("non-finite-weights", "checkpoint-non-finite", "non-finite-loss", "non-finite-gradient"),
    ruled_out_by=("input-non-finite", "weights-sound", "training-goes-on", "recovered"),
    needs_one=("stays-bad", "weights-unsound"),
    signs=("was-as-usual", "weights-unsound", "stays-bad"),
    against=("lr-jumped", "before-any-update"),
    because="The weights are corrupted, so that batches without a fault give NaN or Inf.",
    likely=0.35,
    fixes=(
        Fix("resume from the last clean checkpoint", command="holdfast checkpoints choose {run}"),
        Fix("look for code that writes to weights outside the optimizer (.data, copy_, an EMA that holds NaN)"),
        Fix("if it happens again in another parameter, test the memory: nvidia-smi -q -d ECC, and memtester for the host"),
    ),
)
WEIGHTS_OVERWRITTEN = Cause(
    code="weights-overwritten",
    seen_by=(
        *("loss-divergence", "gradient-explosion", "gradient-vanishing", "metric-collapse", "dead-units", "loss-spike"),
        *("non-finite-loss", "not-learning", "non-finite-weights"),
    ),
    needs=("weights-jumped",),
    signs=("weights-jumped", "jumped-at-once"),
    against=("norm-exploded",),
    ruled_out_by=("lr-jumped", "input-non-finite"),
    because="The weights changed more than the updates can explain: other code wrote to them.",
    likely=0.5,
    fixes=(
        Fix("resume from the last clean checkpoint", command="holdfast checkpoints choose {run}"),
        Fix("look for code that writes to weights outside the optimizer: .data, copy_, EMA, load_state_dict"),
    ),
)
LOG_OF_ZERO = Cause(
    code="log-of-zero",
    seen_by=("non-finite-loss",),
    signs=("from-the-start", "operation-log", "zero-in-log"),
    ruled_out_by=("input-non-finite", "operation-division", "operation-other", "half-overflow"),
    because="The loss takes the logarithm of zero or of a negative number.",
    likely=0.15,
    fixes=(
        Fix("use a loss that takes logits (cross_entropy, binary_cross_entropy_with_logits)"),
        Fix("add an eps inside logarithms and roots", setting="eps", op="set", value=1e-6),
    ),
)
DIVISION_BY_ZERO = Cause(
    code="division-by-zero",
    seen_by=("non-finite-loss", "non-finite-gradient", "non-finite-input", "non-finite-weights"),
    signs=("only-the-gradient", "began-in-a-layer", "operation-division", "zero-divisor"),
    against=("input-non-finite", "weights-unsound"),
    ruled_out_by=("operation-log", "operation-other", "half-overflow"),
    because="A denominator became zero: the std of a constant field, an empty mask, the norm of a zero vector.",
    likely=0.1,
    fixes=(Fix("keep denominators away from zero: x / (y + eps), sqrt(x + eps)", setting="eps", op="set", value=1e-6),),
)
NO_WARMUP = Cause(
    code="no-warmup",
    seen_by=("loss-spike", "loss-divergence", "gradient-explosion", "non-finite-loss"),
    needs=("begins-early",),
    signs=("from-the-start",),
    ruled_out_by=("before-any-update", "lr-warmed-up"),
    because="The first updates used the full learning rate, while the optimizer's moments were still empty.",
    likely=0.1,
    fixes=(Fix("warm up over the first 5 epochs, or a few hundred steps", setting="warmup_epochs", op="set", value=5),),
)
OUTLIERS = Cause(
    code="outliers-in-data",
    seen_by=("gradient-explosion", "loss-spike"),
    because="A few samples are far outside the range of the others.",
    likely=0.1,
    fixes=(Fix("look at the samples of those steps; clip or scale the field, or use a loss that grows slowly (L1, Huber)"),),
)
ATTENTION_UNSCALED = Cause(
    code="attention-unscaled",
    seen_by=("gradient-explosion", "saturated-units"),
    because="Attention scores grow with the width unless divided by √d, and the softmax saturates.",
    likely=0.05,
    fixes=(Fix("divide by √d, or use scaled_dot_product_attention"),),
)
NO_LOSS_SCALING = Cause(
    code="no-loss-scaling",
    seen_by=("gradient-vanishing", "scaler-collapse"),
    needs=("half-precision",),
    ruled_out_by=("scaler",),
    because="In float16 small gradients become zero unless the loss is scaled.",
    likely=0.1,
    fixes=(
        Fix("use a gradient scaler with float16: scaler.scale(loss).backward()"),
        Fix("or train in bfloat16", setting="dtype", op="set", value="bfloat16"),
    ),
)
CLIP_TOO_LOW = Cause(
    code="clip-too-low",
    seen_by=("clipping-every-step",),
    because="The limit is far below the typical gradient norm, so all gradients are scaled to the same norm.",
    likely=0.6,
    fixes=(
        Fix(
            "set the limit to 2 to 5 times the typical norm, and with SGD lower the learning rate", setting="clip_norm", op="set"
        ),
    ),
)
CLIP_TOO_HIGH = Cause(
    code="clip-too-high",
    seen_by=("clipping-never",),
    because="The limit is many times the largest gradient norm, so it would stop an explosion too late.",
    likely=0.6,
    fixes=(Fix("set the limit to 2 to 5 times the typical norm", setting="clip_norm", op="set"),),
)

OF_NUMBERS = (
    SETTING_CHANGED,
    DATA_NON_FINITE,
    WEIGHTS_DAMAGED,
    WEIGHTS_OVERWRITTEN,
    LEARNING_RATE_TOO_HIGH,
    NO_CLIPPING,
    BAD_BATCH,
    OVERFLOW,
    OVERFLOW_IN_FORWARD,
    LOG_OF_ZERO,
    DIVISION_BY_ZERO,
    NO_WARMUP,
    OUTLIERS,
    ATTENTION_UNSCALED,
    NO_LOSS_SCALING,
    CLIP_TOO_LOW,
    CLIP_TOO_HIGH,
)
