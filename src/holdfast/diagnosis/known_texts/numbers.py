"""Texts of numbers that are not finite, and of half precision."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import WARNING, KnownText, Pattern

_NAN, _INF = r"[+-]?nan\b", r"[+-]?inf(?:inity)?\b"
_LOSS = r"(?<![A-Za-z0-9/])(?:[\w/]*[_/])?loss(?:es)?(?:_\w+)?['\"]?\s*(?:[:=]\s*|\s)(?:tensor\()?['\"]?"
_NORM = r"(?<!max_)(?<!clip_)(?:grad(?:ient)?_?\s?norm|gnorm)['\"]?\s*[:=]?\s*(?:tensor\()?['\"]?"
_NO_BEST = r"^(?!.*(?:best|lowest|min|prev|init)).*?"  # many a loop begins with a best loss of infinity

OF_NUMBERS = (
    KnownText(
        "backward-made-nan",
        (Pattern(r"Function '?\w*Backward\w*'? returned nan values", ("returned",)),),
        "non-finite-gradient",
        "Anomaly detection names the operation whose gradient became NaN; the traceback above shows its line in the"
        " forward pass.",
        "Sqrt, Pow, Norm: add an eps under the root. Log, Div: add an eps inside. Softmax, Exp: avoid float16 and fully masked"
        " rows. `holdfast replay` names the operation too, without slowing the run.",
    ),
    KnownText(
        "loss-not-finite",
        (
            "Loss is nan, stopping training",
            "Loss is inf, stopping training",
            "Loss became infinite or NaN",
            "loss is not finite",
            "Detected NaN loss",
            "NaN loss encountered",
            "The loss returned in 'training_step' is",
            "is not finite. Previous best value was",
            "Model diverged with loss = NaN",
            "WARNING: non-finite loss, ending training",
        ),
        "non-finite-loss",
        "The loss became NaN or Inf, and the trainer reported it.",
        "`holdfast run --policy guard -- …` skips such updates and names the sample and the layer; then: lower LR,"
        " clipping, warm-up.",
    ),
    KnownText(
        "exp-of-a-huge-loss",
        ("OverflowError: math range error",),
        "loss-divergence",
        "math.exp of a number above 709, most often of a loss for the perplexity: the loss diverged.",
        "Lower the learning rate, with a warm-up and clipping; print math.exp(min(loss, 700)).",
    ),
    KnownText(
        "loss-not-finite-in-the-log",
        (
            Pattern(_LOSS + _NAN, ("nan",)),
            Pattern(_NO_BEST + _LOSS + _INF, ("inf", "infinity")),
            Pattern(r"(?:loss|ce|nll)\s+(?:is|was|became|went|turned)\s+(?:to\s+)?" + _NAN, ("nan",)),
        ),
        "non-finite-loss",
        "The log shows a loss of NaN or Inf.",
        "The training after that step is lost unless the update was skipped. `holdfast run --policy guard -- …` skips such"
        " updates and names the sample and the layer; then: lower LR, clipping, warm-up.",
    ),
    KnownText(
        "gradient-not-finite-in-the-log",
        (Pattern(_NORM + _NAN, ("nan",)), Pattern(_NORM + _INF, ("inf", "infinity"))),
        "non-finite-gradient",
        "The log shows gradients of NaN or Inf. A few come from a gradient scaler searching its scale. Many, next to a loss of"
        " 0.0 (Hugging Face's trainer), mean that the weights are NaN.",
        "Train in bf16 instead of fp16, lower the learning rate, check for fully masked rows. `holdfast run --policy guard --"
        " …` names the layer.",
        WARNING,
    ),
    KnownText(
        "clip-found-non-finite",
        ("for gradients from 'parameters' is non-finite",),
        "non-finite-gradient",
        "clip_grad_norm_(error_if_nonfinite=True) found gradients that are NaN or Inf.",
        "Skip the update (`holdfast run --policy guard -- …`), and look at the batch of that step.",
    ),
    KnownText(
        "distribution-of-nan",
        (
            "of distribution * to satisfy the constraint",
            "probability tensor contains either 'inf', 'nan' or element < 0",
            "Input contains NaN",
            "Input contains infinity",
            "matrix contained non-finite values",
            "array must not contain infs or NaNs",
            "cannot convert float NaN to integer",
            "cannot convert float infinity to integer",
        ),
        "non-finite-weights",
        "A function received NaN or Inf: usually the outputs of a model whose weights are no longer finite.",
        "Find the first non-finite step: `holdfast run --policy guard -- …`; resume from a checkpoint before it.",
    ),
    KnownText(
        "nan-in-tensorboard",
        ("NaN or Inf found in input tensor",),
        "non-finite-loss",
        "A value logged to TensorBoard is NaN or Inf.",
        "If it is the loss, `holdfast run --policy guard -- …` skips such updates and names the sample.",
        WARNING,
    ),
    KnownText(
        "division-in-numpy",
        (
            "RuntimeWarning: invalid value encountered in",
            "RuntimeWarning: divide by zero encountered in",
            "RuntimeWarning: overflow encountered in",
            "RuntimeWarning: Mean of empty slice",
        ),
        "non-finite-input",
        "NumPy produced NaN or Inf, usually in preprocessing or a metric: a division by zero, a log of zero, an empty list.",
        "Guard the division ((x − mean) / max(std, 1e-6)); np.seterr(all='raise') shows the line.",
        WARNING,
    ),
    KnownText(
        "scaler-at-its-end",
        (
            "Current loss scale already at minimum",
            "Minimum loss scale reached",
        ),
        "scaler-collapse",
        "No loss scale is small enough: the gradients overflow half precision at every step.",
        "Train in bf16, or lower the learning rate; the weights may be NaN already.",
    ),
    KnownText(
        "scaler-skips",
        ("Gradient overflow. Skipping step", "OVERFLOW! Rank * Skipping step", "OVERFLOW! * Attempted loss scale"),
        "scaler-collapse",
        "The scaler skipped an update because it overflowed. A few at the start, then one in thousands, are normal.",
        "If it continues: train in bf16, or lower the learning rate.",
        WARNING,
    ),
    KnownText(
        "no-inf-checks",
        ("No inf checks were recorded",),
        "loop-mistake",
        "scaler.step() or update() was called, but no parameter of that optimizer had a gradient.",
        "The loss must reach the parameters of this optimizer: scaler.scale(loss).backward() before scaler.step(optimizer).",
    ),
    KnownText(
        "unscale-half-gradients",
        ("Attempting to unscale FP16 gradients",),
        "loop-mistake",
        "The weights themselves are float16; the scaler needs float32 weights, with half precision only in autocast.",
        "Load the model in float32 and use autocast (fp16=True), or train all of it in bfloat16 without a scaler.",
    ),
    KnownText(
        "unscale-twice",
        (
            "unscale_() has already been called on this optimizer since the last update()",
            "unscale_() is being called after step()",
        ),
        "loop-mistake",
        "scaler.unscale_ was called twice for one update.",
        "Call it once before clipping, then scaler.step(optimizer) and scaler.update(), in this order.",
    ),
)
