"""Why a training does not learn, or not the right thing."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_LOWER = Fix("lower the learning rate", setting="lr", op="multiply", value=0.3)

LEARNING_RATE_TOO_LOW = Cause(
    code="learning-rate-too-low",
    seen_by=("loss-plateau", "not-learning", "underfitting"),
    signs=("norms-healthy", "lr-tiny", "still-falling", "lr-below-good", "lr-dropped"),
    against=("norms-grew", "lr-huge", "metric-constant", "updates-usual", "no-update"),
    ruled_out_by=("lr-zero", "lr-jumped", "explained", "updates-large-enough"),
    because="Updates are too small, so the loss hardly changes.",
    likely=0.3,
    fixes=(
        Fix("find what lowered the learning rate in that step (a wrong unit, a typo), and restore it", needs=("lr-dropped",)),
        Fix("multiply the learning rate by 2 to 10", setting="lr", op="multiply", value=3.0, ruled_out_by=("lr-dropped",)),
    ),
)
LEARNING_RATE_ZERO = Cause(
    code="learning-rate-zero",
    seen_by=("loss-plateau", "not-learning"),
    needs=("lr-zero",),
    because="The learning rate is 0, so updates do not change the weights.",
    likely=0.9,
    fixes=(Fix("check the schedule, and set a learning rate above 0", setting="lr", op="set", value=1e-3),),
)
SCHEDULE_ENDED = Cause(
    code="schedule-ended",
    seen_by=("loss-plateau",),
    needs=("lr-decayed",),
    signs=("was-falling",),
    ruled_out_by=("lr-dropped",),
    because="The loss stopped falling because the schedule ended, not because the model converged.",
    likely=0.5,
    fixes=(Fix("make the schedule as long as the run, or use a warm restart"),),
)
BATCH_TOO_SMALL = Cause(
    code="batch-too-small",
    seen_by=("loss-oscillation",),
    signs=("batch-below-good",),
    against=("lr-huge",),
    because="The batches may be too small, which makes their gradients noisy.",
    likely=0.25,
    fixes=(Fix("use larger batches, or accumulate gradients", setting="batch_size", op="multiply", value=4),),
)
VALIDATION_TOO_SMALL = Cause(
    code="validation-set-too-small",
    seen_by=("loss-oscillation",),
    needs=("train-is-smooth",),
    signs=("train-is-smooth",),
    because="Only the validation loss swings: the validation set may be too small.",
    likely=0.15,
    fixes=(Fix("validate on more samples, and compare averages over several evaluations"),),
)
TOO_LITTLE_DATA = Cause(
    code="too-little-data",
    seen_by=("overfitting",),
    signs=("memorised",),
    ruled_out_by=("statistics-differ",),
    because="There may be too little data: the model memorises it, and gets worse on the validation data.",
    likely=0.4,
    fixes=(
        Fix("use more augmentation, or more data"),
        Fix("set dropout between 0.1 and 0.3", setting="dropout", op="set", value=0.2),
        Fix(
            "set weight decay between 0.01 and 0.1 (0.0005 for detectors with SGD)", setting="weight_decay", op="set", value=0.05
        ),
        Fix("smooth the labels", setting="label_smoothing", op="set", value=0.1),
    ),
)
TRAINED_TOO_LONG = Cause(
    code="trained-too-long",
    seen_by=("overfitting",),
    needs=("trained-on",),
    signs=("trained-on",),
    ruled_out_by=("statistics-differ",),
    because="The training continued long after the best validation loss.",
    likely=0.3,
    fixes=(
        Fix(
            "stop when validation stops improving, and keep the best checkpoint",
            setting="patience",
            op="set",
            value=20,
            command="holdfast run --policy heal --patience 20 -- …",
        ),
    ),
)
CAPACITY_TOO_LARGE = Cause(
    code="capacity-too-large",
    seen_by=("overfitting",),
    needs=("memorised",),
    signs=("memorised",),
    ruled_out_by=("statistics-differ",),
    because="The model is large enough to memorise the training set.",
    likely=0.15,
    fixes=(Fix("use a smaller model, or freeze part of it"),),
)
CAPACITY_TOO_SMALL = Cause(
    code="capacity-too-small",
    seen_by=("underfitting", "loss-plateau"),
    needs=("both-high",),
    signs=("both-high",),
    ruled_out_by=("lr-dropped", "lr-tiny", "lr-zero"),
    because="The model may be too small: training and validation are equally bad.",
    likely=0.3,
    fixes=(Fix("use a larger model, or train longer"),),
)
LABELS_WRONG = Cause(
    code="labels-wrong",
    seen_by=("not-learning", "underfitting"),
    signs=("at-chance", "both-high", "updates-usual"),
    against=("lr-tiny", "lr-zero", "no-update", "lr-huge"),
    ruled_out_by=("explained", "lr-dropped"),
    because="The labels may be wrong: the model finds nothing in the inputs that predicts them.",
    likely=0.2,
    fixes=(Fix("look at samples with their labels; check that inputs and labels are shuffled together"),),
)
LABELS_UNRELATED = Cause(
    code="labels-unrelated",
    seen_by=("overfitting",),
    needs=("never-better",),
    signs=("never-better",),
    ruled_out_by=("statistics-differ",),
    because="Labels and inputs may not belong together: what the model learns does not help on the validation data.",
    likely=0.5,
    fixes=(Fix("look at samples with their labels in both splits: check their pairing and the class numbers"),),
)
LOSS_REPLACED = Cause(
    code="loss-replaced",
    seen_by=("parameters-not-trained",),
    needs=("losses-had-a-graph",),
    signs=("losses-had-a-graph",),
    because="This loss does not depend on the model, unlike earlier losses: a branch for NaN or an empty batch replaced it.",
    likely=0.8,
    fixes=(Fix("check what the loss function returns for NaN and for an empty batch, and the samples of that batch"),),
)
HEAD_UNUSED = Cause(
    code="head-unused",
    seen_by=("parameters-not-trained",),
    needs=("loss-skips-head",),
    signs=("loss-skips-head",),
    because="The last layers are a head that the loss does not use, such as an auxiliary output.",
    likely=0.8,
    fixes=(Fix("add the output to the loss if it should be learned; else no change is needed"),),
)
NO_GRADIENTS = Cause(
    code="parameters-without-gradients",
    seen_by=("not-learning", "parameters-not-trained"),
    ruled_out_by=("losses-had-a-graph", "loss-skips-head"),
    signs=("norms-tiny", "metric-constant", "at-chance"),
    against=("updates-usual", "lr-tiny"),
    because="Updates do not reach the weights: they are frozen, detached, or not in the optimizer.",
    likely=0.25,
    fixes=(
        Fix("check which parameters have gradients", command='holdfast query -t {run} "SELECT * FROM parameters"'),
        Fix("create the optimizer after the model is on its device and has its final head"),
    ),
)
SATURATED = Cause(
    code="bad-initialisation",
    seen_by=("not-learning", "constant-predictions", "gradient-vanishing", "gradient-explosion", "dead-units", "saturated-units"),
    signs=("metric-constant", "norms-tiny", "dead-from-the-start"),
    because="Initial weights or inputs have the wrong scale: activations vanish, saturate or grow from layer to layer.",
    likely=0.2,
    fixes=(Fix("check the scale of the inputs and the initialisation; add normalisation and residual connections"),),
)
TO_SETTLE = Cause(
    code="rate-too-high-to-settle",
    seen_by=("loss-plateau",),
    signs=("lr-constant", "norms-grew", "lr-huge"),
    against=("lr-decayed", "norms-tiny"),
    because="Updates are too large to converge: the loss fluctuates around a level instead of falling below it.",
    likely=0.1,
    fixes=(_LOWER, Fix("let the learning rate decay (cosine)", setting="scheduler", op="set", value="cosine")),
)
LOCAL_MINIMUM = Cause(
    code="local-minimum",
    seen_by=("loss-plateau", "underfitting"),
    signs=("norms-tiny",),
    because="The weights are in a flat region where gradients are tiny.",
    likely=0.1,
    fixes=(Fix("restart the schedule (CosineAnnealingWarmRestarts)"), Fix("try another seed", setting="seed", op="set", value=1)),
)
DATA_EXHAUSTED = Cause(
    code="data-exhausted",
    seen_by=("loss-plateau",),
    because="The model has learned what it can from this data.",
    likely=0.15,
    fixes=(Fix("stop and keep the best checkpoint; improve with more data or stronger augmentation"),),
)
TOO_SHORT = Cause(
    code="trained-too-short",
    seen_by=("underfitting",),
    needs=("still-falling",),
    signs=("still-falling",),
    because="The loss was still falling when the run ended.",
    likely=0.2,
    fixes=(Fix("train longer, with a schedule as long as the training", setting="epochs", op="multiply", value=2),),
)
TOO_LITTLE_AUGMENTATION = Cause(
    code="too-little-augmentation",
    seen_by=("overfitting",),
    ruled_out_by=("statistics-differ",),
    because="The model may see exactly the same samples in every epoch.",
    likely=0.2,
    fixes=(
        Fix("add flips, crops, scaling and colour jitter; for detectors hsv 0.015 / 0.7 / 0.4, scale 0.5, flips 0.5, mosaic 1.0"),
    ),
)
OTHER_PARAMETERS = Cause(
    code="optimizer-holds-other-parameters",
    seen_by=("not-learning", "parameters-not-trained"),
    ruled_out_by=("losses-had-a-graph", "loss-skips-head"),
    signs=("optimizer-misses-some", "left-out-behind", "no-update"),
    because="The optimizer was created from another copy of the model, or before its last layer was added.",
    likely=0.15,
    fixes=(Fix("create the optimizer last: after the model is on its device, wrapped, and has its head"),),
)
FROZEN = Cause(
    code="frozen-by-mistake",
    seen_by=("parameters-not-trained",),
    ruled_out_by=("losses-had-a-graph", "loss-skips-head"),
    signs=("requires-no-gradient",),
    because="requires_grad is False, the layers run under no_grad or before a detach, or they are in a plain Python list.",
    likely=0.35,
    fixes=(Fix("call requires_grad_(True) on the layers; put them in nn.ModuleList or nn.ModuleDict, not in a list or dict"),),
)
NO_RESIDUALS = Cause(
    code="no-residuals",
    seen_by=("gradient-vanishing",),
    signs=("gradients-vanish",),
    because="Without residual connections each layer shrinks the gradient.",
    likely=0.25,
    fixes=(Fix("add residual connections, or use fewer layers"),),
)
NO_NORMALISATION = Cause(
    code="no-normalisation",
    seen_by=("gradient-vanishing", "gradient-explosion", "dead-units", "saturated-units"),
    because="Normalisation is missing or in the wrong place, so activations change scale from layer to layer.",
    likely=0.15,
    fixes=(Fix("normalise before each block (pre-norm), or after each convolution"),),
)
SATURATING = Cause(
    code="saturating-activation",
    seen_by=("gradient-vanishing", "saturated-units"),
    signs=("gradients-vanish",),
    because="Sigmoid and tanh pass almost no gradient for large inputs.",
    likely=0.25,
    fixes=(Fix("use ReLU, GELU or SiLU inside the network, and sigmoid only at the output"),),
)
DYING_RELU = Cause(
    code="dying-relu",
    seen_by=("dead-units", "gradient-vanishing", "constant-predictions"),
    needs=("units-dead",),
    signs=("units-dead",),
    ruled_out_by=("dead-from-the-start",),
    because="A large update made the input of these units negative for every sample: ReLU outputs zero and passes no gradient.",
    likely=0.2,
    fixes=(_LOWER, Fix("use LeakyReLU, GELU or SiLU")),
)
ZERO_GRAD_MISSING = Cause(
    code="zero-grad-missing",
    seen_by=("gradients-not-zeroed", "loss-divergence", "loss-oscillation", "gradient-explosion", "not-learning"),
    needs=("gradients-not-zeroed",),
    because="Each backward pass adds to the gradients of all passes before it: `optimizer.zero_grad()` is missing.",
    likely=0.9,
    fixes=(Fix("call optimizer.zero_grad() before each backward pass, or after each step"),),
)
LOSS_SCALE = Cause(
    code="loss-scale-mismatch",
    seen_by=("loss-plateau", "underfitting"),
    because="The loss may not match the scale of the error: smooth L1 with beta 1.0 has tiny gradients for errors of 0.005.",
    likely=0.05,
    fixes=(Fix("set beta of smooth L1 near the typical error, or use L1", setting="loss_beta", op="set"),),
)

OF_LEARNING = (
    LEARNING_RATE_ZERO,
    LEARNING_RATE_TOO_LOW,
    SCHEDULE_ENDED,
    BATCH_TOO_SMALL,
    VALIDATION_TOO_SMALL,
    TOO_LITTLE_DATA,
    TRAINED_TOO_LONG,
    CAPACITY_TOO_LARGE,
    CAPACITY_TOO_SMALL,
    LABELS_WRONG,
    LABELS_UNRELATED,
    HEAD_UNUSED,
    NO_GRADIENTS,
    SATURATED,
    TO_SETTLE,
    LOCAL_MINIMUM,
    DATA_EXHAUSTED,
    TOO_SHORT,
    TOO_LITTLE_AUGMENTATION,
    OTHER_PARAMETERS,
    FROZEN,
    LOSS_REPLACED,
    NO_RESIDUALS,
    NO_NORMALISATION,
    SATURATING,
    DYING_RELU,
    ZERO_GRAD_MISSING,
    LOSS_SCALE,
)
