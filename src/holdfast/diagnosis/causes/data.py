"""Why a training learns the wrong thing: the data, its order, its splits, its preparation."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

NOT_SHUFFLED = Cause(
    code="not-shuffled",
    seen_by=("unshuffled-data", "loss-oscillation"),
    signs=("period-of-an-epoch", "labels-in-order"),
    because="Samples come in stored order, class after class.",
    likely=0.15,
    fixes=(
        Fix("shuffle in every epoch", setting="shuffle", op="set", value=True),
        Fix("with DistributedSampler call sampler.set_epoch(epoch) in every epoch; for streams use a shuffle buffer"),
    ),
)
DUPLICATES = Cause(
    code="duplicates-across-splits",
    seen_by=("split-leak", "too-good"),
    signs=("same-samples",),
    because="The same samples, or copies of them, are in training and in validation.",
    likely=0.4,
    fixes=(Fix("remove duplicates before splitting, including scaled and cropped copies"),),
)
SPLIT_BY_SAMPLE = Cause(
    code="split-by-sample",
    seen_by=("split-leak", "too-good"),
    because="Samples that belong together (one patient, one video, one day) are on both sides of the split.",
    likely=0.3,
    fixes=(Fix("split by group, not by sample; split time series by date"),),
)
ANSWER_IN_INPUT = Cause(
    code="answer-in-the-input",
    seen_by=("too-good",),
    because="A field leaks the label: an id, a file name, a value measured afterwards.",
    likely=0.25,
    fixes=(Fix("train on each input field alone: a field that is enough by itself is the leak"),),
)
METRIC_WRONG = Cause(
    code="metric-wrong",
    seen_by=("too-good", "constant-predictions"),
    because="The metric is computed on the training data, on one class, or against the prediction itself.",
    likely=0.15,
    fixes=(Fix("compute the metric by hand for ten samples"),),
)
NORMALISATION_MISMATCH = Cause(
    code="normalisation-mismatch",
    seen_by=("preprocessing-mismatch", "overfitting", "underfitting", "metric-collapse", "metric-decline"),
    signs=("statistics-differ",),
    because="The inputs are normalised differently from the inputs that the weights were trained on.",
    likely=0.1,
    fixes=(
        Fix("use one preprocessing function for training, validation and inference; save its constants with the checkpoint"),
        Fix("with pretrained weights: use their mean and std, channel order and range (0 to 1 or 0 to 255)"),
    ),
)
AUGMENTED_VALIDATION = Cause(
    code="augmentation-in-validation",
    seen_by=("preprocessing-mismatch", "loss-oscillation"),
    because="The validation data gets the random augmentation of the training data.",
    likely=0.1,
    fixes=(Fix("give validation its own transform: resize and normalise only; call model.eval() to disable dropout"),),
)
TOKENIZER = Cause(
    code="tokenizer-mismatch",
    seen_by=("token-out-of-range",),
    against=("labels-beyond",),
    ruled_out_by=("no-embedding",),
    because="The tokenizer does not belong to the model, or tokens were added to one of them.",
    likely=0.4,
    fixes=(
        Fix("load both from the same name; after adding tokens: model.resize_token_embeddings(len(tokenizer))"),
        Fix("count ids that equal tokenizer.unk_token_id: more than a few per cent mean the wrong tokenizer"),
    ),
)
TOO_LONG = Cause(
    code="sequence-too-long",
    seen_by=("token-out-of-range",),
    against=("labels-beyond",),
    ruled_out_by=("no-embedding",),
    because="A text has more tokens than the model has positions.",
    likely=0.25,
    fixes=(Fix("truncate to the model's maximum length", setting="max_length", op="set", value=512),),
)
INDEX_BEYOND = Cause(
    code="index-beyond-tensor",
    seen_by=("token-out-of-range",),
    signs=("no-embedding",),
    because="A tensor is indexed beyond its end: by an id, a label or a position that it has no row for.",
    likely=0.1,
    fixes=(Fix("the traceback names the line: compare the index's maximum with the tensor's size there"),),
)
LABELS_OUT_OF_RANGE = Cause(
    code="labels-out-of-range",
    seen_by=("token-out-of-range", "non-finite-loss", "loss-spike"),
    signs=("labels-beyond",),
    because="A label is negative, starts at 1 instead of 0, or marks ignored positions without ignore_index.",
    likely=0.14,  # hardly, unless such a label was seen
    fixes=(
        Fix(
            "number the classes from 0, set num_classes, and pass ignore_index",
            setting="ignore_index",
            op="set",
            value=-100,
        ),
    ),
)
RARE_CLASSES = Cause(
    code="rare-classes",
    seen_by=("class-imbalance", "constant-predictions"),
    signs=("one-class-most",),
    because="One class has most of the samples, so always predicting it costs little.",
    likely=0.3,
    fixes=(
        Fix("oversample rare classes (WeightedRandomSampler), or weight the loss by 1 / count"),
        Fix("report balanced accuracy, F1 or AP, not accuracy"),
    ),
)
ONE_CLASS = Cause(
    code="one-class-only",
    seen_by=("class-imbalance", "constant-predictions", "too-good"),
    because="Only one class is present: labels come from the wrong field, or the others were filtered out.",
    likely=0.2,
    fixes=(Fix("count the labels of a few batches"),),
)
CONSTANT_INPUT = Cause(
    code="constant-input",
    seen_by=("constant-predictions", "not-learning"),
    needs=("input-constant",),
    signs=("input-constant",),
    because="Every sample reaches the model with the same values: one file read repeatedly, or a zeroed field.",
    likely=0.6,
    fixes=(Fix("print the mean and std of a batch just before it enters the model"),),
)

OF_DATA = (
    CONSTANT_INPUT,
    NOT_SHUFFLED,
    DUPLICATES,
    SPLIT_BY_SAMPLE,
    ANSWER_IN_INPUT,
    METRIC_WRONG,
    NORMALISATION_MISMATCH,
    AUGMENTED_VALIDATION,
    TOKENIZER,
    TOO_LONG,
    INDEX_BEYOND,
    LABELS_OUT_OF_RANGE,
    RARE_CLASSES,
    ONE_CLASS,
)
