"""Why a training does not learn, or not the right thing."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

LEARNING_RATE_TOO_LOW = Cause(
    code="learning-rate-too-low",
    seen_by=("loss-plateau", "not-learning", "underfitting"),
    signs=("norms-healthy", "lr-tiny", "still-falling"),
    against=("norms-grew", "lr-huge", "metric-constant"),
    ruled_out_by=("lr-zero",),
    because="The loss hardly moves, and nothing is wrong with the gradients.",
    likely=0.3,
    fixes=(Fix("raise the learning rate", setting="lr", op="multiply", value=3.0),),
)
LEARNING_RATE_ZERO = Cause(
    code="learning-rate-zero",
    seen_by=("loss-plateau", "not-learning"),
    needs=("lr-zero",),
    because="Nothing can change.",
    likely=0.9,
    fixes=(Fix("look at the schedule: it has no learning rate left", setting="lr", op="set", value=1e-3),),
)
SCHEDULE_ENDED = Cause(
    code="schedule-ended",
    seen_by=("loss-plateau",),
    needs=("lr-decayed",),
    because="The loss stands still because the schedule is at its end, not because the model is.",
    likely=0.5,
    fixes=(Fix("give the schedule as many steps as the run has, or restart it warm"),),
)
BATCH_TOO_SMALL = Cause(
    code="batch-too-small",
    seen_by=("loss-oscillation",),
    against=("lr-huge",),
    because="A few samples at a time pull the weights in different directions.",
    likely=0.25,
    fixes=(Fix("use larger batches, or accumulate gradients", setting="batch_size", op="multiply", value=4),),
)
VALIDATION_TOO_SMALL = Cause(
    code="validation-set-too-small",
    seen_by=("loss-oscillation",),
    signs=("train-is-smooth",),
    because="The training loss is smooth; only the held-out one swings.",
    likely=0.15,
    fixes=(Fix("validate on more samples, and compare averages over several evaluations"),),
)
TOO_LITTLE_DATA = Cause(
    code="too-little-data",
    seen_by=("overfitting",),
    signs=("memorised",),
    because="The model gets better on what it has seen and worse on what it has not.",
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
    signs=("trained-on",),
    because="The best model was there long before the end.",
    likely=0.3,
    fixes=(
        Fix(
            "stop when the validation stops getting better, and keep the best checkpoint",
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
    signs=("memorised",),
    because="The model can hold the whole training set.",
    likely=0.15,
    fixes=(Fix("use a smaller model, or freeze part of it"),),
)
CAPACITY_TOO_SMALL = Cause(
    code="capacity-too-small",
    seen_by=("underfitting", "loss-plateau"),
    signs=("both-high",),
    because="Training and validation are equally bad.",
    likely=0.3,
    fixes=(Fix("use a larger model, or train longer"),),
)
LABELS_WRONG = Cause(
    code="labels-wrong",
    seen_by=("not-learning", "underfitting"),
    signs=("at-chance", "both-high"),
    because="Nothing in the inputs tells the labels apart.",
    likely=0.2,
    fixes=(Fix("look at samples with their labels: holdfast visualize; check that both are shuffled together"),),
)
NO_GRADIENTS = Cause(
    code="parameters-without-gradients",
    seen_by=("not-learning", "parameters-not-trained"),
    signs=("norms-tiny", "metric-constant", "at-chance"),
    because="The update does not reach the weights: frozen parameters, a detached output, or an optimizer that holds others.",
    likely=0.25,
    fixes=(
        Fix("look at which parameters have gradients", command='holdfast query -t {run} "SELECT * FROM parameters"'),
        Fix("make the optimizer after the model is on its device and has its last layer"),
    ),
)
SATURATED = Cause(
    code="bad-initialisation",
    seen_by=("not-learning", "constant-predictions", "gradient-vanishing"),
    signs=("metric-constant", "norms-tiny"),
    because="The same answer for every input: units are saturated or dead from the beginning.",
    likely=0.2,
    fixes=(Fix("check the scale of the inputs and the initialisation; use normalisation layers and residuals"),),
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
    NO_GRADIENTS,
    SATURATED,
)
