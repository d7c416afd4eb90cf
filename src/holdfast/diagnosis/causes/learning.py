"""Why a training does not learn, or not the right thing."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_LOWER = Fix("lower the learning rate", setting="lr", op="multiply", value=0.3)

LEARNING_RATE_TOO_LOW = Cause(
    code="learning-rate-too-low",
    seen_by=("loss-plateau", "not-learning", "underfitting"),
    signs=("norms-healthy", "lr-tiny", "still-falling", "lr-below-good", "lr-dropped"),
    against=("norms-grew", "lr-huge", "metric-constant", "updates-usual", "no-update"),
    ruled_out_by=("lr-zero", "explained"),
    because="The loss hardly moves: updates are too small.",
    likely=0.3,
    fixes=(Fix("raise the learning rate, 2 to 10 times", setting="lr", op="multiply", value=3.0),),
)
LEARNING_RATE_ZERO = Cause(
    code="learning-rate-zero",
    seen_by=("loss-plateau", "not-learning"),
    needs=("lr-zero",),
    because="Nothing can change.",
    likely=0.9,
    fixes=(Fix("check the schedule: the learning rate is zero", setting="lr", op="set", value=1e-3),),
)
SCHEDULE_ENDED = Cause(
    code="schedule-ended",
    seen_by=("loss-plateau",),
    needs=("lr-decayed",),
    signs=("was-falling",),
    because="The loss stopped falling because the schedule ended, not because the model converged.",
    likely=0.5,
    fixes=(Fix("make the schedule as long as the run, or use a warm restart"),),
)
BATCH_TOO_SMALL = Cause(
    code="batch-too-small",
    seen_by=("loss-oscillation",),
    signs=("batch-below-good",),
    against=("lr-huge",),
    because="The batches may be too small: small batches pull the weights in different directions.",
    likely=0.25,
    fixes=(Fix("use larger batches, or accumulate gradients", setting="batch_size", op="multiply", value=4),),
)
VALIDATION_TOO_SMALL = Cause(
    code="validation-set-too-small",
    seen_by=("loss-oscillation",),
    needs=("train-is-smooth",),
    signs=("train-is-smooth",),
    because="The training loss is smooth; only the held-out one swings.",
    likely=0.15,
    fixes=(Fix("validate on more samples, and compare averages over several evaluations"),),
)
TOO_LITTLE_DATA = Cause(
    code="too-little-data",
    seen_by=("overfitting",),
    signs=("memorised",),
    ruled_out_by=("statistics-differ",),
    because="The model improves on the training data and gets worse on the validation data.",
    likely=0.4,
    fixes=(
        Fix("augment the data more, or get more of it"),
        Fix("raise dropout to 0.1 to 0.3", setting="dropout", op="set", value=0.2),
        Fix("raise weight decay to 0.01 to 0.1 (0.0005 for detectors with SGD)", setting="weight_decay", op="set", value=0.05),
        Fix("smooth the labels", setting="label_smoothing", op="set", value=0.1),
    ),
)
TRAINED_TOO_LONG = Cause(
    code="trained-too-long",
    seen_by=("overfitting",),
    needs=("trained-on",),
    signs=("trained-on",),
    ruled_out_by=("statistics-differ",),
    because="The best model came long before the end.",
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
    because="Training and validation are equally bad.",
    likely=0.3,
    fixes=(Fix("use a larger model, or train longer"),),
)
LABELS_WRONG = Cause(
    code="labels-wrong",
    seen_by=("not-learning", "underfitting"),
    signs=("at-chance", "both-high", "updates-usual"),
    against=("lr-tiny", "lr-zero", "no-update", "lr-huge"),
    ruled_out_by=("explained",),
    because="Nothing in the inputs tells the labels apart.",
    likely=0.2,
    fixes=(Fix("look at samples with their labels; check that both are shuffled together"),),
)
LABELS_UNRELATED = Cause(
    code="labels-unrelated",
    seen_by=("overfitting",),
    needs=("never-better",),
    signs=("never-better",),
    ruled_out_by=("statistics-differ",),
    because="What the model learns does not carry over to validation: labels and inputs do not belong together.",
    likely=0.5,
    fixes=(Fix("look at samples with their labels in both splits: shuffled together, with the same class numbers?"),),
)
LOSS_REPLACED = Cause(
    code="loss-replaced",
    seen_by=("parameters-not-trained",),
    needs=("losses-had-a-graph",),
    signs=("losses-had-a-graph",),
    because="This loss was not computed from the model, those before it were: a branch replaced it, for NaN or an empty batch.",
    likely=0.8,
    fixes=(Fix("look at what the loss function returns for NaN and for an empty batch, and at the samples of that batch"),),
)
NO_GRADIENTS = Cause(
    code="parameters-without-gradients",
    seen_by=("not-learning", "parameters-not-trained"),
    ruled_out_by=("losses-had-a-graph",),
    signs=("norms-tiny", "metric-constant", "at-chance"),
    against=("updates-usual", "lr-tiny"),
    because="The update does not reach the weights: frozen parameters, a detached output, or an optimizer that holds others.",
    likely=0.25,
    fixes=(
        Fix("look at which parameters have gradients", command='holdfast query -t {run} "SELECT * FROM parameters"'),
        Fix("create the optimizer after the model is on its device and has its last layer"),
    ),
)
SATURATED = Cause(
    code="bad-initialisation",
    seen_by=("not-learning", "constant-predictions", "gradient-vanishing", "gradient-explosion", "dead-units", "saturated-units"),
    signs=("metric-constant", "norms-tiny", "dead-from-the-start"),
    because="Initial weights or inputs have the wrong scale: activations vanish, saturate or grow from layer to layer.",
    likely=0.2,
    fixes=(Fix("check the scale of the inputs and the initialisation; use normalisation layers and residuals"),),
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
    fixes=(Fix("use a warm restart"), Fix("try another seed", setting="seed", op="set", value=1)),
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
    fixes=(Fix("train longer, with a schedule of that length", setting="epochs", op="multiply", value=2),),
)
TOO_LITTLE_AUGMENTATION = Cause(
    code="too-little-augmentation",
    seen_by=("overfitting",),
    ruled_out_by=("statistics-differ",),
    because="Every epoch may show exactly the same samples.",
    likely=0.2,
    fixes=(Fix("flip, crop, scale and shift colours; for detectors hsv 0.015 / 0.7 / 0.4, scale 0.5, flips 0.5, mosaic 1.0"),),
)
OTHER_PARAMETERS = Cause(
    code="optimizer-holds-other-parameters",
    seen_by=("not-learning", "parameters-not-trained"),
    ruled_out_by=("losses-had-a-graph",),
    signs=("optimizer-misses-some", "left-out-behind", "no-update"),
    because="The optimizer was created from another copy of the model, or before its last layer was added.",
    likely=0.15,
    fixes=(Fix("create the optimizer last: after the model is on its device, wrapped, and has its head"),),
)
FROZEN = Cause(
    code="frozen-by-mistake",
    seen_by=("parameters-not-trained",),
    ruled_out_by=("losses-had-a-graph",),
    signs=("requires-no-gradient",),
    because="requires_grad is off, the part runs under no_grad or detach, or its layers are in a plain list.",
    likely=0.35,
    fixes=(Fix("set requires_grad_(True) for it, and use nn.ModuleList and nn.ModuleDict for layers in lists and dicts"),),
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
    fixes=(Fix("use ReLU, GELU or SiLU inside the network, and sigmoid only at its end"),),
)
DYING_RELU = Cause(
    code="dying-relu",
    seen_by=("dead-units", "gradient-vanishing", "constant-predictions"),
    needs=("units-dead",),
    signs=("units-dead",),
    ruled_out_by=("dead-from-the-start",),
    because="A large update pushed units to where ReLU outputs zero for every input, and no gradient brings them back.",
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
    because="The loss does not match the scale of the error: smooth L1 with beta 1.0 on errors of 0.005 is quadratic throughout.",
    likely=0.05,
    fixes=(
        Fix("set beta near the typical error (energy 0.01, timing 0.1, angle 1.0), or use L1", setting="loss_beta", op="set"),
    ),
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
